"""How one algorithm did over its seeds, as numbers and in the words of a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from statistics import fmean, median, stdev

from offbeat.results.metric import TargetMetric, amount, time_to
from offbeat.results.result import Result
from offbeat.results.statistics import median_of


@dataclass(frozen=True)
class AlgorithmResults:
    """How one algorithm did over its seeds, in reaching the target (None: there is no target) and otherwise."""

    algorithm: str
    entries: list[Result]
    target: float | None

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs, in their order."""
        return [entry.seed for entry in self.entries]

    @cached_property
    def times(self) -> list[float | None]:
        """When each seed reached the target."""
        if self.target is None:
            return [None] * len(self.entries)
        return [time_to(entry.rows, self.target, self.metric) for entry in self.entries]

    @property
    def metric(self) -> TargetMetric:
        """The metric that the runs are about."""
        return TargetMetric.of(self.entries[0].summary)

    @property
    def reached(self) -> list[float]:
        """The times of the seeds that reached the target."""
        return [time for time in self.times if time is not None]

    @property
    def reached_by_all(self) -> bool:
        """Whether the run of every seed reached the target."""
        return len(self.reached) == len(self.entries)

    @property
    def by_seed(self) -> dict[int, float]:
        """When each seed that reached the target did so."""
        return {seed: time for seed, time in zip(self.seeds, self.times, strict=True) if time is not None}

    @property
    def surely_reached(self) -> float:
        """The best value of the metric that every seed came to; infinitely bad if one has no finite value."""
        metric = self.metric
        nothing = inf if metric.direction == "min" else -inf
        values = [[row[metric.name] for row in entry.rows if isfinite(row[metric.name])] for entry in self.entries]
        return metric.worst(metric.best(each or [nothing]) for each in values)

    @property
    def median_time(self) -> float | None:
        """Over the seeds that reached the target; so are the first and the last."""
        return median(self.reached) if self.reached else None

    @property
    def first_time(self) -> float | None:
        """The time of the seed that reached the target first; None if none did."""
        return min(self.reached, default=None)

    @property
    def last_time(self) -> float | None:
        """The time of the seed that reached the target last; None if none did."""
        return max(self.reached, default=None)

    @property
    def final_value(self) -> float:
        """The metric at the end, as a mean over seeds."""
        return self.mean(f"final_{self.metric.name}")

    @property
    def final_spread(self) -> float | None:
        """The standard deviation of the metric at the end over seeds, if there are several."""
        values = [entry.summary[f"final_{self.metric.name}"] for entry in self.entries]
        return stdev(values) if len(values) > 1 else None

    @property
    def unused_share(self) -> float:
        """The share of updates that were discarded or lost, of all that had an end."""
        unused = self.mean("updates_discarded") + self.mean("updates_lost")
        return _share(unused, unused + self.mean("updates_used"))

    @property
    def wasted_share(self) -> float:
        """The share of the devices' training time that went into updates that were not used."""
        return _share(self.mean("wasted_seconds"), self.mean("busy_seconds"))

    @property
    def in_training(self) -> float:
        """The mean number of devices in training."""
        return fmean(entry.in_training for entry in self.entries)

    @property
    def diverged(self) -> bool:
        """Whether the run of any seed diverged."""
        return any(entry.diverged for entry in self.entries)

    def mean(self, key: str) -> float:
        """The mean over seeds of a number in the summaries."""
        return fmean(entry.summary[key] for entry in self.entries)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def time_text(results: AlgorithmResults) -> str:
    """The median time to the target and its interval, or how many seeds reached it.

    An interval without a width, or of a single seed, is not shown.
    """
    if not results.reached:
        return "not reached"
    if not results.reached_by_all:
        return f"{len(results.reached)} of {len(results.entries)} seeds"
    known = median_of(results.reached)
    low, high = amount(known.low), amount(known.high)
    return f"{amount(known.median)} s" + (f" ({low}-{high})" if known.seeds > 1 and low != high else "")


def final_text(results: AlgorithmResults) -> str:
    """The metric at the end and its spread over seeds."""
    spread, metric = results.final_spread, results.metric
    if not metric.is_share:
        middle = metric.text(results.final_value)
        return middle if spread is None else f"{middle} ± {spread:.2g}"
    middle = f"{100 * results.final_value:.1f}"
    return f"{middle} %" if spread is None else f"{middle} ± {100 * spread:.1f} %"


def seeds_text(algorithms: Sequence[AlgorithmResults]) -> str:
    """How many seeds each algorithm ran with, in words."""
    counts = [len(results.entries) for results in algorithms]
    if min(counts) != max(counts):
        return f"{min(counts)} to {max(counts)} seeds"
    return "one seed" if counts[0] == 1 else f"{counts[0]} seeds"
