"""The policies of offbeat in a Flower project: one line of the ServerApp changes, the ClientApp stays as it is.

    from offbeat.flower import Async, FedBuff

    strategy = Async(FedBuff(buffer=10))  # in the place of FedAvg(...)
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=100)

In a project with a `server_fn`, whose clients are `NumPyClient`s, the one line is
`ServerAppComponents(server=AsyncServer(FedBuff(buffer=10), strategy), config=config)`.

`num_rounds` is the number of versions of the model. See docs/flower.md for what each policy needs of a client.
"""

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
from offbeat.core.errors import InvalidInput

try:
    from offbeat.deployment.strategy.server import AsyncServer
    from offbeat.deployment.strategy.strategy import Async
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "flwr":
        raise
    raise InvalidInput("Flower is not installed: pip install 'offbeat[flower]'") from None

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
]
