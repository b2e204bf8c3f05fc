"""The settings that a search varies for an experiment: the algorithm's own, where it says, and the learning rate."""

from collections.abc import Mapping
from typing import Any

from offbeat.algorithms.about import Choice, Range, about_of
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import Table, merge, nested

LEARNING_RATE = "local.learning_rate"
RATES = Range(0.1, 10.0, log=True, relative=True)
"""Where every algorithm's learning rate is looked for."""
DIGITS = 3
"""Values are rounded to so many digits, for files that people read."""

Space = Mapping[str, Range | Choice]
"""Ranges in the setting's own unit, and choices, by "table.key"."""


def space_of(experiment: Experiment) -> dict[str, Range | Choice]:
    """Where to look for the experiment under its algorithm.

    What the fleet says as well stays as it is, because both must agree; so does a number that is not given as one.
    """
    policy, fleet = experiment.algorithm.policy, type(experiment.fleet.settings).model_fields
    space: dict[str, Range | Choice | None] = {LEARNING_RATE: _absolute(RATES, experiment.local.learning_rate, None)}
    for key, each in about_of(policy).search.items():
        own = getattr(policy, key)
        if key in fleet:
            continue
        if isinstance(each, Choice):
            space[f"algorithm.{key}"] = each
        elif not each.relative or isinstance(own, int | float):
            space[f"algorithm.{key}"] = _absolute(each, own, getattr(policy, each.at_most) if each.at_most else None)
    return {key: each for key, each in space.items() if each is not None}


def _absolute(given: Range, own: Any, most: float | None) -> Range | None:
    """The range in the setting's own unit; None if nothing is left of it."""
    low, high = given.low, given.high
    if given.relative:
        low, high = low * own, high * own
        if isinstance(own, int):
            low, high = max(1, round(low)), max(1, round(high))
    high = high if most is None else min(high, most)
    return Range(low, high, log=given.log) if low < high else None


def own_values(experiment: Experiment, space: Space) -> Table:
    """The experiment's own values of these settings, where they are in the space: a search tries them first."""
    table = experiment.table()
    found = {}
    for path, each in space.items():
        section, _, key = path.partition(".")
        value = table[section].get(key)
        inside = (
            value in each.values if isinstance(each, Choice) else value is not None and each.low <= value <= each.high
        )
        if inside:
            found[path] = value
    return found


def with_values(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """The experiment with these settings, numbers rounded to a few digits."""
    changes: Table = {"algorithm": {"name": experiment.algorithm.name}}
    for path, value in values.items():
        changes = merge(changes, nested(path, rounded(value)))
    return experiment.changed(changes)


def rounded(value: Any) -> Any:
    """A fraction with a few digits, anything else as it is.

    >>> rounded(0.0123456), rounded(12345), rounded("hinge")
    (0.0123, 12345, 'hinge')
    """
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
