"""The target metric of a run, numbers as text, and the summary of a run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, inf, isfinite, log10
from typing import TYPE_CHECKING, Any

from offbeat.metrics import METRICS, Direction
from offbeat.results.rows import RUN_COLUMNS, Row, on_one_set

if TYPE_CHECKING:
    from offbeat.experiment.schema import Experiment

SHARE_TARGETS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.96, 0.97, 0.98, 0.99)
"""Default of `evaluation.targets` for a metric between 0 and 1; other metrics have none."""


@dataclass(frozen=True)
class TargetMetric:
    """The metric that runs are compared by, and whether higher or lower is better (default: accuracy)."""

    name: str = "accuracy"
    direction: Direction = "max"
    share: bool = field(default=False, compare=False)
    """Whether a metric that is not registered is shown in percent."""

    @classmethod
    def named(cls, name: str) -> "TargetMetric":
        """The metric of this name; for one that is not registered, higher counts as better."""
        return cls(name, METRICS[name].direction if name in METRICS else "max")

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> "TargetMetric":
        """The target metric in the summary of a run."""
        name = summary.get("target_metric", "accuracy")
        return cls(name, summary.get("target_direction", "max"), summary.get("target_share", False))

    @classmethod
    def of_experiment(cls, experiment: "Experiment") -> "TargetMetric":
        """The metric that the runs of an experiment are compared by."""
        name = experiment.target_metric
        metric = experiment.task.metric(name)
        return cls(name, experiment.target_direction, metric is not None and metric.share)

    @property
    def is_share(self) -> bool:
        """Whether the metric is between 0 and 1, and shown in percent."""
        return METRICS[self.name].share if self.name in METRICS else self.share

    def targets(self, given: Sequence[float] | None) -> list[float]:
        """The values for which the time to reach them is reported: the given ones, or the defaults of a share."""
        return list(SHARE_TARGETS if self.is_share else ()) if given is None else list(given)

    @property
    def title(self) -> str:
        """The name of the metric, with spaces."""
        return self.name.replace("_", " ")

    def reached(self, value: float, target: float) -> bool:
        """Whether the value is at least as good as the target."""
        return value >= target if self.direction == "max" else value <= target

    def best(self, values: Iterable[float]) -> float:
        """The best of the values."""
        return max(values) if self.direction == "max" else min(values)

    def worst(self, values: Iterable[float]) -> float:
        """The worst of the values."""
        return min(values) if self.direction == "max" else max(values)

    def best_first(self, values: Iterable[float]) -> list[float]:
        """The values in order, the best first."""
        return sorted(values, reverse=self.direction == "max")

    def eased(self, value: float) -> float:
        """The value rounded to two digits, on the side that is easier to reach.

        >>> TargetMetric("perplexity", "min").eased(41.337), TargetMetric("r2").eased(0.8971)
        (42.0, 0.89)
        """
        near = float(f"{value:.2g}")
        if self.reached(value, near):
            return near
        last_digit = 10.0 ** (floor(log10(abs(value))) - 1)
        return float(f"{near - last_digit if self.direction == 'max' else near + last_digit:.2g}")

    def text(self, value: float, decimals: int | None = None) -> str:
        """A value of the metric as text.

        >>> TargetMetric().text(0.925), TargetMetric("perplexity", "min").text(41.337)
        ('92.5 %', '41.34')
        """
        if not self.is_share:
            return f"{value:.4g}"
        return f"{100 * value:g} %" if decimals is None else f"{100 * value:.{decimals}f} %"

    def goal(self, target: float) -> str:
        """The target in words.

        >>> TargetMetric().goal(0.9), TargetMetric("perplexity", "min").goal(40)
        ('90 % accuracy', 'perplexity 40')
        """
        return f"{self.text(target)} {self.title}" if self.is_share else f"{self.title} {self.text(target)}"


ACCURACY = TargetMetric()


# Numbers as text -----------------------------------------------------------------------------------------------------


def percent(share: float, decimals: int | None = None) -> str:
    """A share in percent, as short as possible or with a number of decimals.

    >>> percent(0.925), percent(0.5, 1)
    ('92.5 %', '50.0 %')
    """
    return f"{100 * share:g} %" if decimals is None else f"{100 * share:.{decimals}f} %"


def amount(value: float) -> str:
    """A number with three significant digits, or as an integer if it is larger.

    >>> amount(0.12345), amount(14.0), amount(12345.6)
    ('0.123', '14.0', '12,346')
    """
    return f"{value:#.3g}" if abs(value) < 99.95 else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Seconds as text, in the unit that reads best.

    >>> duration(0.25), duration(87.3), duration(1234.5), duration(14400.0), duration(400_000)
    ('0.25 s', '87.3 s', '1,234 s', '4 h', '4.63 d')
    """
    unit, size = time_unit(seconds)
    value = seconds / size
    return f"{value:,.0f} {unit}" if 1000 <= value < inf else f"{value:.3g} {unit}"


