"""The ServerApp."""

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx, Krum

from quickstart_numpy.task import evaluate, new_model, test_data

app = ServerApp()
STRATEGIES = {"fedavg": FedAvg, "fedadam": FedAdam, "fedprox": FedProx, "krum": Krum}


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the model on data that no client has."""
    loss, accuracy = evaluate(arrays.to_numpy_ndarrays(), *test_data())
    return MetricRecord({"accuracy": accuracy, "loss": loss})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds."""
    config = context.run_config
    strategy = STRATEGIES[config["strategy"]](
        fraction_train=config["fraction-train"], fraction_evaluate=config["fraction-evaluate"]
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(new_model()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
        timeout=config["timeout"],
        evaluate_fn=global_evaluate,
    )
    print(f"The final model has {len(result.arrays)} arrays")
