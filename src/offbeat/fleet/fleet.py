"""The simulated fleet: speeds, links, availability, and the failures that are drawn for every order."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import Field, field_validator

from offbeat.core.policy import Forecast
from offbeat.core.settings import Settings
from offbeat.core.streams import stream
from offbeat.fleet.availability import AlwaysAvailable, Availability, AvailabilitySettings
from offbeat.fleet.links import Links, NetworkSettings
from offbeat.fleet.speeds import FleetSettings, Speeds
from offbeat.fleet.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFailure:
    """The failure of one order."""

    vanish_after: float | None
    """The fraction of the training time, in [0, 1), after which the device vanishes; None: it does not."""
    upload_lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Draws the failures of every order."""

    seed: int
    vanish: float
    lost_upload: float
    rejoin_seconds: float | None
    """Seconds after which a vanished device returns; None: never."""
    detect_seconds: float
    """Seconds after which the server detects a failure."""

    def failure(self, device: int, ticket: int) -> OrderFailure | None:
        """The failure of an order, a function of the seed and the arguments; None if this fleet never fails."""
        if not (self.vanish or self.lost_upload):
            return None
        vanishes, when, lost = stream(self.seed, "fate", device, ticket).random(3).tolist()
        return OrderFailure(vanish_after=when if vanishes < self.vanish else None, upload_lost=lost < self.lost_upload)


class FailureSettings(Settings):
    """Probabilities of failures, and times of detection and recovery."""

    vanish: float = Field(0.0, ge=0, le=1)
    """Probability that a device vanishes while it trains an order."""
    lost_upload: float = Field(0.0, ge=0, le=1)
    """Probability that an upload is lost in transit."""
    rejoin_seconds: float | None = Field(60.0, ge=0)
    """Seconds after which a vanished device returns (inf: never)."""
    detect_seconds: float = Field(30.0, ge=0, allow_inf_nan=False)
    """Seconds after which the server detects a failure."""

    @field_validator("rejoin_seconds")
    @classmethod
    def _never_is_inf(cls, value: float | None) -> float:
        """TOML has no null: None would not be written, and the default would be read back."""
        return math.inf if value is None else value

    def build(self, workload: Workload) -> Failures:
        """The failures, with the workload's seed."""
        rejoins = self.rejoin_seconds is not None and math.isfinite(self.rejoin_seconds)
        return Failures(
            seed=workload.seed,
            vanish=self.vanish,
            lost_upload=self.lost_upload,
            rejoin_seconds=self.rejoin_seconds if rejoins else None,
            detect_seconds=self.detect_seconds,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Fleet:
    """Speeds, links, availability and failures of all devices."""

    speeds: Speeds
    links: Links
    availability: Availability
    failures: Failures
    names: Sequence[str] | None = None
    """The names of the devices, if their data or a trace have names."""

    def forecast(self, model_bytes: int) -> Forecast | None:
        """What a server may know in advance; None if training times do not depend on the amount of work."""
        speeds = self.speeds.layer_speeds()
        if speeds is None:
            return None
        return Forecast(
            speeds=speeds,
            communication=self.links.round_trips(model_bytes),
            random_layers=self.speeds.random_layers,
        )

    @classmethod
    def build(
        cls,
        workload: Workload,
        fleet: FleetSettings,
        network: NetworkSettings | None = None,
        availability: AvailabilitySettings | None = None,
        failures: FailureSettings | None = None,
    ) -> "Fleet":
        """The fleet of these settings for this workload; omitted settings have their defaults."""
        speeds = fleet.build(workload)
        if workload.names is None:
            workload = replace(workload, names=speeds.names)
        wanted = availability or AlwaysAvailable()
        if speeds.measured_availability is not None and isinstance(wanted, AlwaysAvailable):
            present: Availability = speeds.measured_availability
        else:
            present = wanted.build(workload)
        return cls(
            speeds=speeds,
            links=(network or NetworkSettings()).build(workload, speeds.measured_links),
            availability=present,
            failures=(failures or FailureSettings()).build(workload),
            names=workload.names,
        )
