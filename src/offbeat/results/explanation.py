"""One paragraph on why the algorithms of a comparison differ, computed from their runs."""

from collections.abc import Iterator
from statistics import fmean, median

from offbeat.results.algorithm_results import AlgorithmResults
from offbeat.results.comparison import Comparison
from offbeat.results.metric import duration
from offbeat.results.result import Result

WORTH_TELLING = 0.05
"""Smallest share of idle places, unused updates or wasted time that is mentioned."""
SLOW = 0.2
"""The share of the devices that counts as slow."""


def why(comparison: Comparison) -> str:
    """Who was waited for, how stale updates were and what was wasted; empty if nothing stands out."""
    parts = [text for results in comparison.by_algorithm if (text := ", ".join(_facts(results)))]
    return f"Why: {'; '.join(parts)}." if parts else ""


def _facts(results: AlgorithmResults) -> Iterator[str]:
    name, told = results.algorithm, 0
    idle = idle_share(results.entries)
    if idle is not None and idle >= WORTH_TELLING:
        waited = waited_for(results.entries)
        yield f"the devices chosen by {name} stood idle {100 * idle:.0f} % of the time{waited}"
        told += 1
    elif idle is not None and len(results.entries[0].rows) > 1:
        yield f"{name} kept its devices training {100 * (1 - idle):.0f} % of the time"
        told += 1
    staleness = results.mean("mean_staleness")
    if staleness >= WORTH_TELLING:
        yield f"{'with' if told else f'{name} used'} updates {staleness:.1f} versions stale on average"
        told += 1
    if results.unused_share >= WORTH_TELLING:
        yield f"{'' if told else f'{name}: '}{100 * results.unused_share:.0f} % of the updates were not used"


def idle_share(entries: list[Result]) -> float | None:
    """The share of time in which a place in training was empty; None if the algorithm names no number of places."""
    shares = []
    for entry in entries:
        if entry.experiment is None:
            return None
        policy = entry.experiment.algorithm.policy
        setting = getattr(policy.about, "in_training", None)
        places = getattr(policy, setting) if setting else None
        if not isinstance(places, int) or places < 1:
            return None
        shares.append(max(0.0, 1.0 - entry.in_training / places))
    return fmean(shares)


def waited_for(entries: list[Result]) -> str:
    """The duration of an order on the slowest devices against the median, from devices.csv."""
    seconds = sorted(
        (device["training_seconds"] + device["way_seconds"]) / device["delivered"]
        for entry in entries
        for device in entry.devices
        if device["delivered"]
    )
    if len(seconds) < 1 / SLOW:
        return ""
    slow, middle = fmean(seconds[-max(1, round(SLOW * len(seconds))) :]), median(seconds)
    if slow < 1.2 * middle:
        return ""
    return (
        f" waiting for slower ones (an order takes the slowest fifth {duration(slow)}, "
        f"the median device {duration(middle)})"
    )
