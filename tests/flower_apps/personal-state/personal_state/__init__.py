"""A Flower app whose clients keep a head of their own in their state."""
