"""Executors train batches of jobs and evaluate models, whichever process or machine computes.

Trained one by one, jobs give the same bits in every executor; stacked, they agree within float tolerance (about 1e-5
relative per epoch).
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import json, structs

from offbeat.core.errors import InvalidInput
from offbeat.core.parameters import Vector
from offbeat.data import Dataset, Partition
from offbeat.data.samples import Indices, LazyDevices, taken
from offbeat.models import is_pure
from offbeat.training.execution import ExecutionTable
from offbeat.training.factory import TrainerFactory
from offbeat.training.ray_workers import RayWorkers
from offbeat.training.stacked import Arithmetic, InProcessTrainer, stacking_pays
from offbeat.training.tasks import BUILT_IN
from offbeat.training.torch_device import processor_kind
from offbeat.training.trainer import TorchTrainer
from offbeat.training.training_state import Evaluation, TrainingJob, TrainingState
from offbeat.training.worker import TrainingData
from offbeat.training.workers import LocalWorkers, WorkerPool

CACHE_BYTES = 384 * 2**20


class JobTrainer(Protocol):
    """Trains batches of jobs: `InProcessTrainer` in this process, `WorkerPool` in others."""

    @property
    def batch_capacity(self) -> int:
        """Jobs per batch that keep it busy; more would only be computed earlier than needed."""
        ...

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        """Carry out the jobs and return their states in the same order."""
        ...

    def close(self) -> None:
        """End worker processes, if there are any."""
        ...


class Executor(JobTrainer, Protocol):
    """What the simulator needs: training in batches, evaluation, and the gradient that a device's merge may ask for."""

    def evaluate(self, parameters: Vector) -> Evaluation:
        """Loss and metrics of the parameters on the test data."""
        ...

    def loss_and_gradient(
        self, parameters: Vector, device: int, ticket: int, number: int, batch_size: int | None
    ) -> tuple[float, Vector]:
        """Loss and gradient of the parameters on one batch of a device's data."""
        ...


class StateCache:
    """Training states by key, limited in bytes; evicts the least recently used."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._states: OrderedDict[bytes, TrainingState] = OrderedDict()
        self._limit = limit
        self._bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: bytes) -> TrainingState | None:
        """The state under this key, or None."""
        state = self._states.get(key)
        if state is None:
            self.misses += 1
        else:
            self.hits += 1
            self._states.move_to_end(key)
        return state

    def put(self, key: bytes, state: TrainingState) -> None:
        """Add a state, and evict others until the limit holds."""
        self._states[key] = state
        self._bytes += _size(state)
        while self._bytes > self._limit and self._states:
            self._bytes -= _size(self._states.popitem(last=False)[1])


SHARED = StateCache()
"""The cache of this process. Its keys are contents, so that consecutive runs share it."""


class FullBatchCache:
    """Computes full-batch jobs once for all devices and runs of a process, where that is exact.

    A full batch is not shuffled. The result of a pure network (`models.flat.is_pure`) then depends on the parameters it
    starts from, on the samples and on the order: not on device, ticket or run. Mini-batches, which are shuffled by
    device and ticket, are always computed.
    """

    def __init__(self, dataset: Dataset, partition: Partition, setting: str, states: StateCache) -> None:
        self._dataset = dataset
        self._partition = partition
        self._setting = setting
        self._states = states
        self._samples: dict[int, bytes] = {}

    def train(
        self, jobs: Sequence[TrainingJob], train: Callable[[Sequence[TrainingJob]], list[TrainingState]]
    ) -> list[TrainingState]:
        """The jobs' states in the same order; those that are not cached come from `train`."""
        keys = [self._key(job) if _begins_full_batch(job) else None for job in jobs]
        if not any(keys):
            return train(jobs)
        states = [None if key is None else self._states.get(key) for key in keys]
        missing: dict[bytes | int, TrainingJob] = {}
        for position, (key, state, job) in enumerate(zip(keys, states, jobs, strict=True)):
            if state is None:
                missing.setdefault(key or position, job)
        computed = dict(zip(missing, train(list(missing.values())) if missing else [], strict=True))
        for name, state in computed.items():
            if isinstance(name, bytes):
                self._states.put(name, state)
        return [
            state or computed[key or position] for position, (key, state) in enumerate(zip(keys, states, strict=True))
        ]

    def _key(self, job: TrainingJob) -> bytes:
        """A digest of everything that the numbers depend on."""
        if job.device not in self._samples:
            self._samples[job.device] = _digest(self._partition.samples(job.device))
        order = json.encode(structs.asdict(job.order) | {"slices": job.last})
        return _digest(self._common, self._samples[job.device], order, job.state.parameters)

    @cached_property
    def _common(self) -> bytes:
        """The part that all keys share, made only when a full batch is trained."""
        return _digest(self._setting.encode(), self._dataset.train_x, self._dataset.train_y)


