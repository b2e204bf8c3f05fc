"""The ClientApp, by a client_fn."""

import numpy as np
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp


class Client(NumPyClient):
    """Moves the model towards a number of its own."""

    def __init__(self, partition_id):
        self.goal = float(partition_id)

    def get_parameters(self, config):
        """The first model, if the server asks for one."""
        return [np.zeros(3)]

    def fit(self, parameters, config):
        """Half of the way."""
        return [(parameters[0] + self.goal) / 2], 10, {"distance": abs(float(parameters[0][0]) - self.goal)}

    def evaluate(self, parameters, config):
        """How far it is."""
        loss = (float(parameters[0][0]) - self.goal) ** 2
        return loss, 10, {"accuracy": 1.0 / (1.0 + loss)}


def client_fn(context):
    """The client of a node."""
    return Client(context.node_config["partition-id"]).to_client()


app = ClientApp(client_fn=client_fn)
