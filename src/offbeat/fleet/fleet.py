"""All that the simulator must know about its devices, in one place."""

from dataclasses import dataclass

from offbeat.fleet.availability import Availability, AvailabilitySettings
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

    @classmethod
    def build(
        cls,
        workload: Workload,
        fleet: FleetSettings,
        network: NetworkSettings | None = None,
        availability: AvailabilitySettings | None = None,
        failures: FailureSettings | None = None,
    ) -> "Fleet":
        speeds = fleet.build(workload)
        return cls(
            speeds=speeds,
            links=(network or NetworkSettings()).build(workload, speeds.measured_links),
            availability=(availability or AvailabilitySettings()).build(workload),
            failures=(failures or FailureSettings()).build(workload),
        )