def _begins_full_batch(job: TrainingJob) -> bool:
    first = job.first == 0 and job.state.steps == 0 and job.state.momentum is None
    full = job.order.batch_size is None and job.order.unit != "layer"
    return full and first and job.whole and not job.order.remembers and job.anchor is job.state.parameters


def _digest(*parts: bytes | npt.NDArray[Any]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).data)
    return digest.digest()


def _size(state: TrainingState) -> int:
    kept = sum(vector.nbytes for vector in state.optimiser.values())
    return state.parameters.nbytes + kept + (0 if state.momentum is None else state.momentum.nbytes)


class TorchExecutor:
    """Trains jobs with a `JobTrainer` and evaluates in this process."""

    def __init__(
        self,
        trainer: TorchTrainer,
        dataset: Dataset,
        jobs: JobTrainer,
        *,
        cache: FullBatchCache | None = None,
        held: Indices | None = None,
        processors: Callable[[], set[str]],
    ) -> None:
        self._trainer = trainer
        self._dataset = dataset
        self._jobs = jobs
        self._cache = cache
        self._held = held
        """The training samples over which evaluations report a loss, if they do."""
        self.processors = processors
        """Returns the kinds of processors that have computed so far."""
        self.batch_capacity = jobs.batch_capacity

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        """Carry out the jobs and return their states in the same order."""
        return self._jobs.train(jobs) if self._cache is None else self._cache.train(jobs, self._jobs.train)

    def evaluate(self, parameters: Vector) -> Evaluation:
        """Loss and metrics on the test data and, if the executor was made so, the loss on the devices' data."""
        evaluation = self._trainer.evaluate(parameters, self._dataset.test_x, self._dataset.test_y)
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
        self._jobs.close()


def torch_executor(
    factory: TrainerFactory,
    dataset: Dataset,
    partition: Partition,
    *,
    arithmetic: Arithmetic,
    workers: int = 0,
    cluster: ExecutionTable | None = None,
    batch_size: int | None = None,
    training_loss: bool = False,
) -> TorchExecutor:
    """An executor that trains in worker processes, on a Ray cluster or, with neither, in this process.

    `batch_size`, the most common one of the orders, decides whether stacking is worth it.
    """
    if training_loss and isinstance(dataset.train_x, LazyDevices):
        raise InvalidInput(
            "evaluation.training_loss = true: these data are loaded device by device and cannot be evaluated at once"
        )
    trainer = factory.trainer(dataset.train_x, dataset.train_y, partition)
    if arithmetic == "auto" and not stacking_pays(trainer, batch_size):
        arithmetic = "sequential"
    local = InProcessTrainer(trainer, arithmetic)
    jobs: JobTrainer = local
    here = {processor_kind(factory.torch_device)}
    processors = lambda: here  # noqa: E731
    data = TrainingData(x=dataset.train_x, y=dataset.train_y, partition=partition)
    if cluster is not None:
        actors = RayWorkers(
            cluster, data, replace(factory, torch_device="cuda") if cluster.gpus_per_worker else factory
        )
        processors = lambda: actors.processors | (set() if cluster.gpus_per_worker else here)  # noqa: E731
        jobs = WorkerPool(actors, partition.sizes, stacks=False)
    elif workers:
        jobs = WorkerPool(LocalWorkers(workers, data, factory, arithmetic), partition.sizes, stacks=local.stacks)
    cache = None
    exact = is_pure(trainer.model) and type(factory.task) in BUILT_IN and trainer.batches.is_plain
    if (
        exact and factory.cache_key is not None and not local.stacks
    ):  # stacked results depend on the batch, in the last bits
        setting = (
            factory.cache_key,
            factory.task,
            factory.torch_device,
            factory.precision,
            trainer.batches.standardisation,
        )
        cache = FullBatchCache(dataset, partition, repr(setting), SHARED)
    held = np.unique(partition.indices) if training_loss else None
    return TorchExecutor(trainer, dataset, jobs, cache=cache, held=held, processors=processors)
