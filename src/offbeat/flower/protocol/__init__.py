"""What server and devices say to each other: typed messages, and their coding for Flower."""
