"""A Flower app with Hydra and Lightning."""
