"""The simulated fleet: speeds, links, availability, and the failures that are drawn for every order."""

import math
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Fleet:
    """How fast the devices are, how they are connected, when they are there and how they fail."""

    speeds: Speeds
    links: Links
    availability: Availability
    failures: Failures

    def forecast(self, model_bytes: int) -> Forecast | None:
        """What a server may know of these devices in advance; None where their speed is not one of computing."""
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
        """The fleet that these settings describe, for this workload; what is not given has its defaults."""
        speeds = fleet.build(workload)
        workload = replace(workload, names=speeds.names)
        there = availability or AlwaysAvailable()
        if speeds.measured_availability is not None and isinstance(there, AlwaysAvailable):
            present: Availability = speeds.measured_availability
        else:
            present = there.build(workload)
        return cls(
            speeds=speeds,
            links=(network or NetworkSettings()).build(workload, speeds.measured_links),
            availability=present,
            failures=(failures or FailureSettings()).build(workload),
        )
