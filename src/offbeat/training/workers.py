"""Batches of jobs given out to workers: the longest first, what is lost with a worker again, the states in their order.

The workers may be processes of this machine (`local_workers`) or actors of a Ray cluster (`ray_workers`): `Workers` is
all that is asked of them. Which worker computes a job makes no difference to its numbers.
"""

from collections import Counter, deque
from collections.abc import Sequence
from itertools import count
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from offbeat.core.errors import OffbeatError, WorkersLost
from offbeat.training.in_process import STACK
from offbeat.training.training_state import TrainingJob, TrainingState
from offbeat.training.worker_setup import Trained

JOBS_PER_WORKER = 6
"""Enough that the workers end a batch at nearly the same time."""

ATTEMPTS = 3
"""Work that ends so many workers would end all others too."""


class PortionAnswer(Struct, frozen=True, eq=False):
    """What became of a portion: what a worker made of it, a sentence on what went wrong, or None if it was lost."""

    portion: int
    result: Trained | str | None


class Workers(Protocol):
    """Whoever computes portions of jobs. A worker that is lost is started anew, as soon as that is possible."""

    @property
    def count(self) -> int:
        """How many there are when all of them are well."""
        ...

    def give(self, portion: int, jobs: Sequence[TrainingJob], *, ahead: bool) -> bool:
        """Hand a portion to a worker that has nothing to do or, `ahead`, only one other portion; False if none can."""
        ...

    def take(self, queued: int) -> list[PortionAnswer]:
        """Wait until something has become of portions, and say what; `queued` are the jobs that nobody has yet."""
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
        """The states in the order of the jobs. Each worker takes the next portion as soon as it is free."""
        workers, states = self._workers, dict[int, TrainingState]()
        portions = dict(zip(self._numbers, self._portions(jobs)))  # noqa: B905 (the numbers go on for ever)
        waiting, attempts = deque(portions), Counter[int]()
        while len(states) < len(jobs):
            while waiting and workers.give(
                waiting[0], [jobs[position] for position in portions[waiting[0]]], ahead=len(waiting) > workers.count
            ):
                waiting.popleft()
            for answer in workers.take(sum(len(portions[number]) for number in waiting)):
                positions = portions.get(answer.portion)
                if positions is None:
                    continue  # of a batch that was broken off
                if isinstance(answer.result, str):
                    raise OffbeatError(f"a worker failed: {answer.result}")
                if answer.result is None:
                    attempts[answer.portion] += 1
                    if attempts[answer.portion] == ATTEMPTS:
                        raise WorkersLost(
                            f"{ATTEMPTS} workers ended unexpectedly one after the other: is there enough memory, and "
                            'is what your script runs under `if __name__ == "__main__":`?'
                        )
                    waiting.appendleft(answer.portion)
                    continue
                states.update(zip(positions, answer.result.states, strict=True))
                if len(positions) == 1:
                    self._cost.measured(jobs[positions[0]], answer.result.seconds)
        return [states[position] for position in range(len(jobs))]

    def _portions(self, jobs: Sequence[TrainingJob]) -> list[list[int]]:
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