def time_unit(seconds: float) -> tuple[str, int]:
    """The unit in which a duration reads best, and its seconds."""
    for unit, size, least in (("d", 86400, 2), ("h", 3600, 2), ("min", 60, 100)):
        if size * least <= seconds < inf:
            return unit, size
    return "s", 1


def megabytes(size: float) -> str:
    """A number of bytes, in megabytes."""
    return amount(size / 1e6)


# The summary of a run ------------------------------------------------------------------------------------------------


def time_to(rows: Sequence[Row], target: float, metric: TargetMetric = ACCURACY) -> float | None:
    """Time at which the metric first reached the target, linearly interpolated between evaluations.

    If devices evaluate, only evaluations by the same devices count.

    >>> time_to([{"time": 0.0, "accuracy": 0.2}, {"time": 10.0, "accuracy": 0.7}], 0.6)
    8.0
    """
    rows = on_one_set(rows)
    for number, row in enumerate(rows):
        value = row[metric.name]
        if metric.reached(value, target):
            before = rows[max(number - 1, 0)]
            if number == 0 or not isfinite(before[metric.name]):
                return row["time"]
            share = (target - before[metric.name]) / (value - before[metric.name])
            return before["time"] + share * (row["time"] - before["time"])
    return None


def summarise(
    rows: Sequence[Row],
    *,
    algorithm: str,
    label: str = "",
    seed: int,
    targets: Sequence[float],
    reason: str,
    wall_seconds: float,
    in_training: float | None = None,
    metric: TargetMetric = ACCURACY,
    metrics: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Sum up a run in one flat record, from its rows of metrics.

    `metrics` are the columns that the task measures (default: all that are not in `RUN_COLUMNS`). `in_training` is the
    mean over time of the number of orders in flight; without it, the mean over the rows. A target metric other than
    accuracy is named with its direction.
    """
    last = rows[-1]
    measured = [name for name in last if name not in RUN_COLUMNS] if metrics is None else list(metrics)
    other = {} if metric == ACCURACY else {"target_metric": metric.name, "target_direction": metric.direction}
    own = {"target_share": True} if metric.share and metric.name not in METRICS else {}
    return {
        "algorithm": algorithm,
        "label": label or algorithm,
        "seed": seed,
        "stopped_by": reason,
        "time": last["time"],
        "versions": last["version"],
        "metrics": measured,
        **{f"final_{name}": last[name] for name in measured},
        **other,
        **own,
        **_of_target([row for row in rows if metric.name in row], metric, targets),
        **{key: value for key, value in last.items() if key not in ("time", "version", "in_flight", *measured)},
        "in_training": sum(row["in_flight"] for row in rows) / len(rows) if in_training is None else in_training,
        "wall_seconds": round(wall_seconds, 3),
    }


def _of_target(rows: Sequence[Row], metric: TargetMetric, targets: Sequence[float]) -> dict[str, Any]:
    """The best value and the times to targets, from the rows that have the metric; empty if none has."""
    if not rows:
        return {}
    return {
        f"best_{metric.name}": metric.best(row[metric.name] for row in on_one_set(rows) or rows[-1:]),
        f"time_to_{metric.name}": {f"{target:g}": time_to(rows, target, metric) for target in targets},
    }
