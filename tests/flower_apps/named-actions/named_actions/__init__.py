"""A Flower app with several trainings, and a loop of its own that pushes and pulls."""
