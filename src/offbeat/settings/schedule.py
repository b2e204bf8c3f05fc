"""When a run ends and when its model is evaluated: the plain values that both drivers look at."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, kw_only=True)
class Stop:
    """When to end a run: at whichever of these is reached first."""

    time: float = inf
    versions: float = inf
    updates: float = inf
    accuracy: float = inf

    def progress(self, *, time: float, versions: float, updates: float) -> float:
        """How much is done, by whichever condition is nearest (accuracy is not foreseeable)."""
        return min(1.0, max(time / self.time, versions / self.versions, updates / self.updates))


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When to evaluate the model, beside at the start and at the end."""

    every_seconds: float = inf
    every_versions: int | None = None
