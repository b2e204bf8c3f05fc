"""Full-batch training that was done before is not done again, where that is exact.

A full batch is not shuffled. So what a pure model (see `models.flat`) comes to by it depends on the model that it
starts from, on the samples in their order and on the order given, and on nothing else: not on the device, the ticket or
the run. Devices with the same samples, and runs that start from the same model, then share one computation.
Mini-batches, which are shuffled by device and ticket, pass through; stacked training, whose last bits depend on who is
in the stack, has no memo.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import json, structs

from offbeat.data import Dataset, Partition
from offbeat.training.training_state import TrainingJob, TrainingState

MEMO_BYTES = 384 * 2**20


class JobTrainer(Protocol):
    """Whoever trains a batch of jobs."""

    @property
    def batch_capacity(self) -> int:
        """How many jobs at a time keep it busy."""
        ...

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        """Carry out the jobs, and return their states in the same order."""
        ...

    def close(self) -> None:
        """End worker processes, if there are any."""
        ...


class Memo:
    """Finished state by what determines it; what was not asked for the longest is forgotten first."""

    def __init__(self, limit: int = MEMO_BYTES) -> None:
        self._states: OrderedDict[bytes, TrainingState] = OrderedDict()
        self._limit = limit
        self._bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: bytes) -> TrainingState | None:
        """The state under this key; None if it is not kept."""
        state = self._states.get(key)
        if state is None:
            self.misses += 1
        else:
            self.hits += 1
            self._states.move_to_end(key)
        return state

    def put(self, key: bytes, state: TrainingState) -> None:
        """Keep a state under its key, and drop those that were not used for longest beyond the limit."""
        self._states[key] = state
        self._bytes += _size(state)
        while self._bytes > self._limit and self._states:
            self._bytes -= _size(self._states.popitem(last=False)[1])


SHARED = Memo()
"""The memo of this process. Its keys are contents, so that runs one after another may share it."""


class MemoTrainer:
    """Stands before a trainer (or its worker processes), and asks it only for what is not known."""

    def __init__(self, training: JobTrainer, dataset: Dataset, partition: Partition, *, model: str, memo: Memo) -> None:
        self._training = training
        self._partition = partition
        self._memo = memo
        self._model = model
        self._dataset = dataset
        self._samples: dict[int, bytes] = {}

    @property
    def batch_capacity(self) -> int:
        """How many jobs at a time keep it busy."""
        return self._training.batch_capacity

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        """Carry out the jobs whose results are not known yet, and return all states in the same order."""
        keys = [self._key(job) if _begins_full_batch(job) else None for job in jobs]
        states = [self._memo.get(key) if key is not None else None for key in keys]
        missing: dict[bytes | int, TrainingJob] = {}
        for position, (key, state, job) in enumerate(zip(keys, states, jobs, strict=True)):
            if state is None:
                missing.setdefault(position if key is None else key, job)
        done = dict(zip(missing, self._training.train(list(missing.values())) if missing else [], strict=True))
        for what, state in done.items():
            if isinstance(what, bytes):
                self._memo.put(what, state)
        return [
            state or done[position if key is None else key]
            for position, (key, state) in enumerate(zip(keys, states, strict=True))
        ]

    def close(self) -> None:
        """End worker processes, if there are any."""
        self._training.close()

    @cached_property
    def _setting(self) -> bytes:
        """Made with the first full batch: others need not wait for it."""
        return _digest(self._model.encode(), self._dataset.train_x, self._dataset.train_y)

    def _key(self, job: TrainingJob) -> bytes:
        """Everything that the numbers depend on."""
        if job.device not in self._samples:
            self._samples[job.device] = _digest(self._partition.samples(job.device))
        order = json.encode(structs.asdict(job.order) | {"slices": job.last})
        return _digest(self._setting, self._samples[job.device], order, job.state.parameters)


def _begins_full_batch(job: TrainingJob) -> bool:
    fresh = job.first == 0 and job.state.steps == 0 and job.state.momentum is None
    whole = job.order.batch_size is None and job.order.unit == "epoch"
    return whole and fresh and job.whole and not job.order.remembers and job.anchor is job.state.parameters


def _digest(*parts: bytes | npt.NDArray[Any]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).data)
    return digest.digest()


def _size(state: TrainingState) -> int:
    kept = sum(vector.nbytes for vector in state.optimiser.values())
    return state.parameters.nbytes + kept + (0 if state.momentum is None else state.momentum.nbytes)
