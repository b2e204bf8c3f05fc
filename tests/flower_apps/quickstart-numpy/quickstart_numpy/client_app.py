"""The ClientApp."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart_numpy.task import evaluate as evaluate_model
from quickstart_numpy.task import load_data
from quickstart_numpy.task import train as train_model

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on the client's data."""
    model = msg.content["arrays"].to_numpy_ndarrays()
    x, y = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss = train_model(model, x, y, context.run_config["local-epochs"], msg.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(model), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on the client's data."""
    model = msg.content["arrays"].to_numpy_ndarrays()
    x, y = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss, accuracy = evaluate_model(model, x, y)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
