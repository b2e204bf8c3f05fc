"""The ServerApp, by a server_fn, or with the workflow that came between."""

import numpy as np
from flwr.app import Context
from flwr.common import ndarrays_to_parameters
from flwr.server import Grid, LegacyContext, ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow


def weighted_average(metrics):
    """The clients' accuracies, by their numbers of examples."""
    total = sum(count for count, _ in metrics)
    return {"accuracy": sum(count * each["accuracy"] for count, each in metrics) / total}


def parts(context):
    """The strategy and the configuration."""
    strategy = FedAvg(
        fraction_fit=context.run_config["fraction-fit"],
        min_available_clients=2,
        evaluate_metrics_aggregation_fn=weighted_average,
        initial_parameters=ndarrays_to_parameters([np.zeros(3)]),
    )
    timeout = context.run_config["round-timeout"] or None
    return strategy, ServerConfig(num_rounds=context.run_config["num-server-rounds"], round_timeout=timeout)


def server_fn(context: Context):
    """What the server consists of."""
    strategy, config = parts(context)
    return ServerAppComponents(strategy=strategy, config=config)


app = ServerApp(server_fn=server_fn)
workflow_app = ServerApp()


@workflow_app.main()
def main(grid: Grid, context: Context) -> None:
    """The same by a workflow."""
    strategy, config = parts(context)
    DefaultWorkflow()(grid, LegacyContext(context=context, config=config, strategy=strategy))
