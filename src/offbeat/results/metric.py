"""The metric that runs are compared by: its name, in which direction it is better, and how it is written.

Numbers as tables, captions and reports write them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from math import floor, log10
from typing import TYPE_CHECKING, Any, Literal

from offbeat.results.rows import Row

if TYPE_CHECKING:
    from offbeat.experiment.schema import Experiment

SHARES = ("accuracy", "f1", "micro_f1", "macro_f1", "token_accuracy")
"""Metrics from 0 to 1, which are written as percentages."""
LOWER_IS_BETTER = ("loss", "mae", "perplexity")
"""Metrics of our tasks that are better the lower they are."""

WORK = ("updates_used", "mean_staleness", "max_staleness", "bytes_up", "bytes_down", "busy_seconds")
"""What a row says of the work."""


@dataclass(frozen=True)
class TargetMetric:
    """Accuracy, if nothing else is said."""

    name: str = "accuracy"
    direction: Literal["max", "min"] = "max"

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> "TargetMetric":
        """The metric that a run was about, by its summary."""
        return cls(summary.get("target_metric", "accuracy"), summary.get("target_direction", "max"))

    @classmethod
    def of_experiment(cls, experiment: "Experiment") -> "TargetMetric":
        """The metric that the runs of an experiment are compared by."""
        return cls(experiment.target_metric, experiment.target_direction)

    @property
    def is_share(self) -> bool:
        """Whether the metric lies between 0 and 1 and is shown in percent."""
        return self.name in SHARES

    @property
    def title(self) -> str:
        """The name of the metric for people."""
        return self.name.replace("_", " ")

    def reached(self, value: float, target: float) -> bool:
        """Whether the value is at the target or beyond it."""
        return value >= target if self.direction == "max" else value <= target

    def best(self, values: Iterable[float]) -> float:
        """The best of the values."""
        return max(values) if self.direction == "max" else min(values)

    def worst(self, values: Iterable[float]) -> float:
        """The worst of the values."""
        return min(values) if self.direction == "max" else max(values)

    def eased(self, value: float) -> float:
        """A number of two digits that somebody who came to this value has surely reached.

        >>> TargetMetric("perplexity", "min").eased(41.337), TargetMetric("r2").eased(0.8971)
        (42.0, 0.89)
        """
        near = float(f"{value:.2g}")
        if self.reached(value, near):
            return near
        last_digit = 10.0 ** (floor(log10(abs(value))) - 1)
        return float(f"{near - last_digit if self.direction == 'max' else near + last_digit:.2g}")

    def text(self, value: float, decimals: int | None = None) -> str:
        """The value as people read it.

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


def metrics_in(row: Row) -> list[str]:
    """The task's metrics in a row: they stand between time and version and what became of the work."""
    first = takewhile(lambda name: name not in WORK, row)
    return [name for name in first if name not in ("time", "version")]


def percent(share: float, decimals: int | None = None) -> str:
    """A share in percent, as short as it can be or with so many decimals.

    >>> percent(0.925), percent(0.5, 1)
    ('92.5 %', '50.0 %')
    """
    return f"{100 * share:g} %" if decimals is None else f"{100 * share:.{decimals}f} %"


def amount(value: float) -> str:
    """Three digits, or all before the point of a larger number.

    >>> amount(0.12345), amount(14.0), amount(12345.6)
    ('0.123', '14.0', '12,346')
    """
    return f"{value:#.3g}" if abs(value) < 99.95 else f"{value:,.0f}"


def megabytes(size: float) -> str:
    """A number of bytes, in megabytes."""
    return amount(size / 1e6)
