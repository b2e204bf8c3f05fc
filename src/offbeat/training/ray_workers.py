"""Workers on a Ray cluster: one actor for each core or GPU share, with the model and the data.

A version of the model is put into Ray's object store once, copied to each machine once, and dropped when this process
no longer refers to it. An actor that dies, alone or with its machine, is replaced wherever resources are free.
"""

import pickle
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
from msgspec import structs

from offbeat.core.errors import InvalidInput, WorkersLost
from offbeat.core.parameters import Vector
from offbeat.training.execution import ExecutionTable
from offbeat.training.factory import TrainerFactory
from offbeat.training.ray_cluster import RayCluster
from offbeat.training.torch_device import processor_kind
from offbeat.training.training_state import TrainingJob, TrainingState
from offbeat.training.worker import Array, Trained, TrainingData, Worker, WorkerSetup
from offbeat.training.workers import ATTEMPTS, ChunkResult

POLL_SECONDS = 1.0
LEFT_OUT: Vector = np.zeros(0, dtype=np.float32)
"""Placeholder for a version that is sent by reference."""


@dataclass(frozen=True)
class SharedArray:
    """An array in Ray's object store, of which the workers of a machine share one copy."""

    reference: Any

    def read(self) -> Array:
        """The array, mapped from the object store of this machine."""
        import ray

        array: Array = ray.get(self.reference)
        return array


