"""The ServerApp."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Fine-tune for some rounds."""
    config = context.run_config
    shapes = {"lora_A": (config["rank"], config["width"]), "lora_B": (config["width"], config["rank"])}
    arrays = {
        f"layers.{layer}.{side}.{name}": Array(np.ones(shape, np.float32))
        for layer in range(config["layers"])
        for side in ("q_proj", "v_proj")
        for name, shape in shapes.items()
    }
    FedAvg(fraction_evaluate=0.0).start(grid, ArrayRecord(arrays), num_rounds=config["num-server-rounds"])
