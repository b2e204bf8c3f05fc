"""The ServerApp."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from hydra.utils import instantiate

from hydra_lightning.model import load_config

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds; clients evaluate."""
    config = load_config(context)
    strategy = FedAvg(fraction_train=config.fl.fraction_train)
    arrays = ArrayRecord(instantiate(config.model).state_dict())
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=config.fl.rounds)
    print("arrays", len(result.arrays))
