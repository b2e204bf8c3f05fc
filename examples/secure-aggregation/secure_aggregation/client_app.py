"""The ClientApp. The mod keeps the trained model on the device and sends its masked form."""

from typing import Any

from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp

from secure_aggregation import model


class Device(NumPyClient):
    """One of five devices, which holds every fifth sample."""

    def __init__(self, number: int, devices: int) -> None:
        self.x, self.y = model.samples(number, devices)

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        """Train; the weight of the device is its number of samples."""
        return [model.train(parameters[0], self.x, self.y)], len(self.x), {}


def client_fn(context: Context) -> Client:
    """The client of a node."""
    config = context.node_config
    return Device(int(config["partition-id"]), 5).to_client()


app = ClientApp(client_fn=client_fn, mods=[secaggplus_mod])