class TrainingActor:
    """A worker as an actor of Ray."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._torch_device = setup.factory.torch_device
        self._worker = Worker(setup)

    def kind(self) -> str:
        """The kind of processor; returns once the worker is ready."""
        return processor_kind(self._torch_device)

    def train(self, jobs: Sequence[TrainingJob], *anchors: Vector) -> Trained | str:
        """Carry out the jobs, whose versions are separate arguments."""
        return self._worker.train([_put_back(job, anchor) for job, anchor in zip(jobs, anchors, strict=True)])


@dataclass(eq=False)
class ActorAtWork:
    """An actor, whether it is ready, and its chunks in progress."""

    handle: Any
    ready: bool = False
    chunks: list[int] = field(default_factory=list)


class RayWorkers:
    """Actors that compute chunks of jobs, one at a time each."""

    def __init__(self, execution: ExecutionTable, data: TrainingData, factory: TrainerFactory) -> None:
        self._cluster = RayCluster(execution)
        self._ray = ray = self._cluster.ray
        self._timeout = execution.cluster_timeout
        try:
            self._setup = ray.put(
                WorkerSetup.of(factory, "sequential", data, lambda array: SharedArray(ray.put(array)))
            )
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self._cluster.close()
            raise InvalidInput(
                f"execution.executor = 'ray': the task or the data cannot be sent to workers ({error}): define them in "
                "a module that every machine of the cluster can import"
            ) from None
        self._actor = ray.remote(TrainingActor).options(max_restarts=0, max_task_retries=0, **self._cluster.resources)
        self._count = self._cluster.workers()
        self._versions: dict[int, Any] = {}
        """References to versions in the object store, by the identity of the vector."""
        self._waiting: dict[Any, tuple[ActorAtWork, int | None]] = {}
        """The actor and chunk of each expected result; chunk None: that the actor is ready."""
        self._actors: list[ActorAtWork] = []
        self._failed_starts = 0
        self._seen = monotonic()
        """When an actor was last ready (monotonic clock)."""
        self.processors: set[str] = set()
        """The kinds of processors of all workers so far."""
        for _ in range(self._count):
            self._start()

    def _start(self) -> None:
        actor = ActorAtWork(self._actor.remote(self._setup))
        self._actors.append(actor)
        self._waiting[actor.handle.kind.remote()] = (actor, None)

    @property
    def count(self) -> int:
        """Number of workers when all are running."""
        return self._count

    def give(self, chunk: int, jobs: Sequence[TrainingJob], *, ahead: bool) -> bool:
        """Give a chunk to an idle actor or, with `ahead`, to one that has only one chunk; False if there is none."""
        able = [actor for actor in self._actors if actor.ready and len(actor.chunks) <= ahead]
        if not able:
            return False
        actor = min(able, key=lambda each: len(each.chunks))
        anchors = [self._reference(job.anchor) for job in jobs]
        answer = actor.handle.train.remote([_leave_out(job) for job in jobs], *anchors)
        actor.chunks.append(chunk)
        self._waiting[answer] = (actor, chunk)
        return True

    def _reference(self, version: Vector) -> Any:
        known = self._versions.get(id(version))
        if known is None:
            known = self._versions[id(version)] = self._ray.put(version)
            weakref.finalize(version, self._versions.pop, id(version), None).atexit = False
        return known

    def take(self, queued: int) -> list[ChunkResult]:
        """Wait until chunks are done or lost, or an actor is ready."""
        while True:
            self._cluster.report(sum(actor.ready for actor in self._actors), queued)
            ready, others = self._ray.wait(list(self._waiting), timeout=POLL_SECONDS)
            if ready:
                ready += self._ray.wait(others, num_returns=len(others), timeout=0)[0] if others else []
                return [answer for each in ready for answer in self._take(each)]
            if any(actor.ready for actor in self._actors):
                self._seen = monotonic()
            elif monotonic() - self._seen > self._timeout:
                if not self._cluster.is_busy():
                    raise self._cluster.no_worker()
                self._seen = monotonic()

    def _take(self, answer: Any) -> list[ChunkResult]:
        if answer not in self._waiting:
            return []  # of an actor that was replaced just now
        actor, chunk = self._waiting.pop(answer)
        try:
            result = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            if actor.ready and isinstance(error, self._ray.exceptions.RayTaskError):
                return [ChunkResult(each, _last_line(error)) for each in actor.chunks]
            return self._replace(actor, error)  # the actor, its machine or the result is lost
        self._seen = monotonic()
        if chunk is None:
            actor.ready, self._failed_starts = True, 0
            self.processors.add(result)
            return []
        actor.chunks.remove(chunk)
        return [ChunkResult(chunk, result if isinstance(result, str) else _owned(result))]

    def _replace(self, actor: ActorAtWork, error: Exception) -> list[ChunkResult]:
        """Replace an actor that is lost, together with its chunks."""
        if actor.ready:
            self._seen = monotonic()
        else:
            self._failed_starts += 1
        if self._failed_starts == ATTEMPTS * self._count:
            raise WorkersLost(f"no worker starts on the Ray cluster: {_last_line(error)}")
        self._actors.remove(actor)
        self._waiting = {each: whose for each, whose in self._waiting.items() if whose[0] is not actor}
        self._ray.kill(actor.handle)  # it may be alive, with only its result lost
        self._start()
        return [ChunkResult(chunk, None) for chunk in actor.chunks]

    def close(self) -> None:
        """End the actors and disconnect."""
        for actor in self._actors:
            self._ray.kill(actor.handle)
        self._versions.clear()
        self._cluster.close()


def _leave_out(job: TrainingJob) -> TrainingJob:
    """The job without its version, which is sent by reference."""
    state = job.state
    if state.parameters is job.anchor:
        state = structs.replace(state, parameters=LEFT_OUT)
    return structs.replace(job, anchor=LEFT_OUT, state=state)


def _put_back(job: TrainingJob, anchor: Vector) -> TrainingJob:
    state = job.state if job.state.parameters.size else structs.replace(job.state, parameters=anchor)
    return structs.replace(job, anchor=anchor, state=state)


def _owned(trained: Trained) -> Trained:
    """Copies of the states: views would keep the object store full as long as a policy holds them."""

    def own(vector: Vector | None) -> Any:
        return None if vector is None else vector.copy()

    def of(state: TrainingState) -> TrainingState:
        return structs.replace(
            state,
            parameters=state.parameters.copy(),
            momentum=own(state.momentum),
            optimiser={name: vector.copy() for name, vector in state.optimiser.items()},
            buffers=own(state.buffers),
            start=None if state.start is None else of(state.start),
        )

    return Trained(states=[of(state) for state in trained.states], seconds=trained.seconds)


def _last_line(error: Exception) -> str:
    return str(error).strip().rpartition("\n")[2].strip()
