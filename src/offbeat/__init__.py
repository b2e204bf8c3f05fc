"""Simulate, compare and deploy federated learning over uneven devices.

    import offbeat

    result = offbeat.run({"stop": {"time": 600.0}, "algorithm": {"name": "fedbuff"}})
    result.summary["final_accuracy"]
    result.frame(), result.plot(), result.state_dict()
    offbeat.algorithms()  # what there is; `offbeat.algorithms.FedBuff` is the class

`offbeat.policy` has the names needed to write an algorithm, `offbeat.testing` those to test one.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offbeat.comparison.compare import compare, sweep
    from offbeat.comparison.fairness import fair_experiments
    from offbeat.comparison.gathered import report
    from offbeat.comparison.recommendation import recommend
    from offbeat.comparison.tuning import tune
    from offbeat.core.errors import Interrupted, InvalidInput, OffbeatError
    from offbeat.core.policy import DeviceRule, Policy
    from offbeat.core.selection import Selector
    from offbeat.data import Dataset, Partition, PartitionSettings
    from offbeat.experiment.schema import Experiment
    from offbeat.experiment.shipped import load_experiment
    from offbeat.fleet import AvailabilitySettings, FleetSettings
    from offbeat.results.comparison import Comparison, read_run
    from offbeat.results.result import Result
    from offbeat.simulation.replay import replay
    from offbeat.simulation.run import run

    __version__: str

__all__ = [
    "AvailabilitySettings",
    "Comparison",
    "Dataset",
    "DeviceRule",
    "Experiment",
    "FleetSettings",
    "Interrupted",
    "InvalidInput",
    "OffbeatError",
    "Partition",
    "PartitionSettings",
    "Policy",
    "Result",
    "Selector",
    "__version__",
    "compare",
    "fair_experiments",
    "load_experiment",
    "read_run",
    "recommend",
    "replay",
    "report",
    "run",
    "sweep",
    "tune",
]

_HOMES = {
    "AvailabilitySettings": "offbeat.fleet",
    "Comparison": "offbeat.results.comparison",
    "Dataset": "offbeat.data",
    "DeviceRule": "offbeat.core.policy",
    "Experiment": "offbeat.experiment.schema",
    "FleetSettings": "offbeat.fleet",
    "Interrupted": "offbeat.core.errors",
    "InvalidInput": "offbeat.core.errors",
    "OffbeatError": "offbeat.core.errors",
    "Partition": "offbeat.data",
    "PartitionSettings": "offbeat.data",
    "Policy": "offbeat.core.policy",
    "Result": "offbeat.results.result",
    "Selector": "offbeat.core.selection",
    "compare": "offbeat.comparison.compare",
    "fair_experiments": "offbeat.comparison.fairness",
    "load_experiment": "offbeat.experiment.shipped",
    "read_run": "offbeat.results.comparison",
    "recommend": "offbeat.comparison.recommendation",
    "report": "offbeat.comparison.gathered",
    "replay": "offbeat.simulation.replay",
    "run": "offbeat.simulation.run",
    "sweep": "offbeat.comparison.compare",
    "tune": "offbeat.comparison.tuning",
}

_SUBPACKAGES = ("algorithms", "data", "fleet", "policy", "selection", "testing")
"""Subpackages whose names a user needs."""


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `offbeat --help` does not wait for torch."""
    if name == "__version__":
        from importlib import metadata  # imported here because it is slow to import

        return metadata.version("offbeat")
    if name in _SUBPACKAGES:
        return import_module(f"offbeat.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'offbeat' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBPACKAGES])
