"""A worker: how it gets its data and its trainer, and what it does with jobs, wherever it runs.

The data are not sent to each worker. On one machine all workers map the same files; on a cluster the workers of a
machine share memory. An array that is a memory-mapped file already is mapped from its own path.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from offbeat.core.errors import OffbeatError
from offbeat.data import Partition
from offbeat.data.samples import LazyDevices, Ragged, Samples, each_array
from offbeat.training.factory import TrainerFactory
from offbeat.training.stacked import Arithmetic, InProcessTrainer
from offbeat.training.training_state import TrainingJob, TrainingState

Array = npt.NDArray[Any]


class ArraySource(Protocol):
    """A picklable source of an array."""

    def read(self) -> Array:
        """The array, read-only."""
        ...


@dataclass(frozen=True)
class StoredArray:
    """A source of an array in a .npy file, which all workers of the machine map."""

    path: str

    def read(self) -> Array:
        """The array, mapped from its file."""
        try:
            array: Array = np.load(self.path, mmap_mode="r")
        except FileNotFoundError:
            raise OffbeatError(
                f"{self.path} does not exist on this machine: the data must have the same path on every machine"
            ) from None
        return array


@dataclass(frozen=True)
class StoredRows:
    """A source of rows of different lengths."""

    values: ArraySource
    offsets: ArraySource
    padding: float

    def read(self) -> Ragged:
        """The rows, from their two arrays."""
        return Ragged(self.values.read(), self.offsets.read(), self.padding)


Store = Callable[[Array], ArraySource]


def store_in(folder: Path) -> Store:
    """A function that writes an array into the folder and returns its source."""

    def store(array: Array) -> StoredArray:
        path = folder / f"{len(list(folder.iterdir()))}.npy"
        np.save(path, array)
        return StoredArray(str(path))

    return store


def stored(samples: Samples, store: Store) -> Any:
    """The samples with a source for each array; `LazyDevices` stay as they are: each worker loads its own."""

    def source(array: Array) -> ArraySource:
        if isinstance(array, np.memmap) and str(array.filename).endswith(".npy") and array.base is not None:
            return StoredArray(str(array.filename))
        return store(array)

    def one(part: Any) -> Any:
        if isinstance(part, Ragged):
            return StoredRows(source(part.values), source(part.offsets), part.padding)
        return source(part) if isinstance(part, np.ndarray) else part

    return each_array(one, samples)


def read_back(samples: Any) -> Samples:
    """The samples that `stored` was given."""
    return each_array(lambda part: part.read() if hasattr(part, "read") else part, samples)


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """The samples of all devices, and their partition."""

    x: Samples | LazyDevices
    y: Samples | None
    partition: Partition


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """What a worker needs to make its trainer; can be pickled."""

    factory: TrainerFactory
    arithmetic: Arithmetic
    x: Any
    y: Any
    indices: ArraySource
    offsets: ArraySource

    @classmethod
    def of(cls, factory: TrainerFactory, arithmetic: Arithmetic, data: TrainingData, store: Store) -> "WorkerSetup":
        """The setup, with the data written to where workers read them."""
        return cls(
            factory=factory,
            arithmetic=arithmetic,
            x=stored(data.x, store),
            y=stored(data.y, store),
            indices=stored(data.partition.indices, store),
            offsets=stored(data.partition.offsets, store),
        )

    def make(self) -> InProcessTrainer:
        """The trainer of a worker."""
        partition = Partition(indices=self.indices.read(), offsets=self.offsets.read())
        return InProcessTrainer(self.factory.trainer(read_back(self.x), read_back(self.y), partition), self.arithmetic)


class Trained(Struct, frozen=True, kw_only=True, eq=False):
    """The results of a chunk of jobs."""

    states: list[TrainingState]
    seconds: float
    """Wall-clock time that the chunk took."""


class Worker:
    """Trains chunks of jobs and reports an error as a message, in whatever process it runs."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._training: InProcessTrainer | str
        try:
            self._training = setup.make()
        except Exception as error:  # reported with the first chunk: only then does the pool listen
            self._training = _message(error)

    def train(self, jobs: Sequence[TrainingJob]) -> Trained | str:
        """Carry out the jobs; an error message if that fails."""
        if isinstance(self._training, str):
            return self._training
        began = perf_counter()
        try:
            return Trained(states=self._training.train(jobs), seconds=perf_counter() - began)
        except Exception as error:
            return _message(error)


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, OffbeatError) else f"{type(error).__name__}: {error}"
