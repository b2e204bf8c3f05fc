"""Flower, both ways: offbeat's policies in a Flower project, and a Flower project of offbeat's own.

In a project whose strategy is Flower's, one line of the ServerApp changes and the ClientApp stays as it is:

    from offbeat.flower import Async, FedBuff

    strategy = Async(FedBuff(buffer=10))  # instead of FedAvg(...)
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=100)

`num_rounds` is the number of versions of the model. In a project with a `server_fn`, whose clients are `NumPyClient`s,
the one line is `ServerAppComponents(server=AsyncServer(FedBuff(buffer=10), strategy), config=config)`.

`client_app` and `server_app` make a project whose devices can be interrupted while they train.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from offbeat.core.errors import InvalidInput

if TYPE_CHECKING:
    from offbeat.algorithms import (
        Audg,
        FedASMU,
        FedAsync,
        FedAvg,
        FedBuff,
        FedLWS,
        FedProx,
        FedSSMU,
        Psurdg,
        Seafl,
        Sfl,
    )
    from offbeat.flower.device.app import client_app, experiment_client_app
    from offbeat.flower.server.app import experiment_server_app, server_app
    from offbeat.flower.strategy.server import AsyncServer
    from offbeat.flower.strategy.strategy import Async

__all__ = [
    "Async",
    "AsyncServer",
    "Audg",
    "FedASMU",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedLWS",
    "FedProx",
    "FedSSMU",
    "Psurdg",
    "Seafl",
    "Sfl",
    "client_app",
    "experiment_client_app",
    "experiment_server_app",
    "server_app",
]

_HOMES = {
    "Async": "offbeat.flower.strategy.strategy",
    "AsyncServer": "offbeat.flower.strategy.server",
    "client_app": "offbeat.flower.device.app",
    "experiment_client_app": "offbeat.flower.device.app",
    "experiment_server_app": "offbeat.flower.server.app",
    "server_app": "offbeat.flower.server.app",
}
"""Where each name lives; the others are algorithms."""


def __getattr__(name: str) -> Any:
    """Import on first use: a node imports this package and must not load torch."""
    if name not in __all__:
        raise AttributeError(f"module 'offbeat.flower' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES.get(name, "offbeat.algorithms")), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise InvalidInput("Flower is not installed: pip install 'offbeat[flower]'") from None
