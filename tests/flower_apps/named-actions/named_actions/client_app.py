"""The ClientApp: two kinds of training, an evaluation, and a question that takes no work."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def moved(msg, by):
    """The model, moved."""
    arrays = ArrayRecord({"w": Array(msg.content["arrays"]["w"].numpy() + by)})
    return Message(
        RecordDict({"arrays": arrays, "metrics": MetricRecord({"loss": by, "num-examples": 2})}), reply_to=msg
    )


@app.train("warm_up")
def warm_up(msg: Message, context: Context):
    """A small step."""
    return moved(msg, 0.5)


@app.train()
def train(msg: Message, context: Context):
    """A step."""
    return moved(msg, 1.0)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """The model's first weight stands for its accuracy."""
    value = float(msg.content["arrays"]["w"].numpy()[0])
    return Message(RecordDict({"m": MetricRecord({"accuracy": value / 10, "num-examples": 1})}), reply_to=msg)


@app.query("hardware")
def hardware(msg: Message, context: Context):
    """What the device is."""
    return Message(
        RecordDict({"answer": ConfigRecord({"cores": context.node_config["partition-id"] + 1})}), reply_to=msg
    )
