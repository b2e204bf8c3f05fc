"""Choosing an algorithm: tuning the settings of each with the same budget, and recommending one for a fleet."""
