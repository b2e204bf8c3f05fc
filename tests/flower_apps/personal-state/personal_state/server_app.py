"""The ServerApp."""

import json

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class Printing(FedAvg):
    """FedAvg that prints what each client has in its state."""

    def aggregate_train(self, server_round, replies):
        """Print the clients' counts, and average."""
        replies = list(replies)
        heads = {reply.content["metrics"]["partition"]: reply.content["metrics"]["head"] for reply in replies}
        counts = {reply.content["metrics"]["partition"]: reply.content["metrics"]["trainings"] for reply in replies}
        print("state", json.dumps([server_round, sorted(heads.items()), sorted(counts.items())]))
        return super().aggregate_train(server_round, replies)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, without evaluation by clients."""
    Printing(fraction_evaluate=0.0).start(
        grid,
        ArrayRecord({"body": Array(np.zeros(4))}),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=lambda number, arrays: MetricRecord({"accuracy": float(arrays["body"].numpy()[0]) / 10}),
    )
