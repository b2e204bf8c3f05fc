"""The last vector of every device, for algorithms that keep one: in memory, in 8 bits, or on disk.

`cache = "memory"` keeps vectors as they are. `"quantised"` keeps them in 8 bits, relative to the largest element of
each: a quarter of the memory, and an error of at most 1/254 of that element. `"disk"` keeps them in a file that the
driver provides, with the same numbers as `"memory"`. A checkpoint holds all vectors.
"""

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from offbeat.core.parameters import Vector
from offbeat.core.policy import View
from offbeat.core.vectors import VectorStore

CacheKind = Literal["memory", "quantised", "disk"]
LEVELS = 127
"""Steps of a quantised vector on either side of 0."""


class OnDisk(MutableMapping[int, npt.NDArray[Any]]):
    """Vectors by device in a store; a snapshot reads them one by one."""

    def __init__(self, store: VectorStore) -> None:
        self._store = store
        self._devices: dict[int, None] = {}

    def __getitem__(self, device: int) -> npt.NDArray[Any]:
        if device not in self._devices:
            raise KeyError(device)
        return self._store.read(device)

    def __setitem__(self, device: int, vector: npt.NDArray[Any]) -> None:
        self._store.write(device, vector)
        self._devices[device] = None

    def __delitem__(self, device: int) -> None:
        del self._devices[device]

    def __contains__(self, device: object) -> bool:
        return device in self._devices

    def __iter__(self) -> Iterator[int]:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)


@dataclass
class ModelCache:
    """Part of a policy's state: one vector per device that has reported."""

    kind: CacheKind = "memory"
    vectors: MutableMapping[int, npt.NDArray[Any]] = field(default_factory=dict)
    """The vector of device i is `scales[i] * vectors[i]` if it is quantised."""
    scales: dict[int, float] = field(default_factory=dict)

    def __contains__(self, device: int) -> bool:
        return device in self.vectors

    def __len__(self) -> int:
        return len(self.vectors)

    def read(self, device: int, view: View) -> npt.NDArray[Any] | None:
        """The vector of a device; None if it has none."""
        if device not in self.vectors:
            return None
        vector = self._of(view)[device]
        return self.scales[device] * vector if self.kind == "quantised" else vector

    def write(self, device: int, vector: Vector, view: View) -> npt.NDArray[Any]:
        """Keep a vector, and return it as it will be read."""
        if self.kind != "quantised":
            self._of(view)[device] = vector
            return vector
        scale = float(np.abs(vector).max(initial=0.0)) / LEVELS or 1.0
        self.scales[device], self.vectors[device] = scale, np.rint(vector / scale).astype(np.int8)
        return scale * self.vectors[device]

    def pop(self, device: int, view: View) -> npt.NDArray[Any]:
        """Forget the vector of a device, and return it."""
        vector = self.read(device, view)
        assert vector is not None
        del self.vectors[device]
        self.scales.pop(device, None)
        return vector

    def _of(self, view: View) -> MutableMapping[int, npt.NDArray[Any]]:
        """The vectors, which move to the driver's store at the first use, also after a checkpoint was read."""
        if self.kind == "disk" and not isinstance(self.vectors, OnDisk):
            kept, self.vectors = self.vectors, OnDisk(view.store())
            self.vectors.update(kept)
        return self.vectors
