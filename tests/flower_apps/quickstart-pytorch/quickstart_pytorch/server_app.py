"""The ServerApp."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart_pytorch.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, evaluated by the clients alone."""
    global_model = Net()
    strategy = FedAvg(fraction_evaluate=context.run_config["fraction-evaluate"])
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(global_model.state_dict()),
        train_config=ConfigRecord({"lr": context.run_config["lr"]}),
        num_rounds=context.run_config["num-server-rounds"],
    )
    global_model.load_state_dict(result.arrays.to_torch_state_dict())
