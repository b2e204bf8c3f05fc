"""offbeat: federated learning over uneven devices."""
