"""What it takes to make a trainer, in this process or in a worker: names and small values, so that it can be sent."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from offbeat.data import Dataset
from offbeat.data.samples import LazyDevices, Ragged, Samples, count, each_array, taken
from offbeat.models import ModelChoice, build, called
from offbeat.training.batches import Batches, Pipeline, SampleLookup
from offbeat.training.tasks import Batch, Classification, Task, check_fit
from offbeat.training.trainer import Precision, TorchTrainer


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainerSetup:
    """Everything but the training data."""

    model: ModelChoice
    input_shape: Any
    classes: int
    example: Any
    """Two inputs to try the model out with, where zeros would not do."""
    seed: int
    task: Task
    pipeline: Pipeline | None
    torch_device: str
    precision: Precision
    batch_statistics: bool

    @classmethod
    def of(cls, dataset: Dataset, *, task: Task, **others: Any) -> "TrainerSetup":
        """The setup for a data set, of which only the shapes, an example and the pipeline are kept."""
        return cls(
            input_shape=dataset.input_shape,
            classes=dataset.classes,
            example=inputs_to_try(task, example_batch(dataset)),
            pipeline=dataset.pipeline,
            task=task,
            **others,
        )

    def trainer(self, x: Samples | LazyDevices, y: Samples | None, partition: SampleLookup) -> TorchTrainer:
        """A trainer with a network of its own on these samples."""
        return TorchTrainer(
            build(self.model, self.input_shape, self.classes, self.seed, self.example),
            x,
            y,
            partition,
            self.seed,
            task=self.task,
            pipeline=self.pipeline,
            torch_device=self.torch_device,
            precision=self.precision,
            batch_statistics=self.batch_statistics,
        )


def example_batch(dataset: Dataset) -> Batch:
    """Two training samples as a model sees them."""
    x, y = dataset.example()
    batches = Batches(x, y, _Nobody(), 0, pipeline=dataset.pipeline)
    return next(batches.for_evaluation(batches.x, batches.y, 2))


class _Nobody:
    """A partition without devices."""

    def samples(self, device: int) -> Any:
        return np.zeros(0, dtype=np.int64)


def inputs_to_try(task: Task, example: Batch) -> Any:
    """The inputs on which a model is tried out; None for plain numbers that are to be classified: zeros do for these,
    and what a model gives for them is then checked at once."""
    floats = isinstance(example.x, torch.Tensor) and example.x.is_floating_point()
    labels = example.y.ndim == 1 and not example.y.is_floating_point()
    return None if isinstance(task, Classification) and floats and labels else example.x


def check_task(task: Task, network: nn.Module, example: Batch, classes: int) -> None:
    """Raise InvalidInput if the task fits neither the data nor the model."""
    network.eval()
    try:
        check_fit(task, network, example, classes)
    finally:
        network.train()


def check_own(task: Task, network: nn.Module, x: Any, y: Any) -> None:
    """Raise InvalidInput if a task does not fit a model and data that come from nowhere but a user's own functions."""
    indices = np.array([0, min(1, count(y) - 1)])
    x, y = (each_array(lambda part: part if isinstance(part, Ragged) else np.asarray(part), each) for each in (x, y))
    batches = Batches(taken(x, indices), taken(y, indices), _Nobody(), 0)
    example = next(batches.for_evaluation(batches.x, batches.y, 2))
    network.eval()
    with torch.no_grad():
        outputs = called(network, example.x)
    classes = outputs.shape[-1] if isinstance(outputs, torch.Tensor) and outputs.ndim else 1
    check_task(task, network, example, classes)
