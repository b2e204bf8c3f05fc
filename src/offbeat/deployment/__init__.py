"""Real deployment on Flower: the same algorithms, real processes, real clocks."""

from importlib.util import find_spec

from offbeat.core.errors import InvalidInput

if find_spec("flwr") is None:
    raise InvalidInput("offbeat.deployment needs Flower, which is not installed: pip install 'offbeat[flower]'")
