"""The messages between server and devices, and their encoding for Flower."""
