"""The experiment file: its tables, their checks, and the parts that are built from them."""
