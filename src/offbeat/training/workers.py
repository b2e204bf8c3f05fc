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
"""Jobs of a batch per worker: enough that workers finish a batch at nearly the same time."""

ATTEMPTS = 3
"""A chunk that is lost with this many workers is not tried again."""


class ChunkResult(Struct, frozen=True, eq=False):
    """The result of a chunk: states, an error message, or None if it was lost with its worker."""

    chunk: int
    result: Trained | str | None


class Workers(Protocol):
    """Workers that compute chunks of jobs; a lost worker is replaced as soon as possible."""

    @property
    def count(self) -> int:
        """Number of workers when all are running."""
        ...

    def give(self, chunk: int, jobs: Sequence[TrainingJob], *, ahead: bool) -> bool:
        """Give a chunk to an idle worker or, with `ahead`, to one that has only one chunk; False if there is none."""
        ...

    def take(self, queued: int) -> list[ChunkResult]:
        """Wait until chunks are done or lost; `queued` is the number of jobs that no worker has yet."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class MeasuredCost:
    """Predicts how long a job takes: by its device's last job, or else by its samples and the other devices' jobs."""

    def __init__(self, sizes: npt.NDArray[np.int64]) -> None:
        self._sizes = sizes
        self._slice_seconds: dict[int, float] = {}
        self._seconds = self._samples = 0.0

    def of(self, job: TrainingJob) -> float:
        """Seconds, or the number of samples before the first measurement."""
        per_slice = self._slice_seconds.get(job.device)
        if per_slice is None:
            rate = self._seconds / self._samples if self._samples else 1.0
            return rate * job.samples(self._sizes.item(job.device))
        return per_slice * job.slices

    def measured(self, job: TrainingJob, seconds: float) -> None:
        """Add the measured duration of a job."""
        slices = job.slices
        self._slice_seconds[job.device] = seconds / slices
        self._seconds += seconds
        self._samples += job.samples(self._sizes.item(job.device))


class WorkerPool:
    """Trains batches of jobs on workers."""

    def __init__(self, workers: Workers, sizes: npt.NDArray[np.int64], *, stacks: bool) -> None:
        self._workers = workers
        self._sizes = sizes
        self._cost = MeasuredCost(sizes)
        self._stacks = stacks
        self._numbers = count()

    @property
    def batch_capacity(self) -> int:
        """Jobs per batch that keep it busy."""
        return self._workers.count * (STACK if self._stacks else JOBS_PER_WORKER)

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        """Carry out the jobs and return their states in the same order; a free worker gets the next chunk."""
        workers, states = self._workers, dict[int, TrainingState]()
        chunks = dict(zip(self._numbers, self._chunks(jobs)))  # noqa: B905 (the numbers are endless)
        waiting, attempts = deque(chunks), Counter[int]()
        while len(states) < len(jobs):
            while waiting and workers.give(
                waiting[0], [jobs[position] for position in chunks[waiting[0]]], ahead=len(waiting) > workers.count
            ):
                waiting.popleft()
            for answer in workers.take(sum(len(chunks[number]) for number in waiting)):
                positions = chunks.get(answer.chunk)
                if positions is None:
                    continue  # of an earlier batch that failed
                if isinstance(answer.result, str):
                    raise OffbeatError(f"a worker failed: {answer.result}")
                if answer.result is None:
                    attempts[answer.chunk] += 1
                    if attempts[answer.chunk] == ATTEMPTS:
                        raise WorkersLost(
                            f"{ATTEMPTS} workers in a row died on the same job: check that there is enough memory, "
                            'and that your script runs under `if __name__ == "__main__":`'
                        )
                    waiting.appendleft(answer.chunk)
                    continue
                states.update(zip(positions, answer.result.states, strict=True))
                if len(positions) == 1:
                    self._cost.measured(jobs[positions[0]], answer.result.seconds)
        return [states[position] for position in range(len(jobs))]

    def _chunks(self, jobs: Sequence[TrainingJob]) -> list[list[int]]:
        """Positions of jobs, most expensive first: one job per chunk or, for stacked clients, one chunk per worker.

        The last bits of a stack depend on its clients, so that measured times must not decide them.
        """
        cost: list[Any] = [
            job.samples(self._sizes.item(job.device)) if self._stacks else self._cost.of(job) for job in jobs
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
    """Worker processes of this machine, each with one chunk at a time."""

    def __init__(self, workers: int, data: TrainingData, factory: TrainerFactory, arithmetic: Arithmetic) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="offbeat-")
        self._setup = WorkerSetup.of(factory, arithmetic, data, store_in(Path(self._folder.name)))
        try:
            pickle.dumps(self._setup)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self._folder.cleanup()
            raise InvalidInput(
                f"execution.workers = {workers}: the task or the data cannot be sent to worker processes ({error}): "
                "define them in a module, or train with one worker."
            ) from None
        self._context = process_context(__name__)
        self._processes: dict[Connection, BaseProcess] = {}
        self._at_work: dict[Connection, int] = {}
        """The chunk of each busy worker."""
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
        """Number of workers."""
        return len(self._processes)

    def give(self, chunk: int, jobs: Sequence[TrainingJob], *, ahead: bool) -> bool:
        """Give a chunk to an idle worker; False if there is none."""
        pipe = next((each for each in self._processes if each not in self._at_work), None)
        if pipe is None:
            return False
        self._at_work[pipe] = chunk
        with suppress(ConnectionError):  # the worker died, which `take` reports
            pipe.send(list(jobs))
        return True

    def take(self, queued: int) -> list[ChunkResult]:
        """Wait until a worker is done or has died; a dead worker is replaced."""
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
