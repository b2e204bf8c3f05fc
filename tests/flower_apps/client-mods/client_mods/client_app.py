"""The ClientApp: a mod for every message, and a mod of Flower's for trainings."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod


def counting_mod(msg, context, call_next):
    """Change what comes in and what goes out."""
    msg.content["config"]["seen-by-mod"] = True
    reply = call_next(msg, context)
    if reply.has_content():
        reply.content["metrics"]["by-mod"] = 1.0
    return reply


app = ClientApp(mods=[counting_mod])


@app.train(mods=[fixedclipping_mod])
def train(msg: Message, context: Context):
    """Move the model by one, which the mod clips."""
    assert msg.content["config"]["seen-by-mod"]
    moved = msg.content["arrays"]["w"].numpy() + 1.0
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(moved)}), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Say how far the model is from zero."""
    norm = float(np.linalg.norm(msg.content["arrays"]["w"].numpy()))
    return Message(RecordDict({"metrics": MetricRecord({"norm": norm, "num-examples": 1})}), reply_to=msg)
