"""The ClientApp."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hydra.utils import instantiate

from hydra_lightning.model import load_config, loaders, trainer

app = ClientApp()


def prepared(msg, context):
    """The model with the parameters of the message, its data and a trainer."""
    config = load_config(context)
    model = instantiate(config.model)
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    data = loaders(context.node_config["partition-id"], context.node_config["num-partitions"])
    return model, data, trainer(config)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Fit the model to local data."""
    model, (data, _), fitter = prepared(msg, context)
    fitter.fit(model, data)
    metrics = {"train_loss": float(fitter.callback_metrics["train_loss"]), "num-examples": len(data.dataset)}
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Validate the model on local data."""
    model, (_, data), fitter = prepared(msg, context)
    found = fitter.validate(model, data, verbose=False)[0]
    metrics = MetricRecord({"val_acc": found["val_acc"], "num-examples": len(data.dataset)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
