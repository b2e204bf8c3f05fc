"""Where a policy keeps one vector per device: an interface, and its implementation in memory.

A driver may give a session a store on disk (`running.vector_file`); the policy sees no difference.
"""

from collections.abc import Callable
from typing import Protocol

from offbeat.core.parameters import Vector


class VectorStore(Protocol):
    """Vectors of the model's size, by number."""

    def read(self, number: int) -> Vector:
        """The vector that was last written under this number; read-only."""
        ...

    def write(self, number: int, vector: Vector) -> None:
        """Keep a vector, in place of the one of this number."""
        ...


NewStore = Callable[[int], VectorStore]
"""Makes an empty store for vectors of this many elements."""


class StoredInMemory:
    """A store for sessions without a driver, such as those of tests."""

    def __init__(self, size: int) -> None:
        self._vectors: dict[int, Vector] = {}

    def read(self, number: int) -> Vector:
        """The vector that was last written under this number."""
        return self._vectors[number]

    def write(self, number: int, vector: Vector) -> None:
        """Keep a vector, in place of the one of this number."""
        self._vectors[number] = vector
