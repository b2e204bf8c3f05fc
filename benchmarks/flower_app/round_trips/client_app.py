"""The devices: offbeat's client app, which also trains for Flower's strategies."""

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from offbeat.core.orders import Order
from offbeat.flower import client_app
from offbeat.flower.experiment_source import AllSamples
from offbeat.training.trainer import TorchTrainer
from offbeat.training.training_state import TrainingJob, TrainingState
from round_trips.task import BATCH, EPOCHS, RATE, data, model

app = client_app(model=model, data=data)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train as a ClientApp for Flower's FedAvg does."""
    x, y = data(context)
    trainer = TorchTrainer(model(), x, y, AllSamples(len(y)), seed=0)
    start = message.content.array_records["arrays"]["vector"].numpy().astype(np.float32)
    order = Order(slices=EPOCHS, batch_size=BATCH, learning_rate=RATE)
    job = TrainingJob(
        device=0, ticket=0, order=order, first=0, last=EPOCHS, state=TrainingState(parameters=start), anchor=start
    )
    trained = Array(trainer.train(job).parameters)
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord({"vector": trained}), "metrics": metrics}), reply_to=message)


@app.train("echo")
def echo(message: Message, context: Context) -> Message:
    """Return the model after decoding and encoding it, with the peak memory of this process in kB."""
    vector = message.content.array_records["large"]["vector"].numpy()
    content = RecordDict({"large": ArrayRecord({"vector": Array(vector)})})
    status = Path("/proc/self/status").read_text()
    peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    content["memory"] = MetricRecord({"peak": int(peak)})
    return Message(content, reply_to=message)
