"""Training speed beside a PyTorch loop: SGD and Adam on LeNet-5, TextCNN on tokens, ResNet-20 on 32x32 images.

    python benchmarks/own_training.py [--devices 10] [--repeats 5]

Both sides train the same devices for one epoch of 600 samples in batches of 32 from the same model, without events and
aggregation. They alternate, and CPU time is compared; with two workers, wall-clock time beside the loop on one core.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import closing
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from offbeat.core.orders import Order
from offbeat.core.streams import stream
from offbeat.data import Dataset, Partition
from offbeat.models import ModelChoice, build, vector_of
from offbeat.training.executor import torch_executor
from offbeat.training.factory import TrainerFactory
from offbeat.training.stacked import StackedTrainer
from offbeat.training.trainer import TorchTrainer
from offbeat.training.training_state import TrainingJob, TrainingState

SAMPLES, BATCH, WORDS, LENGTH = 600, 32, 2000, 40


def by_hand(model: nn.Module, x: Any, y: Any, devices: int, optimiser: Callable[..., torch.optim.Optimizer]) -> float:
    """CPU seconds of a plain PyTorch loop."""
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
    """CPU seconds of the trainer."""
    first = vector_of(trainer.model)
    start = time.process_time()
    for device in range(devices):
        work = TrainingState(parameters=first)
        trainer.train(TrainingJob(device=device, ticket=0, order=order, first=0, last=1, state=work, anchor=first))
    return time.process_time() - start


def on_two_workers(
    choice: ModelChoice,
    model: nn.Module,
    x: Any,
    y: Any,
    partition: Partition,
    order: Order,
    kind: Callable[..., torch.optim.Optimizer],
) -> float:
    """Speed of two worker processes over the PyTorch loop, in wall-clock time."""
    devices, first = partition.devices, vector_of(model)
    dataset = Dataset(train_x=x, train_y=y, test_x=x[:32], test_y=y[:32], classes=10)
    jobs = [
        TrainingJob(
            device=k, ticket=0, order=order, first=0, last=1, state=TrainingState(parameters=first), anchor=first
        )
        for k in range(devices)
    ]
    factory = TrainerFactory.of(dataset, choice, 0)
    with closing(torch_executor(factory, dataset, partition, arithmetic="sequential", workers=2)) as pool:
        pool.train(jobs[:2])  # both workers are up
        start = time.perf_counter()
        pool.train(jobs)
        ours = time.perf_counter() - start
    start = time.perf_counter()
    by_hand(model, x, y, devices, kind)
    return (time.perf_counter() - start) / ours


def stacked_over_single(trainer: TorchTrainer, devices: int, batch_size: int) -> float:
    """Speed of stacked over sequential training, in CPU time."""
    first, order = vector_of(trainer.model), Order(batch_size=batch_size, learning_rate=0.001)
    work = TrainingState(parameters=first)
    jobs = [
        TrainingJob(device=device, ticket=0, order=order, first=0, last=1, state=work, anchor=first)
        for device in range(devices)
    ]
    stacked = StackedTrainer(trainer)
    stacked.train_many(jobs[:2])  # warm
    start = time.process_time()
    stacked.train_many(jobs)
    seconds = time.process_time() - start
    return with_offbeat(trainer, devices, order) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    devices, random = options.devices, stream(0, "benchmark")
    count = devices * SAMPLES
    images = random.normal(size=(count, 1, 28, 28)).astype(np.float32)
    pictures = random.normal(size=(count, 3, 32, 32)).astype(np.float32)
    texts, y = random.integers(1, WORDS, (count, LENGTH)), random.integers(0, 10, count)
    textcnn = ModelChoice(name="textcnn", settings={"vocabulary": WORDS, "embedding": 50, "filters": 32})
    partition = Partition.of(list(np.arange(count).reshape(devices, SAMPLES)))
    sgd, adam = torch.optim.SGD, torch.optim.Adam
    for name, choice, x, kind, optimiser in (
        ("LeNet-5, SGD", ModelChoice(name="lenet5"), images, sgd, "sgd"),
        ("LeNet-5, Adam", ModelChoice(name="lenet5"), images, adam, "adam"),
        ("TextCNN, SGD", textcnn, texts, sgd, "sgd"),
        ("TextCNN, Adam", textcnn, texts, adam, "adam"),
        ("ResNet-20, SGD", ModelChoice(name="resnet20"), pictures, sgd, "sgd"),
    ):
        model = build(choice, x.shape[1:], 10, 0, torch.from_numpy(x[:2]))
        trainer = TorchTrainer(model, x, y, partition, 0)
        order = Order(batch_size=BATCH, learning_rate=0.001, optimiser=optimiser)
        with_offbeat(trainer, 1, order)
        pairs = [
            (by_hand(model, x, y, devices, kind), with_offbeat(trainer, devices, order)) for _ in range(options.repeats)
        ]
        ratio = median(hand / ours for hand, ours in pairs)
        ours = median(pair[1] for pair in pairs) / devices
        print(f"{name:16} {1000 * ours:8.1f} ms per device, {ratio:.2f} times the PyTorch loop  (>= 1.00)", flush=True)
        if choice.name == "lenet5" and optimiser == "sgd":
            for batch_size, wanted in ((4, "above 1"), (8, "above 1"), (32, "below 1")):
                ratios = [stacked_over_single(trainer, devices, batch_size) for _ in range(options.repeats)]
                print(
                    f"{name:16} stacked, batches of {batch_size:2}: {median(ratios):.2f} times sequential "
                    f"(assumed by `auto`: {wanted})",
                    flush=True,
                )
        if choice.name in ("textcnn", "resnet20") and optimiser == "sgd":
            ratios = [on_two_workers(choice, model, x, y, partition, order, kind) for _ in range(options.repeats)]
            print(f"{name:16} on two workers {median(ratios):.2f} times the loop on one core  (>= 1.70)", flush=True)


if __name__ == "__main__":
    main()
