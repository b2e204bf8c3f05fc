"""The ClientApp."""

import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import log_loss

from quickstart_sklearn.task import get_model, get_model_params, load_data, set_initial_params, set_model_params

app = ClientApp()


def loaded(msg, context):
    """The model with the parameters of the message."""
    model = get_model(context.run_config["penalty"], context.run_config["local-epochs"])
    set_initial_params(model)
    return set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())


@app.train()
def train(msg: Message, context: Context):
    """Fit the model to local data."""
    model = loaded(msg, context)
    x, _, y, _ = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y)
    metrics = MetricRecord({"num-examples": len(x), "train_logloss": log_loss(y, model.predict_proba(x))})
    return Message(
        content=RecordDict({"arrays": ArrayRecord(get_model_params(model)), "metrics": metrics}), reply_to=msg
    )


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Evaluate the model on local data."""
    model = loaded(msg, context)
    _, x, _, y = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss = log_loss(y, model.predict_proba(x), labels=range(10))
    metrics = MetricRecord({"num-examples": len(x), "test_logloss": loss, "accuracy": model.score(x, y)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
