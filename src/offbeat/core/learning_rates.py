"""How the learning rate changes, over versions, updates, time or the steps of one training."""

from math import cos, pi
from typing import Literal

from msgspec import Struct

Over = Literal["versions", "updates", "time", "steps"]
Shape = Literal["constant", "exponential", "inverse", "step", "cosine"]


class RateSchedule(Struct, frozen=True, kw_only=True, gc=False):
    """By which factor the learning rate is multiplied at a moment: a version, a count of updates, seconds, a step."""

    shape: Shape = "constant"
    over: Over = "versions"
    decay: float = 1.0
    every: float = 1
    milestones: tuple[float, ...] = ()
    warmup: float = 0

    def factor(self, moment: float) -> float:
        """
        "exponential": `decay` once for every `every`. "inverse": 1 / (1 + moment / `every`). "step": `decay` once for
        every milestone reached. "cosine": from 1 to `decay` along half a cosine of length `every`, then `decay`.
        In the first `warmup` moments the factor rises linearly, as (moment + 1) / `warmup`.

        >>> RateSchedule(shape="step", decay=0.5, milestones=(10, 20)).factor(25)
        0.25
        """
        factor = self._decayed(moment)
        return factor * (moment + 1) / self.warmup if moment + 1 < self.warmup else factor

    def _decayed(self, moment: float) -> float:
        match self.shape:
            case "exponential":
                return float(self.decay ** (moment // self.every))
            case "inverse":
                return 1.0 / (1.0 + moment / self.every)
            case "step":
                return float(self.decay ** sum(moment >= milestone for milestone in self.milestones))
            case "cosine":
                share = min(1.0, moment / self.every)
                return self.decay + (1.0 - self.decay) * (1.0 + cos(pi * share)) / 2.0
        return 1.0

    def rate(self, base: float, moment: float) -> float:
        """The learning rate at a moment, where it is `base` at first."""
        if self.shape == "inverse" and not self.warmup:
            return base / (1.0 + moment / self.every)
        return base * self.factor(moment)
