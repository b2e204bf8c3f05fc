"""Where a policy keeps vectors between versions: an interface, and its implementation in memory.

A driver may give a session a store on disk (`running.vector_file`); the policy sees no difference.
"""

from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class StoredVector(ABC):
    """A vector outside the memory of the process, which is read where it is sliced and never changes."""

    def __init__(self, size: int, dtype: np.dtype[Any]) -> None:
        self.size = size
        self.dtype = dtype

    @abstractmethod
    def __getitem__(self, block: slice) -> Array:
        """A part of the vector; read-only."""

    def __len__(self) -> int:
        return self.size

    @property
    def nbytes(self) -> int:
        """Bytes of the whole vector."""
        return self.size * self.dtype.itemsize

    def copy(self) -> "StoredVector":
        """The vector itself, because it never changes."""
        return self

    def tobytes(self) -> bytes:
        """The whole vector as bytes."""
        return self[:].tobytes()


Sliceable = Array | StoredVector
"""A vector that is computed with block by block."""


class VectorStore(Protocol):
    """Keeps vectors of any size and type, each until nothing refers to what `keep` returned for it."""

    def keep(self, vector: Array) -> Sliceable:
        """Keep a vector, which does not change afterwards."""
        ...

    def mapped(self, version: Array) -> Array:
        """The same version of the model, in memory only while it is the latest one or in use."""
        ...


class StoredInMemory:
    """A store for sessions without a driver, such as those of tests."""

    def keep(self, vector: Array) -> Array:
        """The vector itself."""
        return vector

    def mapped(self, version: Array) -> Array:
        """The version itself."""
        return version
