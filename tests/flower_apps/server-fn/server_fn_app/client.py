"""The clients."""

from flwr.client import ClientApp, NumPyClient
from flwr.common import Context

from server_fn_app.task import Net, fit, get_weights, load_data, set_weights, test


class FlowerClient(NumPyClient):
    """Trains and tests on the data of a partition."""

    def __init__(self, data, lr):
        self.net, self.data, self.lr = Net(), data, lr

    def fit(self, parameters, config):
        """One epoch at a rate that decays with the round."""
        set_weights(self.net, parameters)
        loss = fit(self.net, *self.data, self.lr * config["decay"])
        return get_weights(self.net), len(self.data[1]), {"train_loss": loss}

    def evaluate(self, parameters, config):
        """Loss and accuracy on local data."""
        set_weights(self.net, parameters)
        loss, accuracy = test(self.net, *self.data)
        return loss, len(self.data[1]), {"accuracy": accuracy}


def client_fn(context: Context):
    """The client of a node."""
    data = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    return FlowerClient(data, context.run_config["lr"]).to_client()


app = ClientApp(client_fn)
