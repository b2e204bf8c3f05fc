"""The ServerApp: a strategy wrapped into differential privacy."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds."""
    strategy = DifferentialPrivacyClientSideFixedClipping(
        FedAvg(), noise_multiplier=0.0, clipping_norm=context.run_config["clip"], num_sampled_clients=2
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({"w": Array(np.zeros(4))}),
        num_rounds=context.run_config["num-server-rounds"],
    )
