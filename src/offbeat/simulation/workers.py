"""Worker processes: one per core, each with the model and the data, fed with jobs over pipes.

They are started once and live as long as the run. Inputs lie in files that all of them map, so that memory does not
grow with their number. Which worker computes a job makes no difference to its numbers.
"""

import multiprocessing
import pickle  # for processes of our own on this machine; nothing is ever read back from a file
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import InvalidInput, OffbeatError
from offbeat.core.samples import LazyDevices, Ragged, Samples, each_array
from offbeat.data import Partition
from offbeat.device.training_state import TrainingJob, TrainingState
from offbeat.simulation.in_process import STACK, Arithmetic, InProcessTrainer
from offbeat.simulation.setup import TrainerSetup

JOBS_PER_WORKER = 6
"""Enough that the workers end a batch at nearly the same time."""


@dataclass(frozen=True)
class StoredArray:
    """An array in a file that all workers map, in place of the array."""

    path: str

    def read(self) -> npt.NDArray[Any]:
        """The array, mapped from its file."""
        array: npt.NDArray[Any] = np.load(self.path, mmap_mode="r")
        return array


@dataclass(frozen=True)
class StoredRows:
    """Rows of different lengths in such files."""

    values: StoredArray
    offsets: StoredArray
    padding: float

    def read(self) -> Ragged:
        """The rows, mapped from their files."""
        return Ragged(self.values.read(), self.offsets.read(), self.padding)


def store(array: npt.NDArray[Any], folder: Path) -> StoredArray:
    """Write an array into the folder, unless it is a mapped file already."""
    if isinstance(array, np.memmap) and str(array.filename).endswith(".npy") and array.base is not None:
        return StoredArray(str(array.filename))
    path = folder / f"{len(list(folder.iterdir()))}.npy"
    np.save(path, array)
    return StoredArray(str(path))


def stored(samples: Samples, folder: Path) -> Any:
    """The samples with files in place of arrays; data that are loaded device by device are loaded by each worker."""

    def one(part: Any) -> Any:
        if isinstance(part, Ragged):
            return StoredRows(store(part.values, folder), store(part.offsets, folder), part.padding)
        return store(part, folder) if isinstance(part, np.ndarray) else part

    return each_array(one, samples)


def read_back(samples: Any) -> Samples:
    """What `stored` has stored."""
    return each_array(lambda part: part.read() if isinstance(part, StoredArray | StoredRows) else part, samples)


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """What a worker needs to make its trainer."""

    trainer: TrainerSetup
    arithmetic: Arithmetic
    x: Any
    y: Any
    indices: StoredArray
    offsets: StoredArray

    def make(self) -> InProcessTrainer:
        """The trainer of a worker process."""
        partition = Partition(indices=self.indices.read(), offsets=self.offsets.read())
        return InProcessTrainer(self.trainer.trainer(read_back(self.x), read_back(self.y), partition), self.arithmetic)


def work(bench: WorkerSetup, pipe: Connection) -> None:
    """The life of a worker: train what comes, answer with the numbers or with what went wrong, end with the pipe."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides when to stop, and the pipe ends with it
    training = bench.make()
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
        x: Samples | LazyDevices,
        y: Samples | None,
        partition: Partition,
        *,
        setup: TrainerSetup,
        arithmetic: Arithmetic,
        stacks: bool,
    ) -> None:
        self._sizes = partition.sizes
        self._stacks = stacks
        self._folder = tempfile.TemporaryDirectory(prefix="offbeat-")
        folder = Path(self._folder.name)
        bench = WorkerSetup(
            trainer=setup,
            arithmetic=arithmetic,
            x=stored(x, folder),
            y=stored(y, folder),
            indices=store(partition.indices, folder),
            offsets=store(partition.offsets, folder),
        )
        try:
            pickle.dumps(bench)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self._folder.cleanup()
            raise InvalidInput(
                f"execution.workers = {workers}: worker processes cannot be sent the task or the data ({error}): "
                "define them in a module, or train with one worker."
            ) from None
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
        """How many jobs at a time keep it busy."""
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
        """End the worker processes and remove their files."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()
