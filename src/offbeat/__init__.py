"""Federated learning over uneven devices.

What a script needs, for instance:

    import offbeat
    result = offbeat.run(offbeat.Experiment.parse({"stop": {"time": 600.0}, "algorithm": {"name": "fedbuff"}}))
    result.summary["final_accuracy"]
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offbeat.comparison.compare import compare
    from offbeat.core.policy import DeviceRule, Policy
    from offbeat.data import Dataset
    from offbeat.running.result import Result
    from offbeat.settings.schema import Experiment
    from offbeat.simulation.run import run

__all__ = ["Dataset", "DeviceRule", "Experiment", "Policy", "Result", "compare", "run"]

_HOMES = {
    "Dataset": "offbeat.data",
    "DeviceRule": "offbeat.core.policy",
    "Experiment": "offbeat.settings.schema",
    "Policy": "offbeat.core.policy",
    "Result": "offbeat.running.loop",
    "compare": "offbeat.comparison.compare",
    "run": "offbeat.simulation.run",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `offbeat --help` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'offbeat' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
