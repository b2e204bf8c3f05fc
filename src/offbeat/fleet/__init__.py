"""Simulated fleets: speeds, links, availability and failures.

A new fleet or availability is a settings class with `build` and a line in `FLEETS` or `AVAILABILITIES`; a user's own is
named "module:Class".
"""

from offbeat.fleet.availability import (
    AlwaysAvailable,
    Availability,
    AvailabilitySettings,
    OnOffAvailable,
    TraceAvailable,
)
from offbeat.fleet.fleet import Failures, FailureSettings, Fleet, OrderFailure
from offbeat.fleet.links import Links, NetworkSettings
from offbeat.fleet.record import RecordFleet
from offbeat.fleet.speeds import BimodalFleet, FleetSettings, ParetoFleet, RatioFleet, Speeds
from offbeat.fleet.stochastic import BernoulliFleet, ExponentialFleet, ZipfFleet
from offbeat.fleet.trace import TraceFleet
from offbeat.fleet.workload import Workload

FLEETS: dict[str, type[FleetSettings]] = {
    "ratio": RatioFleet,
    "pareto": ParetoFleet,
    "bimodal": BimodalFleet,
    "zipf": ZipfFleet,
    "exponential": ExponentialFleet,
    "bernoulli": BernoulliFleet,
    "trace": TraceFleet,
    "record": RecordFleet,
}

AVAILABILITIES: dict[str, type[AvailabilitySettings]] = {
    "always": AlwaysAvailable,
    "on-off": OnOffAvailable,
    "trace": TraceAvailable,
}

__all__ = [
    "AVAILABILITIES",
    "FLEETS",
    "AlwaysAvailable",
    "Availability",
    "AvailabilitySettings",
    "BernoulliFleet",
    "BimodalFleet",
    "ExponentialFleet",
    "FailureSettings",
    "Failures",
    "Fleet",
    "FleetSettings",
    "Links",
    "NetworkSettings",
    "OnOffAvailable",
    "OrderFailure",
    "ParetoFleet",
    "RatioFleet",
    "RecordFleet",
    "Speeds",
    "TraceAvailable",
    "TraceFleet",
    "Workload",
    "ZipfFleet",
]
