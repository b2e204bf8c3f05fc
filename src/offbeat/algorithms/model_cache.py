"""A vector of every device, for algorithms that keep one: in memory, in 8 bits, or on disk.

`cache = "memory"` keeps vectors as they are. `"quantised"` keeps them in 8 bits, relative to the largest element of
each: a quarter of the memory, and an error of at most 1/254 of that element. `"disk"` keeps them in a file that the
driver provides, with the same numbers as `"memory"`. A checkpoint holds all vectors; those on disk are read one by one.

Only movements are quantised. A model loses more in 8 bits than one local training changes, and a sum would be rounded
again with every movement that is added to it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from offbeat.core.orders import Update
from offbeat.core.policy import View
from offbeat.core.vectors import Array, Sliceable

CacheKind = Literal["memory", "quantised", "disk"]
ExactCacheKind = Literal["memory", "disk"]
LEVELS = 127
"""Steps of a quantised vector on either side of 0."""

Change = Callable[[slice], tuple[Array, Any, Array]]
"""Computes one block of a device's movement, and of its cached vector before and after it. Called once per block."""


@dataclass
class ModelCache:
    """Part of a policy's state: one vector per device that has reported."""

    kind: CacheKind = "memory"
    vectors: dict[int, Sliceable] = field(default_factory=dict)
    """The vector of device i is `scales[i] * vectors[i]` if it is quantised."""
    scales: dict[int, float] = field(default_factory=dict)

    def __contains__(self, device: int) -> bool:
        return device in self.vectors

    def __len__(self) -> int:
        return len(self.vectors)

    def read(self, device: int) -> Sliceable | None:
        """The vector of a device; None if it has none."""
        vector = self.vectors.get(device)
        if vector is None or self.kind != "quantised":
            return vector
        return self.scales[device] * vector[:]

    def write(self, device: int, vector: Array, view: View) -> None:
        """Replace the vector of a device."""
        if self.kind == "quantised":
            scale = float(np.abs(vector).max(initial=0.0)) / LEVELS or 1.0
            self.scales[device], self.vectors[device] = scale, np.rint(vector / scale).astype(np.int8)
        else:
            self.vectors[device] = view.store.keep(vector) if self.kind == "disk" else vector

    def replace(self, update: Update, view: View) -> Change:
        """Replace the vector of a device by its movement; in memory this happens with the blocks that are computed."""
        device, before = update.device, self.vectors.get(update.device)
        if self.kind == "memory":
            return _replaced_in_place(update, before, self.vectors)
        delta, old_scale = update.delta, self.scales.get(device)
        self.write(device, delta, view)
        after, new_scale = self.vectors[device], self.scales.get(device)

        def change(block: slice) -> tuple[Array, Any, Array]:
            old = 0.0 if before is None else before[block] if old_scale is None else old_scale * before[block]
            return delta[block], old, delta[block] if new_scale is None else new_scale * after[block]

        return change

    def pop(self, device: int) -> Sliceable:
        """Forget the vector of a device, and return it."""
        vector = self.read(device)
        assert vector is not None
        del self.vectors[device]
        self.scales.pop(device, None)
        return vector


def _replaced_in_place(update: Update, before: Sliceable | None, vectors: dict[int, Sliceable]) -> Change:
    model, base = update.parameters, update.base_parameters
    own: npt.NDArray[np.float32] = np.empty_like(model) if before is None else before  # type: ignore[assignment]
    vectors[update.device] = own

    def change(block: slice) -> tuple[Array, Any, Array]:
        delta = model[block] - base[block]
        old = 0.0 if before is None else own[block].copy()
        own[block] = delta
        return delta, old, delta

    return change
