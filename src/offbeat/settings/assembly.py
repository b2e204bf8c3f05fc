"""What an experiment is made of, whoever runs it: data, who holds what, network, task, fleet and session."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from offbeat.core.errors import InvalidInput
from offbeat.core.forecast import Forecast
from offbeat.core.parameters import Layout, Vector
from offbeat.core.samples import Ragged, count, each_array, taken
from offbeat.core.session import Session
from offbeat.core.terms import AbsentClasses, Contrastive, Distillation, OwnTerm
from offbeat.data import Dataset, Partition
from offbeat.device.batches import Batches
from offbeat.device.optimisers import check_optimiser
from offbeat.device.places import place_of
from offbeat.device.tasks import Batch, Classification, Task, TokenSequence, check_fit
from offbeat.device.terms import check_own_term
from offbeat.device.trainer import TorchTrainer
from offbeat.fleet import Fleet, Workload
from offbeat.models import ModelChoice, build, called, flops_per_sample, layout_of, vector_of, with_vocabulary
from offbeat.settings.schema import Experiment


@dataclass(frozen=True, kw_only=True, eq=False)
class ExperimentParts:
    """The objects that are made from an experiment: data, who holds what, network and task."""

    experiment: Experiment
    dataset: Dataset
    partition: Partition
    choice: ModelChoice
    """The model, with what it takes over from the data."""
    network: nn.Module
    task: Task
    example: Batch
    """Two training samples, with which the model is tried out."""

    @classmethod
    def of(cls, experiment: Experiment) -> "ExperimentParts":
        """Load and build everything; InvalidInput if the parts do not fit each other."""
        dataset, partition = experiment.load_data()
        task = experiment.task.task
        example = example_batch(dataset)
        trial = inputs_to_try(task, example)
        choice = with_vocabulary(experiment.model.choice, lambda: dataset.tokens)
        network = build(choice, dataset.input_shape, dataset.classes, experiment.seed, trial)
        check_task(task, network, example, dataset.classes)
        check_local_work(experiment, task)
        return cls(
            experiment=experiment,
            dataset=dataset,
            partition=partition,
            choice=choice,
            network=network,
            task=task,
            example=example,
        )

    @property
    def layout(self) -> Layout:
        """How the flat vector of the network's parameters is made up of tensors and layers."""
        return layout_of(self.network)

    @property
    def parameters(self) -> Vector:
        """The first model."""
        return vector_of(self.network)

    def trainer(self, place: str | None = None) -> TorchTrainer:
        """A trainer of all devices, in this process: where the experiment says, unless it is told a device of torch."""
        data, execution = self.dataset, self.experiment.execution
        return TorchTrainer(
            self.network,
            data.train_x,
            data.train_y,
            self.partition,
            self.experiment.seed,
            task=self.task,
            pipeline=data.pipeline,
            place=place_of(execution.device) if place is None else place,
            precision=execution.precision,
            batch_statistics=self.experiment.model.buffers != "average",
        )

    def fleet(self) -> Fleet:
        """The devices' speeds, links, availability and failures."""
        experiment = self.experiment
        workload = Workload(
            devices=self.partition.devices,
            samples=self.partition.sizes,
            layers=self.layout.trained_layers,
            flops_per_sample=flops_per_sample(self.network, self.example.x),
            seed=experiment.seed,
        )
        return Fleet.build(
            workload,
            experiment.fleet.settings,
            experiment.network,
            experiment.availability.settings,
            experiment.failures,
        )


def session_of(
    experiment: Experiment,
    network: nn.Module,
    *,
    samples: npt.NDArray[np.int64],
    present: npt.NDArray[np.bool_],
    forecast: Forecast | None,
) -> Session:
    """The session of an experiment, whoever drives it, with these devices and from this network's parameters."""
    return Session(
        experiment.algorithm.policy,
        parameters=vector_of(network),
        layout=layout_of(network),
        samples=samples,
        training=experiment.local_work,
        seed=experiment.seed,
        present=present,
        forecast=forecast,
        horizon=experiment.when_to_stop.time,
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
    places = np.array([0, min(1, count(y) - 1)])
    x, y = (each_array(lambda part: part if isinstance(part, Ragged) else np.asarray(part), each) for each in (x, y))
    batches = Batches(taken(x, places), taken(y, places), _Nobody(), 0)
    example = next(batches.for_evaluation(batches.x, batches.y, 2))
    network.eval()
    with torch.no_grad():
        outputs = called(network, example.x)
    classes = outputs.shape[-1] if isinstance(outputs, torch.Tensor) and outputs.ndim else 1
    check_task(task, network, example, classes)


def check_local_work(experiment: Experiment, task: Task) -> None:
    """Raise InvalidInput if a device could not do what the experiment asks of it."""
    check_optimiser(experiment.local_work.order(0))
    for term in experiment.local_work.terms:
        if isinstance(term, OwnTerm):
            check_own_term(term.name, term.settings)
        if isinstance(term, AbsentClasses) and not isinstance(task, Classification):
            raise InvalidInput("local.terms: absent-classes needs the task classification.")
        if isinstance(term, Distillation) and not isinstance(task, Classification | TokenSequence):
            raise InvalidInput("local.terms: distillation needs the task classification or sequence.")
        if isinstance(term, Contrastive) and isinstance(task, TokenSequence):
            raise InvalidInput("local.terms: contrastive needs one representation for each sample, not for each token.")
