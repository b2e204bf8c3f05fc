"""A device of a real run: the legs in which it works on an order."""
