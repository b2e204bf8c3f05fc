"""What a worker needs to make its trainer: small values, and places where it finds the data.

The data are not sent to each worker. On this machine they lie in files that all workers map; on a cluster in the memory
that the workers of a machine share. A large set that is a mapped file already is read from its path there.
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
from offbeat.training.factory import TrainerSetup
from offbeat.training.in_process import Arithmetic, InProcessTrainer
from offbeat.training.training_state import TrainingJob, TrainingState

Array = npt.NDArray[Any]


class ArrayPlace(Protocol):
    """Where a worker finds an array."""

    def read(self) -> Array:
        """The array, which nobody may write to."""
        ...


@dataclass(frozen=True)
class StoredArray:
    """An array in a file that all workers map, in place of the array."""

    path: str

    def read(self) -> Array:
        """The array, mapped from its file."""
        try:
            array: Array = np.load(self.path, mmap_mode="r")
        except FileNotFoundError:
            raise OffbeatError(f"{self.path} is not on this machine: the data must lie under one path on all") from None
        return array


@dataclass(frozen=True)
class StoredRows:
    """Rows of different lengths, in place of the rows."""

    values: ArrayPlace
    offsets: ArrayPlace
    padding: float

    def read(self) -> Ragged:
        """The rows, read from where they are."""
        return Ragged(self.values.read(), self.offsets.read(), self.padding)


Store = Callable[[Array], ArrayPlace]


def store_in(folder: Path) -> Store:
    """A function that writes an array into the folder."""

    def store(array: Array) -> StoredArray:
        path = folder / f"{len(list(folder.iterdir()))}.npy"
        np.save(path, array)
        return StoredArray(str(path))

    return store


def stored(samples: Samples, store: Store) -> Any:
    """The samples with places instead of arrays; data that are loaded device by device are loaded by each worker."""

    def place(array: Array) -> ArrayPlace:
        if isinstance(array, np.memmap) and str(array.filename).endswith(".npy") and array.base is not None:
            return StoredArray(str(array.filename))
        return store(array)

    def one(part: Any) -> Any:
        if isinstance(part, Ragged):
            return StoredRows(place(part.values), place(part.offsets), part.padding)
        return place(part) if isinstance(part, np.ndarray) else part

    return each_array(one, samples)


def read_back(samples: Any) -> Samples:
    """What `stored` has stored."""
    return each_array(lambda part: part.read() if hasattr(part, "read") else part, samples)


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """The samples of all devices, and who holds which."""

    x: Samples | LazyDevices
    y: Samples | None
    partition: Partition


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """What a worker needs to make its trainer."""

    trainer: TrainerSetup
    arithmetic: Arithmetic
    x: Any
    y: Any
    indices: ArrayPlace
    offsets: ArrayPlace

    @classmethod
    def of(cls, trainer: TrainerSetup, arithmetic: Arithmetic, data: TrainingData, store: Store) -> "WorkerSetup":
        """The setup with the data put where workers find them."""
        return cls(
            trainer=trainer,
            arithmetic=arithmetic,
            x=stored(data.x, store),
            y=stored(data.y, store),
            indices=stored(data.partition.indices, store),
            offsets=stored(data.partition.offsets, store),
        )

    def make(self) -> InProcessTrainer:
        """The trainer of a worker."""
        partition = Partition(indices=self.indices.read(), offsets=self.offsets.read())
        return InProcessTrainer(self.trainer.trainer(read_back(self.x), read_back(self.y), partition), self.arithmetic)


class Trained(Struct, frozen=True, kw_only=True, eq=False):
    """What a worker has made of a portion of jobs."""

    states: list[TrainingState]
    seconds: float
    """How long it took."""


class Worker:
    """The work of a worker, wherever it runs: it trains what it is given, and says what went wrong if anything did."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._training: InProcessTrainer | str
        try:
            self._training = setup.make()
        except Exception as error:  # said when there is work to do: somebody listens then
            self._training = _sentence(error)

    def train(self, jobs: Sequence[TrainingJob]) -> Trained | str:
        """Carry out the jobs; a sentence if that fails."""
        if isinstance(self._training, str):
            return self._training
        began = perf_counter()
        try:
            return Trained(states=self._training.train(jobs), seconds=perf_counter() - began)
        except Exception as error:
            return _sentence(error)


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, OffbeatError) else f"{type(error).__name__}: {error}"
