"""What makes a search or a race fair: seeds that are never reported, and as many devices in training for all."""

from collections.abc import Sequence
from itertools import count, islice

from offbeat.comparison.fairness import shared_in_training
from offbeat.core.errors import InvalidInput
from offbeat.settings.schema import IN_TRAINING, Experiment

SEEDS = (1000, 1001)
"""The seeds that settings are tried with, unless somebody says otherwise."""
REPORTED = 5
"""How many seeds, counted from the experiment's, are kept for reporting, unless somebody says otherwise."""


def check_seeds(experiment: Experiment, seeds: Sequence[int], reported: Sequence[int] | None = None) -> None:
    """Refuse tuning seeds that are also reported: such results would flatter whoever searched the longest."""
    if reported is None:
        reported = range(experiment.seed, experiment.seed + REPORTED)
    both = sorted(set(seeds) & set(reported))
    if not seeds or len(set(seeds)) < len(seeds):
        raise InvalidInput(f"tuning seeds = {list(seeds)}: give at least one, and each once")
    if both:
        raise InvalidInput(
            f"tuning seeds {', '.join(map(str, both))}: results are reported for these; tune on other seeds than "
            f"{', '.join(map(str, reported))}"
        )


def fresh_seeds(reported: Sequence[int]) -> list[int]:
    """As many seeds as settings are tried with, none of them a reported one.

    >>> fresh_seeds(range(3)), fresh_seeds(range(999, 1002))
    ([1000, 1001], [1002, 1003])
    """
    return list(islice((seed for seed in count(SEEDS[0]) if seed not in reported), len(SEEDS)))


def alike(experiment: Experiment, algorithms: Sequence[str]) -> Experiment:
    """The experiment with the number of devices that all of these algorithms keep in training written down."""
    shared = shared_in_training(experiment, algorithms)
    compared = {**experiment.compare, IN_TRAINING: False if shared is None else shared}
    return Experiment.parse(experiment.given_table() | {"compare": compared})
