"""A device of a real run: the Flower ClientApp, and the program that works on orders."""
