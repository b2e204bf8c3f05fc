"""Settings: the tables of an experiment file, their checks, and the experiments that come with the package."""
