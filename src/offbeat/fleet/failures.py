"""What goes wrong with an order: the device vanishes while it trains, or its upload is lost on the way."""

import math
from dataclasses import dataclass

from pydantic import Field, field_validator

from offbeat.core.settings import Settings
from offbeat.core.streams import stream
from offbeat.fleet.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFailure:
    """What goes wrong with one order, if anything."""

    vanish_after: float | None
    """The part of the training time, in [0, 1), after which the device vanishes; None if it stays."""
    upload_lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Decides for every order what goes wrong with it."""

    seed: int
    vanish: float
    lost_upload: float
    rejoin_seconds: float | None
    """How long after vanishing a device is back; None if it never is."""
    detect_seconds: float
    """How long after a failure the server learns of it."""

    def failure(self, device: int, ticket: int) -> OrderFailure | None:
        """What goes wrong with an order, from the seed and the arguments alone; None if this fleet never fails."""
        if not (self.vanish or self.lost_upload):
            return None
        vanishes, when, lost = stream(self.seed, "fate", device, ticket).random(3).tolist()
        return OrderFailure(vanish_after=when if vanishes < self.vanish else None, upload_lost=lost < self.lost_upload)


class FailureSettings(Settings):
    """How often devices and uploads fail, and how the fleet recovers."""

    vanish: float = Field(0.0, ge=0, le=1)
    """Probability that a device vanishes during a training."""
    lost_upload: float = Field(0.0, ge=0, le=1)
    """Probability that an upload is lost on its way."""
    rejoin_seconds: float | None = Field(60.0, ge=0)
    """How long after vanishing a device is back (inf: never)."""
    detect_seconds: float = Field(30.0, ge=0, allow_inf_nan=False)
    """How long after a failure the server learns of it."""

    @field_validator("rejoin_seconds")
    @classmethod
    def _never_is_inf(cls, value: float | None) -> float:
        """TOML has no null: a None would be left out when the settings are written and be read back as the default."""
        return math.inf if value is None else value

    def build(self, workload: Workload) -> Failures:
        """The failures of a fleet with the workload's seed."""
        rejoins = self.rejoin_seconds is not None and math.isfinite(self.rejoin_seconds)
        return Failures(
            seed=workload.seed,
            vanish=self.vanish,
            lost_upload=self.lost_upload,
            rejoin_seconds=self.rejoin_seconds if rejoins else None,
            detect_seconds=self.detect_seconds,
        )
