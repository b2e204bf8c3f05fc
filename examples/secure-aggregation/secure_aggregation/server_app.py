"""The ServerApp: Flower's workflow of rounds, with SecAgg+ in the place of the plain collection of updates.

SecAgg+ exists in Flower only for strategies from before the message API, so the strategy is that FedAvg.
"""

import numpy as np
from flwr.app import Context
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp

from secure_aggregation import model

app = ServerApp()


def evaluate(server_round: int, parameters: list[np.ndarray], config: dict) -> tuple[float, dict[str, float]]:
    """Test the model on the server; the loss is the share of errors."""
    found = model.accuracy(parameters[0], *model.samples())
    print(f"round {server_round}: accuracy {found:.4f}", flush=True)
    return 1.0 - found, {"accuracy": found}


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train; shares of each key are held by 3 nodes, of which 2 can replace a lost one."""
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=5,
        min_available_clients=5,
        evaluate_fn=evaluate,
        initial_parameters=ndarrays_to_parameters([np.zeros((65, 10))]),
    )
    rounds = int(context.run_config["num-server-rounds"])
    legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=rounds), strategy=strategy)
    secure = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=1000.0, timeout=60.0)
    DefaultWorkflow(fit_workflow=secure)(grid, legacy)
