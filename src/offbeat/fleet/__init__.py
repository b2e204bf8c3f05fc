"""How long things take and what goes wrong in a simulated fleet: speeds, links, availability and failures.

To add a fleet, write its settings class with a `build` and give it a line in `FLEETS`.
"""

from offbeat.fleet.availability import Availability, AvailabilitySettings
from offbeat.fleet.failures import Failures, FailureSettings, Fate
from offbeat.fleet.fleet import Fleet
from offbeat.fleet.links import Links, NetworkSettings
from offbeat.fleet.speeds import FleetSettings, ParetoFleet, RatioFleet, Speeds
from offbeat.fleet.stochastic import BernoulliFleet, ExponentialFleet, ZipfFleet
from offbeat.fleet.trace import TraceFleet
from offbeat.fleet.workload import Workload

FLEETS: dict[str, type[FleetSettings]] = {
    "ratio": RatioFleet,
    "pareto": ParetoFleet,
    "zipf": ZipfFleet,
    "exponential": ExponentialFleet,
    "bernoulli": BernoulliFleet,
    "trace": TraceFleet,
}

__all__ = [
    "FLEETS",
    "Availability",
    "AvailabilitySettings",
    "BernoulliFleet",
    "ExponentialFleet",
    "FailureSettings",
    "Failures",
    "Fate",
    "Fleet",
    "FleetSettings",
    "Links",
    "NetworkSettings",
    "ParetoFleet",
    "RatioFleet",
    "Speeds",
    "TraceFleet",
    "Workload",
    "ZipfFleet",
]
