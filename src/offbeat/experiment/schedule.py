"""When a run ends and when its model is evaluated: the plain values that both drivers look at."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Stop:
    """When to end a run: at whichever of these is reached first."""

    time: float = inf
    versions: float = inf
    updates: float = inf
    accuracy: float = inf
    target: float | None = None
    """A value of `metric`."""
    metric: str = "accuracy"
    direction: Literal["max", "min"] = "max"
    """Whether a higher or a lower value of the metric is better."""

    def reached(self, row: Mapping[str, float]) -> str | None:
        """The metric in this row that ends the run, if one does."""
        if row.get("accuracy", -inf) >= self.accuracy:
            return "accuracy"
        if self.target is None or self.metric not in row:
            return None
        value = row[self.metric]
        return self.metric if (value >= self.target if self.direction == "max" else value <= self.target) else None

    def progress(self, *, time: float, versions: float, updates: float) -> float:
        """How much is done, by whichever condition is nearest (a metric is not foreseeable)."""
        return min(1.0, max(time / self.time, versions / self.versions, updates / self.updates))


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When to evaluate the model, beside at the start and at the end."""

    every_seconds: float = inf
    every_versions: int | None = None
