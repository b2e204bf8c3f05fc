"""Criteria that reduce a run to one number: time to target, a metric at a time, or the area under its curve.

The metric is linearly interpolated between evaluations and constant after the last one. A run that diverged ranks last
whatever it reached before, because its final model is unusable.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import floor, inf, isfinite
from typing import Literal

import numpy as np

from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.results.algorithm_results import AlgorithmResults
from offbeat.results.metric import ACCURACY, TargetMetric, duration, time_to
from offbeat.results.result import Result
from offbeat.results.rows import Row

Kind = Literal["time", "value", "area"]
COSTS = {
    "device_seconds": ("device seconds", ("busy_seconds",), 1.0),
    "megabytes": ("MB sent", ("bytes_up", "bytes_down"), 1e6),
}
"""What a run spends: its name, the columns whose sum it is, and their unit."""
WORST = 1e9
"""The score of a run that diverged."""


def value_at(rows: Sequence[Row], time: float, metric: TargetMetric = ACCURACY) -> float:
    """The metric at a time, linearly interpolated between evaluations.

    >>> value_at([{"time": 0.0, "accuracy": 0.2}, {"time": 10.0, "accuracy": 0.7}], 4.0)
    0.4
    """
    return float(np.interp(time, [row["time"] for row in rows], [row[metric.name] for row in rows]))


def mean_until(rows: Sequence[Row], time: float, metric: TargetMetric = ACCURACY) -> float:
    """The mean of the metric from the first evaluation to a time: the area under the curve divided by the time.

    >>> mean_until([{"time": 0.0, "accuracy": 0.2}, {"time": 10.0, "accuracy": 0.6}], 20.0)  # (0.4 + 0.6) / 2
    0.5
    """
    inside = [(row["time"], row[metric.name]) for row in rows if row["time"] < time]
    times, values = zip(*inside, (time, value_at(rows, time, metric)), strict=True)
    spent = times[-1] - times[0]
    return float(np.trapezoid(values, times) / spent) if spent > 0 else float(values[-1])


HALF, TENTH = 0.5, 0.1
TARGET_RULE = (
    "the best value that as many algorithms as possible reach in all seeds, at least half-way from the untrained model "
    "to the best result"
)
"""The default target, in words."""


def default_target(algorithms: Sequence[AlgorithmResults], listed: Collection[float]) -> float | None:
    """The target that algorithms are compared by if none is given; None if no algorithm learned enough.

    It is at least half-way from the untrained model to the best value that an algorithm reaches in all seeds, and at
    least a tenth of the way to a perfect value. Of these
    values it is the best that as many algorithms as possible reach in all seeds: a listed one if possible, else a whole
    percent, or for other metrics a number of two digits. No algorithm learned enough if the best has come less than a
    tenth of the way to a perfect value (100 %, or 0 where lower is better).
    """
    metric, start = algorithms[0].metric, untrained(algorithms)
    found = (each.surely_reached for each in algorithms)
    reached = metric.best_first(value for value in found if isfinite(value))
    if not reached or not metric.reached(reached[0], start) or reached[0] == start:
        return None
    gained = abs(reached[0] - start)
    if near_start(reached[0], start, metric):
        return None
    share = max(HALF, TENTH * _whole_way(start, metric) / gained) if isfinite(start) else 0.0
    least = start + share * (reached[0] - start) if share else start
    for limit in reversed(reached):  # the value that the most algorithms reach comes first
        rounded = floor(100 * limit + 1e-9) / 100 if metric.is_share else metric.eased(limit)
        for target in (*metric.best_first(listed), rounded, limit):
            if metric.reached(limit, target) and metric.reached(target, least):
                return target
    return None


def untrained(algorithms: Sequence[AlgorithmResults]) -> float:
    """The best value of the target metric before any training; infinitely bad if none is finite."""
    metric = algorithms[0].metric
    values = [entry.rows[0][metric.name] for each in algorithms for entry in each.entries]
    return metric.best([value for value in values if isfinite(value)] or [-inf if metric.direction == "max" else inf])


def near_start(value: float, start: float, metric: TargetMetric) -> bool:
    """Whether a value is less than a tenth of the way from the untrained model's to a perfect one.

    >>> near_start(0.14, 0.1, ACCURACY), near_start(9.5, 10.0, TargetMetric.named("rmse"))
    (True, True)
    """
    gained = value - start if metric.direction == "max" else start - value
    return isfinite(start) and gained < TENTH * _whole_way(start, metric)


def _whole_way(start: float, metric: TargetMetric) -> float:
    return 1 - start if metric.is_share else abs(start)


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """A criterion: the time to a target ("time"), the metric at a time ("value"), or its mean until then ("area")."""

    kind: Kind
    metric: TargetMetric = ACCURACY
    target: float | None = None
    """The target value of the criterion "time"."""
    at: float = inf
    """The time of the criterion "value", and the end of the interval of "area" and "time"."""

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        *,
        target: float | None = None,
        kind: Kind | None = None,
        at: float | None = None,
    ) -> "Criterion":
        """The time to a target if one is given, else the area under the curve up to a time (default: the end)."""
        experiment.check_target(target)
        metric = TargetMetric.of_experiment(experiment)
        kind = kind or ("area" if target is None else "time")
        if kind == "time" and target is None:
            raise InvalidInput('the objective "time" needs a target')
        if kind != "time" and target is not None:
            raise InvalidInput(f"target = {target}: the objective {kind!r} takes no target")
        if experiment.stop.time is None:
            raise InvalidInput("stop.time is missing: it is needed to compare runs at equal times")
        if at is not None and not 0 < at <= experiment.stop.time:
            raise InvalidInput(f"at = {at}: must be above 0 and at most stop.time, which is {experiment.stop.time:g}")
        return cls(kind=kind, metric=metric, target=target, at=at or experiment.stop.time)

    def measure(self, result: Result) -> float:
        """The measure of a run: seconds, or a value of the metric.

        It is infinite, in the bad direction, if the target was not reached, the run diverged or the metric is not
        finite.
        """
        if self.kind == "time":
            assert self.target is not None
            reached = time_to(self._numbers(result.rows), self.target, self.metric)
            return inf if reached is None or reached > self.at else reached
        value = self.score_until(result.rows, self.at)
        usable = isfinite(value) and not result.diverged_before(self.at)
        return value if usable else inf if self.lower_is_better else -inf

    def _numbers(self, rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if isfinite(row[self.metric.name])]

    def score_until(self, rows: Sequence[Row], time: float) -> float:
        """The value at a time, or the mean of the values up to it."""
        return (value_at if self.kind == "value" else mean_until)(rows, time, self.metric)

    def score(self, result: Result, until: float) -> float:
        """A finite score (lower is better) of a run up to a time, for searches and rankings.

        If the target was not reached the score is above `until`, and grows with the distance of the best value from the
        target. A run that diverged, or whose metric is not finite, has the worst score.
        """
        diverged = result.diverged_before(until)
        if self.kind != "time":
            value = self.score_until(result.rows, until)
            worth = value if self.metric.direction == "min" else -value
            return worth if isfinite(worth) and not diverged else WORST
        assert self.target is not None
        rows = [row for row in self._numbers(result.rows) if row["time"] <= until]
        reached = time_to(rows, self.target, self.metric)
        if reached is not None:
            return reached
        if diverged:
            return WORST
        gap = abs(self.target - self.best_value(rows)) if rows else inf
        return until * (2 - 1 / (1 + gap))

    def cost(self, result: Result, name: str) -> float:
        """What a run of `COSTS` has spent when it reaches the target, or at `at`; infinite if its measure is.

        Linearly interpolated between evaluations.
        """
        measure = self.measure(result)
        if not isfinite(measure):
            return inf
        _, columns, unit = COSTS[name]
        rows = result.rows
        spent = [sum(row[column] for column in columns) for row in rows]
        return (
            float(np.interp(measure if self.kind == "time" else self.at, [row["time"] for row in rows], spent)) / unit
        )

    def best_value(self, rows: Sequence[Row]) -> float:
        """The best finite value of the metric up to `at`."""
        return self.metric.best(row[self.metric.name] for row in self._numbers(rows) if row["time"] <= self.at)

    def value_at_end(self, rows: Sequence[Row]) -> float:
        """The last value of the metric; infinitely bad if it is not finite."""
        value = rows[-1][self.metric.name]
        return value if isfinite(value) else inf if self.metric.direction == "min" else -inf

    @property
    def lower_is_better(self) -> bool:
        """Whether a lower measure is better."""
        return self.kind == "time" or self.metric.direction == "min"

    @property
    def title(self) -> str:
        """The criterion in words."""
        if self.kind == "time":
            assert self.target is not None
            return f"time to {self.metric.goal(self.target)}"
        return (
            f"{self.metric.title} at {duration(self.at)}"
            if self.kind == "value"
            else f"mean {self.metric.title} until {duration(self.at)}"
        )

    def text(self, measure: float) -> str:
        """A measure as text."""
        if self.kind == "time":
            return "not reached" if measure == inf else duration(measure)
        return self.value_text(measure) if isfinite(measure) else "diverged"

    def value_text(self, value: float) -> str:
        """A value of the metric as text."""
        return self.metric.text(value, 1) if self.metric.is_share else self.metric.text(value)
