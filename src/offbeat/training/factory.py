"""The factory of trainers, and the checks that network, task and data fit each other before one is made."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from offbeat.data import Dataset
from offbeat.data.samples import LazyDevices, Ragged, Samples, count, each_array, taken
from offbeat.models import ModelChoice, build, called
from offbeat.training.batches import Batches, Pipeline, SampleLookup
from offbeat.training.tasks import CLASSIFICATION, Batch, Classification, Task, check_fit
from offbeat.training.trainer import Precision, TorchTrainer


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainerFactory:
    """Makes trainers: everything that they need but the data. Pickled, it makes them in worker processes too."""

    network: Callable[[], nn.Module]
    """Returns the network; each trainer trains its own copy."""
    seed: int
    """Seeds the order of batches, random transforms and dropout."""
    task: Task = CLASSIFICATION
    pipeline: Pipeline | None = None
    torch_device: str = "cpu"
    precision: Precision = "float32"
    batch_statistics: bool = False
    """Whether batch normalisation uses the statistics of each batch in evaluations too."""
    secret_noise: bool = False
    """Whether example-level privacy draws its noise from the operating system: on real devices."""
    cache_key: str | None = None
    """Identifies the network among all that train in this process; None: its results are never cached."""

    @classmethod
    def of(
        cls, dataset: Dataset, model: str | ModelChoice, seed: int, *, task: Task = CLASSIFICATION, **others: Any
    ) -> "TrainerFactory":
        """The factory for a registered model (or a user's "module:thing") on a data set."""
        choice = ModelChoice(name=model) if isinstance(model, str) else model
        example = example_inputs(task, example_batch(dataset))
        return cls(
            network=partial(build, choice, dataset.input_shape, dataset.classes, seed, example),
            seed=seed,
            task=task,
            pipeline=dataset.pipeline,
            cache_key=repr(choice),
            **others,
        )

    def trainer(self, x: Samples | LazyDevices, y: Samples | None, partition: SampleLookup) -> TorchTrainer:
        """A trainer on these samples."""
        return TorchTrainer(
            self.network(),
            x,
            y,
            partition,
            self.seed,
            task=self.task,
            pipeline=self.pipeline,
            torch_device=self.torch_device,
            precision=self.precision,
            batch_statistics=self.batch_statistics,
            secret_noise=self.secret_noise,
        )


class _NoDevices:
    """A partition without devices."""

    def samples(self, device: int) -> Any:
        return np.zeros(0, dtype=np.int64)


def example_batch(dataset: Dataset) -> Batch:
    """Two training samples as a model sees them."""
    x, y = dataset.example()
    return _evaluation_batch(Batches(x, y, _NoDevices(), 0, pipeline=dataset.pipeline))


def _evaluation_batch(batches: Batches) -> Batch:
    return next(batches.for_evaluation(batches.x, batches.y, 2))


def example_inputs(task: Task, example: Batch) -> Any:
    """The inputs that `models.build` tries a network on; None: zeros will do.

    Zeros do for floating-point inputs with integer labels, and `build` then also checks the shape of the outputs.
    """
    floats = isinstance(example.x, torch.Tensor) and example.x.is_floating_point()
    labels = example.y.ndim == 1 and not example.y.is_floating_point()
    return None if isinstance(task, Classification) and floats and labels else example.x


def check_task(task: Task, network: nn.Module, example: Batch, classes: int) -> None:
    """Raise InvalidInput if the task fits neither the data nor the network."""
    network.eval()
    try:
        check_fit(task, network, example, classes)
    finally:
        network.train()


def as_arrays(samples: Any) -> Samples:
    """A user's samples as arrays, in their structure."""
    return each_array(lambda part: part if isinstance(part, Ragged) else np.asarray(part), samples)


def check_own(task: Task, network: nn.Module, x: Any, y: Any) -> None:
    """Raise InvalidInput if a task does not fit a user's own network and arrays."""
    indices = np.array([0, min(1, count(y) - 1)])
    x, y = as_arrays(x), as_arrays(y)
    example = _evaluation_batch(Batches(taken(x, indices), taken(y, indices), _NoDevices(), 0))
    network.eval()
    with torch.no_grad():
        outputs = called(network, example.x)
    classes = outputs.shape[-1] if isinstance(outputs, torch.Tensor) and outputs.ndim else 1
    check_task(task, network, example, classes)
