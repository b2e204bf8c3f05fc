"""Executors: who computes a batch of local training. All give the same numbers, bit for bit where jobs are trained
one by one, and within float tolerance (about 1e-5 relative per epoch) where clients are stacked.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
from msgspec import structs

from offbeat.core.errors import InvalidInput
from offbeat.core.parameters import Vector
from offbeat.data import Dataset, Partition
from offbeat.data.samples import LazyDevices, Samples, taken
from offbeat.models import ModelChoice, is_pure
from offbeat.training.execution import ExecutionTable
from offbeat.training.factory import TrainerSetup
from offbeat.training.in_process import Arithmetic, InProcessTrainer
from offbeat.training.local_workers import LocalWorkers
from offbeat.training.memo import SHARED, JobTrainer, MemoTrainer
from offbeat.training.ray_workers import RayWorkers
from offbeat.training.stacked import stacking_pays
from offbeat.training.tasks import BUILT_IN, CLASSIFICATION, Task
from offbeat.training.torch_device import processor_kind
from offbeat.training.trainer import Precision, TorchTrainer
from offbeat.training.training_state import Evaluation, TrainingJob, TrainingState
from offbeat.training.worker_setup import TrainingData
from offbeat.training.workers import WorkerPool


class Executor(Protocol):
    """What the simulator needs: training in batches, evaluation, and the gradient that a device's merge may ask for."""

    @property
    def batch_capacity(self) -> int:
        """How many jobs at a time keep it busy. More than that would only be computed earlier than needed."""
        ...

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        """Carry out the jobs, and return their states in the same order."""
        ...

    def evaluate(self, parameters: Vector) -> Evaluation:
        """Loss and metrics of the parameters on the test data."""
        ...

    def loss_and_gradient(
        self, parameters: Vector, device: int, ticket: int, number: int, batch_size: int | None
    ) -> tuple[float, Vector]:
        """Loss and gradient of the parameters on one batch of a device's data."""
        ...

    def close(self) -> None:
        """End worker processes, if there are any."""
        ...


class TorchExecutor:
    """Trains in this process or, given a pool, in others; evaluates in this one."""

    def __init__(
        self,
        trainer: TorchTrainer,
        test_x: Samples,
        test_y: Samples,
        training: JobTrainer,
        held: npt.NDArray[np.int64] | None = None,
        processors: Callable[[], set[str]] = lambda: {processor_kind()},
    ) -> None:
        self._trainer = trainer
        self._test = (test_x, test_y)
        self._training = training
        self._held = held
        """The training samples over which the loss is wanted, if it is."""
        self.processors = processors
        """The kinds of processors that have computed so far."""

    @property
    def batch_capacity(self) -> int:
        """How many jobs at a time keep it busy."""
        return self._training.batch_capacity

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        """Carry out the jobs, and return their states in the same order."""
        return self._training.train(jobs)

    def evaluate(self, parameters: Vector) -> Evaluation:
        """Loss and metrics on the test data and, if asked for, the loss on the data that devices hold."""
        evaluation = self._trainer.evaluate(parameters, *self._test)
        if self._held is None:
            return evaluation
        batches = self._trainer.batches
        own = self._trainer.evaluate(parameters, taken(batches.x, self._held), taken(batches.y, self._held))
        return structs.replace(evaluation, training_loss=own.loss)

    def loss_and_gradient(
        self, parameters: Vector, device: int, ticket: int, number: int, batch_size: int | None
    ) -> tuple[float, Vector]:
        """Loss and gradient of the parameters on one batch of a device's data."""
        return self._trainer.loss_and_gradient(parameters, device, ticket, number, batch_size)

    def close(self) -> None:
        """End worker processes, if there are any."""
        self._training.close()


def torch_executor(
    dataset: Dataset,
    partition: Partition,
    *,
    model: str | ModelChoice,
    seed: int,
    arithmetic: Arithmetic,
    workers: int,
    training_loss: bool = False,
    task: Task = CLASSIFICATION,
    torch_device: str = "cpu",
    precision: Precision = "float32",
    batch_statistics: bool = False,
    batch_size: int | None = None,
    cluster: ExecutionTable | None = None,
) -> TorchExecutor:
    """An executor for this model, data and task; with no workers and no cluster it trains in this process.

    The batch size, if it is known, helps to decide whether clients are stacked; other orders are carried out all the
    same.
    """
    choice = ModelChoice(name=model) if isinstance(model, str) else model
    lazy = isinstance(dataset.train_x, LazyDevices)
    if training_loss and lazy:
        raise InvalidInput("evaluation.training_loss: the data are loaded device by device, all at once is too much")
    held = np.unique(partition.indices) if training_loss else None
    setup = TrainerSetup.of(
        dataset,
        model=choice,
        seed=seed,
        task=task,
        torch_device=torch_device,
        precision=precision,
        batch_statistics=batch_statistics,
    )
    trainer = setup.trainer(dataset.train_x, dataset.train_y, partition)
    if arithmetic == "auto" and not stacking_pays(trainer, batch_size):
        arithmetic = "sequential"
    local = InProcessTrainer(trainer, arithmetic)
    training: JobTrainer = local
    here = {processor_kind(torch_device)}
    processors = lambda: here  # noqa: E731
    data = TrainingData(x=dataset.train_x, y=dataset.train_y, partition=partition)
    if cluster is not None:
        there = replace(setup, torch_device="cuda") if cluster.gpus_per_worker else setup
        actors = RayWorkers(cluster, data, there)
        processors = lambda: actors.processors | (set() if cluster.gpus_per_worker else here)  # noqa: E731
        training = WorkerPool(actors, partition.sizes, stacks=False)
    elif workers:
        training = WorkerPool(LocalWorkers(workers, data, setup, arithmetic), partition.sizes, stacks=local.stacks)
    memorable = is_pure(trainer.model) and type(task) in BUILT_IN and trainer.batches.is_plain
    if memorable and not local.stacks:
        words = f"{choice!r} {task!r} {torch_device} {precision} {trainer.batches.standardisation!r}"
        training = MemoTrainer(training, dataset, partition, model=words, memo=SHARED)
    return TorchExecutor(trainer, dataset.test_x, dataset.test_y, training, held, processors)
