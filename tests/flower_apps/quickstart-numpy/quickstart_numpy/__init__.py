"""A Flower app on plain NumPy."""
