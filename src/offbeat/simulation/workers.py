"""Worker processes: one per core, each with the model and the data, fed with jobs over pipes.

They are started once and live as long as the run. Inputs lie in files that all of them map, so that memory does not
grow with their number. Which worker computes a job makes no difference to its numbers.
"""

import multiprocessing
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import OffbeatError
from offbeat.data import Partition
from offbeat.device.trainer import TorchTrainer
from offbeat.device.training_state import TrainingJob, TrainingState
from offbeat.models import Layers, build
from offbeat.simulation.in_process import STACK, Arithmetic, InProcessTrainer

JOBS_PER_WORKER = 6
"""Enough that the workers end a batch at nearly the same time."""


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """What a worker needs to make its trainer: names and paths, no objects."""

    model: str
    layers: Layers
    input_shape: tuple[int, ...]
    classes: int
    seed: int
    arithmetic: Arithmetic
    folder: str

    FILES: ClassVar = ("x", "y", "indices", "offsets")

    def trainer(self) -> TorchTrainer:
        x, y, indices, offsets = (np.load(Path(self.folder) / f"{name}.npy", mmap_mode="r") for name in self.FILES)
        partition = Partition(indices=indices, offsets=offsets)
        network = build(self.model, self.input_shape, self.classes, self.seed, self.layers)
        return TorchTrainer(network, x, y, partition, self.seed)


def work(bench: WorkerSetup, pipe: Connection) -> None:
    """The life of a worker: train what comes, answer with the numbers or with what went wrong, end with the pipe."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides when to stop, and the pipe ends with it
    training = InProcessTrainer(bench.trainer(), bench.arithmetic)
    with suppress(EOFError, BrokenPipeError):
        while True:
            jobs: list[TrainingJob] = pipe.recv()
            try:
                pipe.send(training.train(jobs))
            except Exception as error:
                pipe.send(f"{type(error).__name__}: {error}")


class WorkerPool:
    """Trains batches of jobs in worker processes."""

    def __init__(
        self,
        workers: int,
        x: npt.NDArray[np.float32],
        y: npt.NDArray[np.int64],
        partition: Partition,
        *,
        model: str,
        layers: Layers,
        classes: int,
        seed: int,
        arithmetic: Arithmetic,
        stacks: bool,
    ) -> None:
        self._sizes = partition.sizes
        self._stacks = stacks
        self._folder = tempfile.TemporaryDirectory(prefix="offbeat-")
        arrays: tuple[npt.NDArray[Any], ...] = (x, y, partition.indices, partition.offsets)
        for name, array in zip(WorkerSetup.FILES, arrays, strict=True):
            np.save(Path(self._folder.name) / f"{name}.npy", array)
        bench = WorkerSetup(
            model=model,
            layers=layers,
            input_shape=x.shape[1:],
            classes=classes,
            seed=seed,
            arithmetic=arithmetic,
            folder=self._folder.name,
        )
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(bench, theirs), name=f"offbeat-{number}", daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    @property
    def batch_capacity(self) -> int:
        return len(self._pipes) * (STACK if self._stacks else JOBS_PER_WORKER)

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        """The works in the order of the jobs. Each worker takes the next portion as soon as it is free."""
        works: dict[int, TrainingState] = {}
        portions = self._portions(jobs)
        at_work: dict[Connection, list[int]] = {}
        for pipe in self._pipes:
            self._feed(pipe, portions, jobs, at_work)
        while at_work:
            for ready in wait(list(at_work)):
                pipe = next(each for each in at_work if each is ready)
                portion = at_work.pop(pipe)
                works.update(zip(portion, self._receive(pipe), strict=True))
                self._feed(pipe, portions, jobs, at_work)
        return [works[number] for number in range(len(jobs))]

    def _portions(self, jobs: Sequence[TrainingJob]) -> Iterator[list[int]]:
        """Job numbers, the most expensive first: singly, or where clients are stacked in one share for each worker."""
        cost = [int(self._sizes[job.device]) * (job.last - job.first) for job in jobs]
        order = sorted(range(len(jobs)), key=lambda number: (-cost[number], number))
        if not self._stacks:
            return iter([number] for number in order)
        return iter([order[first :: len(self._pipes)] for first in range(min(len(self._pipes), len(jobs)))])

    def _feed(
        self,
        pipe: Connection,
        portions: Iterator[list[int]],
        jobs: Sequence[TrainingJob],
        at_work: dict[Connection, list[int]],
    ) -> None:
        portion = next(portions, None)
        if portion is not None:
            at_work[pipe] = portion
            with suppress(BrokenPipeError):  # the worker died: receiving says so
                pipe.send([jobs[number] for number in portion])

    def _receive(self, pipe: Connection) -> list[TrainingState]:
        try:
            answer = pipe.recv()
        except EOFError:
            raise OffbeatError("a worker process ended unexpectedly: is there enough memory?") from None
        if isinstance(answer, str):
            raise OffbeatError(f"a worker process failed: {answer}")
        return list(answer)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()
