"""Run offbeat's algorithms on Flower: in an existing Flower project, or in a project of offbeat's own.

In an existing project one line of the ServerApp changes, and the ClientApp stays as it is:

    from offbeat.flower import Async, FedBuff

    strategy = Async(FedBuff(buffer=10))  # instead of FedAvg(...)
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=100)

`num_rounds` is the number of versions of the model. In a project with a `server_fn` and `NumPyClient`s, the line is
`ServerAppComponents(server=AsyncServer(FedBuff(buffer=10), strategy), config=config)`.

`client_app` and `server_app` make a project for all algorithms, including those that interrupt devices in training.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from offbeat.flower.compat import check_flower

if TYPE_CHECKING:
    from offbeat.algorithms import *  # noqa: F403 (those that run with stock client apps: see `_algorithms`)
    from offbeat.core.policy import Policy
    from offbeat.flower.device.app import client_app as client_app
    from offbeat.flower.device.app import experiment_client_app as experiment_client_app
    from offbeat.flower.reporting import report as report
    from offbeat.flower.server.app import experiment_server_app as experiment_server_app
    from offbeat.flower.server.app import server_app as server_app
    from offbeat.flower.strategy.server import AsyncServer as AsyncServer
    from offbeat.flower.strategy.strategy import Async as Async

_HOMES = {
    "Async": "offbeat.flower.strategy.strategy",
    "AsyncServer": "offbeat.flower.strategy.server",
    "client_app": "offbeat.flower.device.app",
    "experiment_client_app": "offbeat.flower.device.app",
    "experiment_server_app": "offbeat.flower.server.app",
    "report": "offbeat.flower.reporting",
    "server_app": "offbeat.flower.server.app",
}
"""The module of each name that is not an algorithm."""


def _algorithms() -> dict[str, "type[Policy]"]:
    """The registered algorithms that run with stock client apps, by class name."""
    from offbeat.algorithms import POLICIES
    from offbeat.algorithms.about import about_of

    return {policy.__name__: policy for policy in POLICIES.values() if about_of(policy).flower is not None}


def __dir__() -> list[str]:
    return sorted([*_HOMES, *_algorithms()])


def __getattr__(name: str) -> Any:
    """Import on first use: a node imports this package and must not load torch."""
    if name == "__all__":
        return __dir__()
    if name not in _HOMES:
        if name.startswith("__") or name not in _algorithms():
            raise AttributeError(f"module 'offbeat.flower' has no attribute {name!r}")
        return _algorithms()[name]
    check_flower()
    return getattr(import_module(_HOMES[name]), name)
