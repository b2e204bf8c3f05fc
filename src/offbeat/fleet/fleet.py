"""All that the simulator must know about its devices, in one place."""

from dataclasses import dataclass, replace

from offbeat.core.policy import Forecast
from offbeat.fleet.availability import AlwaysAvailable, Availability, AvailabilitySettings
from offbeat.fleet.failures import Failures, FailureSettings
from offbeat.fleet.links import Links, NetworkSettings
from offbeat.fleet.speeds import FleetSettings, Speeds
from offbeat.fleet.workload import Workload


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
