"""The ClientApp: its second half of the model never leaves the client."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    """Count the trainings in the state, and move the head that is kept there."""
    partition = context.node_config["partition-id"]
    if "head" not in context.state:
        context.state["head"] = ArrayRecord({"weights": Array(np.zeros(context.run_config["head-size"]))})
        context.state["counts"] = ConfigRecord({"trainings": 0, "rounds": []})
    counts = context.state["counts"]
    counts["trainings"] += 1
    counts["rounds"] = [*counts["rounds"], msg.content["config"]["server-round"]]
    head = context.state["head"]["weights"].numpy() + partition + 1
    context.state["head"] = ArrayRecord({"weights": Array(head)})
    body = msg.content["arrays"]["body"].numpy() + 1.0
    metrics = MetricRecord(
        {"trainings": counts["trainings"], "head": float(head[0]), "partition": partition, "num-examples": 1}
    )
    return Message(RecordDict({"arrays": ArrayRecord({"body": Array(body)}), "metrics": metrics}), reply_to=msg)
