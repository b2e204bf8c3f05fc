"""A Flower app with mods, for all messages and for trainings alone."""
