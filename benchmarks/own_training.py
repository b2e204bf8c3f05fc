"""Training speed beside loops by hand: SGD and Adam on LeNet-5, and Adam on a TextCNN over tokens.

    python benchmarks/own_training.py [--devices 10] [--repeats 5]

Both sides train the same devices for one epoch of 600 samples in batches of 32, from the same model, by themselves: no
events, no aggregation. Times are of the processor, and the two sides take turns.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from offbeat.core.orders import Order
from offbeat.core.streams import stream
from offbeat.data import Partition
from offbeat.device.trainer import TorchTrainer
from offbeat.device.training_state import TrainingJob, TrainingState
from offbeat.models import build, vector_of

SAMPLES, BATCH, WORDS, LENGTH = 600, 32, 2000, 40


class TextCNN(nn.Module):
    """An embedding, three convolutions of widths 3, 4, 5 with max-pooling over the text, one dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 50)
        self.convolutions = nn.ModuleList(nn.Conv1d(50, 32, width) for width in (3, 4, 5))
        self.head = nn.Linear(96, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(tokens).transpose(1, 2)
        features = [functional.relu(convolution(embedded)).amax(2) for convolution in self.convolutions]
        out: torch.Tensor = self.head(torch.cat(features, dim=1))
        return out


def by_hand(model: nn.Module, x: Any, y: Any, devices: int, optimiser: Callable[..., torch.optim.Optimizer]) -> float:
    """Processor seconds of the loop as one would write it."""
    inputs = torch.from_numpy(x).view(devices, SAMPLES, *x.shape[1:])
    labels = torch.from_numpy(y).view(devices, SAMPLES)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    start = time.process_time()
    for device in range(devices):
        model.load_state_dict(state)
        steps = optimiser(model.parameters(), lr=0.001)
        order = torch.randperm(SAMPLES)
        for chosen in (order[first : first + BATCH] for first in range(0, SAMPLES, BATCH)):
            steps.zero_grad()
            loss = functional.cross_entropy(model(inputs[device, chosen]), labels[device, chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            steps.step()
    model.load_state_dict(state)
    return time.process_time() - start


def with_offbeat(trainer: TorchTrainer, devices: int, order: Order) -> float:
    """Processor seconds of the trainer."""
    first = vector_of(trainer.model)
    start = time.process_time()
    for device in range(devices):
        work = TrainingState(parameters=first)
        trainer.train(TrainingJob(device=device, ticket=0, order=order, first=0, last=1, work=work, anchor=first))
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    devices, random = options.devices, stream(0, "benchmark")
    count = devices * SAMPLES
    images = random.normal(size=(count, 1, 28, 28)).astype(np.float32)
    texts, y = random.integers(0, WORDS, (count, LENGTH)), random.integers(0, 10, count)
    partition = Partition.of(list(np.arange(count).reshape(devices, SAMPLES)))
    sgd, adam = torch.optim.SGD, torch.optim.Adam
    for name, model, x, kind, optimiser in (
        ("LeNet-5, SGD", build("lenet5", (1, 28, 28), 10, 0), images, sgd, "sgd"),
        ("LeNet-5, Adam", build("lenet5", (1, 28, 28), 10, 0), images, adam, "adam"),
        ("TextCNN, SGD", TextCNN(), texts, sgd, "sgd"),
        ("TextCNN, Adam", TextCNN(), texts, adam, "adam"),
    ):
        trainer = TorchTrainer(model, x, y, partition, 0)
        order = Order(batch_size=BATCH, learning_rate=0.001, optimiser=optimiser)
        with_offbeat(trainer, 1, order)
        pairs = [
            (by_hand(model, x, y, devices, kind), with_offbeat(trainer, devices, order)) for _ in range(options.repeats)
        ]
        ratio = median(hand / ours for hand, ours in pairs)
        ours = median(pair[1] for pair in pairs) / devices
        print(
            f"{name:16} {1000 * ours:8.1f} ms a device, {ratio:.2f} times the loop by hand (wanted: 1.00)", flush=True
        )


if __name__ == "__main__":
    main()
