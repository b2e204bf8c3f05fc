"""What it takes to make a trainer, in this process or in a worker: names and small values, so that it can be sent."""

from dataclasses import dataclass
from typing import Any

from offbeat.core.samples import LazyDevices, Samples
from offbeat.data import Dataset
from offbeat.device.batches import Pipeline, SampleLookup
from offbeat.device.tasks import Task
from offbeat.device.trainer import Precision, TorchTrainer
from offbeat.models import ModelChoice, build
from offbeat.settings.assembly import example_batch, inputs_to_try


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
    place: str
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
            place=self.place,
            precision=self.precision,
            batch_statistics=self.batch_statistics,
        )
