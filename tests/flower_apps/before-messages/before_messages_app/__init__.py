"""A Flower app from before the message API."""
