"""Runs an unmodified Flower app on a virtual clock over a simulated fleet."""
