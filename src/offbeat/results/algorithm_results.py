"""The results of one algorithm over its seeds, as numbers and as cells of a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from statistics import fmean, median, stdev

from offbeat.results.metric import TargetMetric, amount, time_to, time_unit
from offbeat.results.result import Result
from offbeat.results.statistics import Estimate, median_of


@dataclass(frozen=True)
class AlgorithmResults:
    """The runs of one algorithm, one per seed, and the target that they are compared by (None: there is none)."""

    algorithm: str
    entries: list[Result]
    target: float | None

    @property
    def seeds(self) -> list[int]:
        """The seeds, in the order of the runs."""
        return [entry.seed for entry in self.entries]

    @cached_property
    def times(self) -> list[float | None]:
        """Time to target of each run; None if the run did not reach it."""
        if self.target is None:
            return [None] * len(self.entries)
        return [time_to(entry.rows, self.target, self.metric) for entry in self.entries]

    @property
    def metric(self) -> TargetMetric:
        """The target metric of the runs."""
        return TargetMetric.of(self.entries[0].summary)

    @property
    def reached(self) -> list[float]:
        """Times to target of the runs that reached it."""
        return [time for time in self.times if time is not None]

    @property
    def reached_by_all(self) -> bool:
        """Whether all runs reached the target."""
        return len(self.reached) == len(self.entries)

    @property
    def by_seed(self) -> dict[int, float]:
        """Times to target by seed, for the runs that reached it."""
        return {seed: time for seed, time in zip(self.seeds, self.times, strict=True) if time is not None}

    @property
    def surely_reached(self) -> float:
        """The best value of the metric that all runs reached; infinitely bad if a run has no finite value."""
        metric = self.metric
        nothing = inf if metric.direction == "min" else -inf
        values = [[row[metric.name] for row in entry.rows if isfinite(row[metric.name])] for entry in self.entries]
        return metric.worst(metric.best(each or [nothing]) for each in values)

    @property
    def time(self) -> Estimate | None:
        """Time to target with its interval or range over seeds; None unless all runs reached it."""
        return median_of(self.reached, log=True) if self.reached_by_all else None

    @property
    def median_time(self) -> float | None:
        """Median time to target over the runs that reached it; None if none did."""
        return median(self.reached) if self.reached else None

    @property
    def first_time(self) -> float | None:
        """Shortest time to target; None if no run reached it."""
        return min(self.reached, default=None)

    @property
    def last_time(self) -> float | None:
        """Longest time to target among the runs that reached it; None if none did."""
        return max(self.reached, default=None)

    @property
    def final_value(self) -> float:
        """Final value of the target metric, as a mean over seeds."""
        return self.mean(f"final_{self.metric.name}")

    @property
    def final_spread(self) -> float | None:
        """Standard deviation over seeds of the final value; None for a single seed."""
        values = [entry.summary[f"final_{self.metric.name}"] for entry in self.entries]
        return stdev(values) if len(values) > 1 else None

    @property
    def unused_share(self) -> float:
        """Share of the resolved updates that were discarded or lost."""
        unused = self.mean("updates_discarded") + self.mean("updates_lost")
        return _share(unused, unused + self.mean("updates_used"))

    @property
    def wasted_share(self) -> float:
        """Share of the devices' training time that was spent on unused updates."""
        return _share(self.mean("wasted_seconds"), self.mean("busy_seconds"))

    @property
    def in_training(self) -> float:
        """Mean number of devices in training."""
        return fmean(entry.in_training for entry in self.entries)

    def size_text(self, key: str) -> str:
        """The buffer or the staleness bound of the algorithm, as a cell; seeds for which it differs share a range."""
        values = [entry.summary[key] for entry in self.entries if key in entry.summary]
        if not values:
            return "-"
        low, high = f"{min(values):g}", f"{max(values):g}"
        return low if low == high else f"{low}-{high}"

    @property
    def diverged(self) -> bool:
        """Whether any run diverged."""
        return any(entry.diverged for entry in self.entries)

    @property
    def problems(self) -> dict[int, str]:
        """What went wrong in runs that made no version, diverged or stood still, by seed."""
        told = {entry.seed: entry.summary.get("problem") for entry in self.entries}
        old = {entry.seed: "training diverged" for entry in self.entries if entry.diverged}
        return old | {seed: problem for seed, problem in told.items() if problem is not None}

    def mean(self, key: str) -> float:
        """Mean over seeds of a number in the summaries."""
        return fmean(entry.summary[key] for entry in self.entries)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def time_text(results: AlgorithmResults) -> str:
    """The median time to target with its interval or range, or the number of seeds that reached it.

    An interval of zero width, or of a single seed, is left out.
    """
    if not results.reached:
        return "not reached"
    known = results.time
    if known is None:
        return f"{len(results.reached)} of {len(results.entries)} seeds"
    unit, size = time_unit(known.median)
    low, high = amount(known.low / size), amount(known.high / size)
    return f"{amount(known.median / size)} {unit}" + (f" ({low}-{high})" if known.seeds > 1 and low != high else "")


def final_text(results: AlgorithmResults) -> str:
    """The final value of the target metric and its standard deviation over seeds."""
    spread, metric = results.final_spread, results.metric
    if not metric.is_share:
        middle = metric.text(results.final_value)
        return middle if spread is None else f"{middle} ± {spread:.2g}"
    middle = f"{100 * results.final_value:.1f}"
    return f"{middle} %" if spread is None else f"{middle} ± {100 * spread:.1f} %"


def seeds_text(algorithms: Sequence[AlgorithmResults]) -> str:
    """The number of seeds per algorithm, in words."""
    counts = [len(results.entries) for results in algorithms]
    if min(counts) != max(counts):
        return f"{min(counts)} to {max(counts)} seeds"
    return "one seed" if counts[0] == 1 else f"{counts[0]} seeds"
