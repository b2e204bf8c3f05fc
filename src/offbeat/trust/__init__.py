"""Trust: differential privacy, and bounds on the influence of devices."""
