"""Builds the parts of an experiment, for any driver: data, partition, network, task, trainer, fleet and session."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import LocalWork
from offbeat.core.parameters import Layout, Vector
from offbeat.core.policy import Forecast
from offbeat.core.session import Session
from offbeat.core.streams import stream
from offbeat.core.terms import AbsentClasses, Contrastive, Distillation, OwnTerm
from offbeat.data import Dataset, Partition
from offbeat.data.heterogeneity import label_counts
from offbeat.data.samples import LazyDevices, Samples, count, taken
from offbeat.experiment.schema import Experiment
from offbeat.fleet import Fleet, Workload
from offbeat.fleet.overrides import DeviceSettings, device_number, with_overrides
from offbeat.models import ModelChoice, build, flops_per_sample, is_pure, layout_of, vector_of, with_vocabulary
from offbeat.results.fleet_facts import MOST_DEVICES, FleetFacts
from offbeat.running.vector_file import VectorFile
from offbeat.training.example_privacy import check_example_privacy
from offbeat.training.factory import TrainerFactory, check_task, example_batch, example_inputs
from offbeat.training.optimisers import check_optimiser
from offbeat.training.tasks import Batch, Classification, Task, TokenSequence
from offbeat.training.terms import check_own_term
from offbeat.training.torch_device import torch_device_of
from offbeat.training.trainer import TorchTrainer
from offbeat.training.training_state import TrainingJob, TrainingState

NOTHING_OWN: Mapping[int, DeviceSettings] = MappingProxyType({})
MOST_COUNTS = 200_000
"""Most label counts (devices times labels) that a run writes for reports."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ExperimentParts:
    """The objects that an experiment describes."""

    experiment: Experiment
    dataset: Dataset
    partition: Partition
    choice: ModelChoice
    """The model, with what it takes from the data (the size of the vocabulary)."""
    network: nn.Module
    task: Task
    example: Batch
    """Two training samples, on which the model is tried."""
    trusted: tuple[Samples, Samples] | None = None
    """Samples that the server trains on itself, taken from the test data; None if no rule needs them."""

    @classmethod
    def of(cls, experiment: Experiment) -> "ExperimentParts":
        """Load and build the parts; raises InvalidInput if they do not fit each other."""
        dataset, partition = experiment.load_data()
        dataset, trusted = with_trusted(dataset, experiment.trust.trusted_samples, experiment.seed)
        task = experiment.task.task
        example = example_batch(dataset)
        trial = example_inputs(task, example)
        choice = with_vocabulary(experiment.model.choice, lambda: dataset.tokens)
        network = build(choice, dataset.input_shape, dataset.classes, experiment.seed, trial)
        check_task(task, network, example, dataset.classes)
        check_local_work(experiment, task)
        if experiment.privacy.order_fields:
            check_example_privacy(network, is_pure(network) and task.averages_samples)
        return cls(
            experiment=experiment,
            dataset=dataset,
            partition=partition,
            choice=choice,
            network=network,
            task=task,
            example=example,
            trusted=trusted,
        )

    @property
    def layout(self) -> Layout:
        """The tensors and layers of the flat parameter vector."""
        return layout_of(self.network)

    @property
    def parameters(self) -> Vector:
        """The initial parameters."""
        return vector_of(self.network)

    def factory(self, torch_device: str | None = None, *, secret_noise: bool = False) -> TrainerFactory:
        """The factory of trainers for this experiment, on the torch device of its settings unless another is given."""
        experiment = self.experiment
        settings = trainer_settings(experiment, torch_device or torch_device_of(experiment.execution.device))
        return TrainerFactory.of(self.dataset, self.choice, experiment.seed, secret_noise=secret_noise, **settings)

    def trainer(self, torch_device: str | None = None, *, secret_noise: bool = False) -> TorchTrainer:
        """A trainer of all devices, in this process."""
        return self.factory(torch_device, secret_noise=secret_noise).trainer(
            self.dataset.train_x, self.dataset.train_y, self.partition
        )

    @property
    def trusted_training(self) -> Callable[[Vector, int], Vector] | None:
        """The movement that local training on the trusted samples gives a version; None if there are none."""
        if self.trusted is None:
            return None
        return trusted_movement(self.factory(), self.trusted, self.experiment.local)

    @property
    def device_names(self) -> tuple[str, ...] | None:
        """The names that the data give their devices; None if they give none, or the numbers 0, 1 ... themselves."""
        names = self.partition.names or self.dataset.device_names
        numbers = tuple(str(device) for device in range(self.partition.devices))
        return tuple(names) if len(names) == len(numbers) and tuple(names) != numbers else None

    def fleet(self) -> Fleet:
        """Build the fleet: speeds, links, availability and failures of the devices."""
        experiment = self.experiment
        workload = Workload(
            devices=self.partition.devices,
            samples=self.partition.sizes,
            layers=self.layout.trained_layers,
            flops_per_sample=flops_per_sample(self.network, self.example.x),
            seed=experiment.seed,
            names=self.device_names,
            named_by="[partition]" if self.partition.names else "[data]",
        )
        fleet = Fleet.build(
            workload,
            experiment.fleet.settings,
            experiment.network,
            experiment.availability.settings,
            experiment.failures,
        )
        return with_overrides(fleet, own_settings(experiment, self.partition.devices, fleet.names))

    def fleet_facts(self, fleet: Fleet) -> FleetFacts:
        """What is known of the devices in advance; labels only if no file must be loaded to count them."""
        devices = self.partition.devices
        if devices > MOST_DEVICES:
            return FleetFacts()
        forecast = fleet.forecast(self.layout.bytes)
        facts = FleetFacts(samples=self.partition.sizes.tolist(), names=list(fleet.names or ()))
        if forecast is not None:
            facts.samples_per_second = forecast.speeds.tolist()
            facts.communication_seconds = forecast.communication.tolist()
        if devices * self.dataset.classes <= MOST_COUNTS and not isinstance(self.dataset.train_x, LazyDevices):
            counted = label_counts(self.dataset, self.partition)
            if counted.counts.size <= MOST_COUNTS:
                facts.labels, facts.counts, facts.remark = list(counted.names), counted.counts.tolist(), counted.remark
        return facts


