"""The server."""

from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg

from server_fn_app.task import Net, get_weights


def weighted_average(metrics):
    """The mean accuracy, weighted by samples."""
    return {"accuracy": sum(n * m["accuracy"] for n, m in metrics) / sum(n for n, _ in metrics)}


class Remembering(FedAvg):
    """Keeps the best accuracy."""

    best = 0.0

    def aggregate_evaluate(self, server_round, results, failures):
        """Note the best accuracy."""
        loss, metrics = super().aggregate_evaluate(server_round, results, failures)
        self.best = max(self.best, metrics.get("accuracy", 0.0))
        return loss, metrics


def server_fn(context: Context):
    """The strategy and the number of rounds."""
    strategy = Remembering(
        fraction_fit=context.run_config["fraction-fit"],
        min_available_clients=2,
        initial_parameters=ndarrays_to_parameters(get_weights(Net())),
        evaluate_metrics_aggregation_fn=weighted_average,
        on_fit_config_fn=lambda server_round: {"decay": 0.99**server_round},
    )
    config = ServerConfig(num_rounds=context.run_config["num-server-rounds"])
    return ServerAppComponents(strategy=strategy, config=config)


app = ServerApp(server_fn=server_fn)
