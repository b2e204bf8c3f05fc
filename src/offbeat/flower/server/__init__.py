"""The server of a real run: the driver on the wall clock, and what it knows of its devices."""