def own_settings(experiment: Experiment, devices: int, names: Sequence[str] | None) -> dict[int, DeviceSettings]:
    """The settings of single devices by number; `names` are the names of all devices, if they have any."""
    numbered: dict[int, DeviceSettings] = {}
    for name, settings in experiment.devices.items():
        number = device_number(name, names or (), devices, f"devices.{name}")
        if number in numbered:
            raise InvalidInput(f"devices.{name}: device {number} has another table too")
        other = "steps" if experiment.local.unit == "epoch" else "epochs"
        if (own := getattr(settings, other)) is not None:
            raise InvalidInput(f"devices.{name}.{other} = {own}: [local] counts in {experiment.local.unit}s")
        numbered[number] = settings
    return numbered


def trainer_settings(experiment: Experiment, torch_device: str) -> dict[str, Any]:
    """The arguments of `TrainerFactory` that an experiment decides."""
    return {
        "task": experiment.task.task,
        "torch_device": torch_device,
        "precision": experiment.execution.precision,
        "batch_statistics": experiment.model.buffers != "average",
    }


def session_of(
    experiment: Experiment,
    network: nn.Module,
    *,
    samples: npt.NDArray[np.int64],
    present: npt.NDArray[np.bool_],
    forecast: Forecast | None,
    secret: bool,
    own: Mapping[int, DeviceSettings] = NOTHING_OWN,
    scratch: Path | None = None,
    trusted: Callable[[Vector, int], Vector] | None = None,
) -> Session:
    """Make the session of an experiment with these devices and this network's parameters.

    `secret` draws the noise of a private run from the operating system: for every run on real data. `scratch`
    is the folder of temporary files (default: the system's).
    """
    privacy, policy = experiment.privacy, experiment.algorithm.policy
    return Session(
        policy,
        parameters=vector_of(network),
        layout=layout_of(network),
        samples=samples,
        local=experiment.local,
        seed=experiment.seed,
        present=present,
        forecast=forecast,
        horizon=experiment.stop.horizon,
        buffers=experiment.model.buffers,
        screen=experiment.trust.screen,
        sums_only=experiment.trust.sums_only,
        trusted=trusted,
        own_work={device: (each.epochs or each.steps, each.batch_size) for device, each in own.items()},
        selector=experiment.selection.selector,
        limits=privacy.limits(policy, experiment.stop.epsilon, experiment.most_epochs),
        order_fields=privacy.order_fields,
        combiner=privacy.combiner(policy, secret=secret) or experiment.trust.combiner,
        store=VectorFile(scratch),
    )


def with_trusted(dataset: Dataset, samples: int, seed: int) -> tuple[Dataset, tuple[Samples, Samples] | None]:
    """Take trusted samples from the test data: the data without them, and they, or None if there are none."""
    if not samples:
        return dataset, None
    theirs, kept = trusted_split(count(dataset.test_y), samples, seed)
    owned = dataset.test_devices
    if owned is not None:
        owned = tuple(np.flatnonzero(np.isin(kept, own)) for own in owned)
    rest = replace(dataset, test_x=taken(dataset.test_x, kept), test_y=taken(dataset.test_y, kept), test_devices=owned)
    return rest, (taken(dataset.test_x, theirs), taken(dataset.test_y, theirs))


def trusted_split(number: int, samples: int, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The positions of the trusted samples among this number of test samples, and of the others."""
    if samples >= number:
        raise InvalidInput(f"trust.trusted_samples = {samples}: there are only {number} test samples")
    drawn = stream(seed, "trusted samples").permutation(number)
    return np.sort(drawn[:samples]), np.sort(drawn[samples:])


def trusted_movement(
    factory: TrainerFactory, trusted: tuple[Samples, Samples], local: LocalWork
) -> Callable[[Vector, int], Vector]:
    """The movement that local training on these samples gives a version."""
    trainer = factory.trainer(*trusted, Partition.of([np.arange(count(trusted[1]))]))

    def movement(parameters: Vector, version: int) -> Vector:
        order = local.order(local.moment(version=version, updates=0, time=0.0))
        state = TrainingState(parameters=parameters)
        job = TrainingJob(
            device=0, ticket=version, order=order, first=0, last=order.slices, state=state, anchor=parameters
        )
        return trainer.train(job).parameters - parameters

    return movement


def check_local_work(experiment: Experiment, task: Task) -> None:
    """Raise InvalidInput if the optimiser or a loss term cannot be used with this task."""
    check_optimiser(experiment.local.order(0))
    for term in experiment.local.loss_terms:
        if isinstance(term, OwnTerm):
            check_own_term(term.name, term.settings)
        if isinstance(term, AbsentClasses) and not isinstance(task, Classification):
            raise InvalidInput("local.terms: absent-classes needs the task classification.")
        if isinstance(term, Distillation) and not isinstance(task, Classification | TokenSequence):
            raise InvalidInput("local.terms: distillation needs the task classification or sequence.")
        if isinstance(term, Contrastive) and isinstance(task, TokenSequence):
            raise InvalidInput("local.terms: contrastive needs one representation per sample, not per token.")
