"""The worker pool, which trains batches of jobs in parallel, and its workers on this machine.

The pool hands out the longest jobs first and repeats those that are lost with a worker. Workers are processes of this
machine (`LocalWorkers`) or actors of a Ray cluster (`ray_workers`); either computes the same numbers.
"""

import pickle  # for processes of our own on this machine; nothing is ever read back from a file
import signal
import tempfile
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from offbeat.core.errors import InvalidInput, OffbeatError, WorkersLost
from offbeat.training.factory import TrainerFactory
from offbeat.training.processes import process_context
from offbeat.training.stacked import STACK, Arithmetic
from offbeat.training.training_state import TrainingJob, TrainingState
from offbeat.training.worker import Trained, TrainingData, Worker, WorkerSetup, store_in

JOBS_PER_WORKER = 6
"""Enough that the workers end a batch at nearly the same time."""

ATTEMPTS = 3
"""Work that ends so many workers would end all others too."""


class ChunkResult(Struct, frozen=True, eq=False):
    """What became of a chunk: what a worker made of it, a sentence on what went wrong, or None if it was lost."""

    chunk: int
    result: Trained | str | None


class Workers(Protocol):
    """Whoever computes chunks of jobs. A worker that is lost is started anew, as soon as that is possible."""

    @property
    def count(self) -> int:
        """How many there are when all of them are well."""
        ...

    def give(self, chunk: int, jobs: Sequence[TrainingJob], *, ahead: bool) -> bool:
        """Hand a chunk to a worker that has nothing to do or, `ahead`, only one other chunk; False if none can."""
        ...

    def take(self, queued: int) -> list[ChunkResult]:
        """Wait until something has become of chunks, and say what; `queued` are the jobs that nobody has yet."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class MeasuredCost:
    """How long a job will take: by what its device took before, or else by its samples and what others took."""

    def __init__(self, sizes: npt.NDArray[np.int64]) -> None:
        self._sizes = sizes
        self._slice_seconds: dict[int, float] = {}
        self._seconds = self._samples = 0.0

    def of(self, job: TrainingJob) -> float:
        """Seconds, or a number of samples as long as nothing was measured."""
        per_slice = self._slice_seconds.get(job.device)
        if per_slice is None:
            rate = self._seconds / self._samples if self._samples else 1.0
            per_slice = rate * float(self._sizes[job.device])
        return per_slice * job.slices

    def measured(self, job: TrainingJob, seconds: float) -> None:
        """Learn from a job that was computed."""
        slices = job.slices
        self._slice_seconds[job.device] = seconds / slices
        self._seconds += seconds
        self._samples += float(self._sizes[job.device]) * slices


class WorkerPool:
    """Trains batches of jobs with the help of workers."""

    def __init__(self, workers: Workers, sizes: npt.NDArray[np.int64], *, stacks: bool) -> None:
        self._workers = workers
        self._sizes = sizes
        self._cost = MeasuredCost(sizes)
        self._stacks = stacks
        self._numbers = count()

    @property
    def batch_capacity(self) -> int:
        """How many jobs at a time keep it busy."""
        return self._workers.count * (STACK if self._stacks else JOBS_PER_WORKER)

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        """The states in the order of the jobs. Each worker takes the next chunk as soon as it is free."""
        workers, states = self._workers, dict[int, TrainingState]()
        chunks = dict(zip(self._numbers, self._chunks(jobs)))  # noqa: B905 (the numbers go on for ever)
        waiting, attempts = deque(chunks), Counter[int]()
        while len(states) < len(jobs):
            while waiting and workers.give(
                waiting[0], [jobs[position] for position in chunks[waiting[0]]], ahead=len(waiting) > workers.count
            ):
                waiting.popleft()
            for answer in workers.take(sum(len(chunks[number]) for number in waiting)):
                positions = chunks.get(answer.chunk)
                if positions is None:
                    continue  # of a batch that was broken off
                if isinstance(answer.result, str):
                    raise OffbeatError(f"a worker failed: {answer.result}")
                if answer.result is None:
                    attempts[answer.chunk] += 1
                    if attempts[answer.chunk] == ATTEMPTS:
                        raise WorkersLost(
                            f"{ATTEMPTS} workers ended unexpectedly one after the other: is there enough memory, and "
                            'is what your script runs under `if __name__ == "__main__":`?'
                        )
                    waiting.appendleft(answer.chunk)
                    continue
                states.update(zip(positions, answer.result.states, strict=True))
                if len(positions) == 1:
                    self._cost.measured(jobs[positions[0]], answer.result.seconds)
        return [states[position] for position in range(len(jobs))]

    def _chunks(self, jobs: Sequence[TrainingJob]) -> list[list[int]]:
        """Positions of jobs, most expensive first: singly, or in one share per worker where clients are stacked.

        Who is in a stack decides its last bits, and so must not depend on a stopwatch.
        """
        cost: list[Any] = [
            int(self._sizes[job.device]) * job.slices if self._stacks else self._cost.of(job) for job in jobs
        ]
        order = sorted(range(len(jobs)), key=lambda position: (-cost[position], position))
        if not self._stacks:
            return [[position] for position in order]
        shares = min(self._workers.count, len(jobs))
        return [order[first::shares] for first in range(shares)]

    def close(self) -> None:
        """End the workers."""
        self._workers.close()


def serve(setup: WorkerSetup, pipe: Connection) -> None:
    """Main function of a worker process: train each chunk that arrives, until the pipe is closed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides when to stop, and closes the pipe
    worker = Worker(setup)
    with suppress(EOFError, ConnectionError):
        while True:
            pipe.send(worker.train(pipe.recv()))


