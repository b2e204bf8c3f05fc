"""A user's Flower app, as it is, on a virtual clock over an uneven fleet."""