class LocalWorkers:
    """Processes that compute chunks of jobs, each one chunk at a time."""

    def __init__(self, workers: int, data: TrainingData, factory: TrainerFactory, arithmetic: Arithmetic) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="offbeat-")
        self._setup = WorkerSetup.of(factory, arithmetic, data, store_in(Path(self._folder.name)))
        try:
            pickle.dumps(self._setup)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self._folder.cleanup()
            raise InvalidInput(
                f"execution.workers = {workers}: worker processes cannot be sent the task or the data ({error}): "
                "define them in a module, or train with one worker."
            ) from None
        self._context = process_context(__name__)
        self._processes: dict[Connection, BaseProcess] = {}
        self._at_work: dict[Connection, int] = {}
        """The chunk that each busy worker has."""
        for _ in range(workers):
            self._start()

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=serve, args=(self._setup, theirs), name="offbeat-worker", daemon=True)
        process.start()
        theirs.close()
        self._processes[ours] = process

    @property
    def count(self) -> int:
        """How many workers there are."""
        return len(self._processes)

    def give(self, chunk: int, jobs: Sequence[TrainingJob], *, ahead: bool) -> bool:
        """Hand a chunk to a worker that has nothing to do; False if there is none."""
        pipe = next((each for each in self._processes if each not in self._at_work), None)
        if pipe is None:
            return False
        self._at_work[pipe] = chunk
        with suppress(ConnectionError):  # the worker died: taking its answer says so
            pipe.send(list(jobs))
        return True

    def take(self, queued: int) -> list[ChunkResult]:
        """Wait until a worker has answered or died; one that died is started anew."""
        answers = []
        for ready in wait(list(self._at_work)):
            pipe = next(each for each in self._at_work if each is ready)
            chunk = self._at_work.pop(pipe)
            try:
                answers.append(ChunkResult(chunk, pipe.recv()))
            except (EOFError, OSError):
                self._end(pipe)
                self._start()
                answers.append(ChunkResult(chunk, None))
        return answers

    def _end(self, pipe: Connection) -> None:
        process = self._processes.pop(pipe)
        pipe.close()
        process.join(timeout=5)
        if process.is_alive():
            process.kill()
            process.join()

    def close(self) -> None:
        """End the worker processes and remove their files."""
        for pipe in self._processes:
            pipe.close()
        for pipe in list(self._processes):
            self._end(pipe)
        self._folder.cleanup()
