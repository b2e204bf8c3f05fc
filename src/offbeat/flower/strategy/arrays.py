"""A model of Flower's as one flat vector: named arrays of any type, of which those of floats are mixed."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

from offbeat.core.errors import DeviceFault, InvalidInput
from offbeat.core.parameters import Layout, Vector, frozen
from offbeat.flower.protocol.codec import elements

Counts = Mapping[str, npt.NDArray[Any]]
"""The arrays of integers and booleans by name, which travel beside the vector."""


class ModelArrays:
    """What the arrays of a model are: names, shapes and types, in the order in which the server has them."""

    def __init__(self, first: ArrayRecord) -> None:
        """The model that a run begins with; InvalidInput if it cannot be trained here."""
        self._kinds = {name: (tuple(array.shape), np.dtype(array.dtype)) for name, array in first.items()}
        for name, (_, dtype) in self._kinds.items():
            if dtype.kind not in "fiub":
                raise InvalidInput(f"initial_arrays[{name!r}] is of {dtype}: floats, integers and booleans can be sent")
        mixed = [(name, shape, True) for name, (shape, dtype) in self._kinds.items() if dtype.kind == "f"]
        self.layout = Layout.of(mixed)
        if not self.layout.size:
            raise InvalidInput("initial_arrays has no floating point numbers: there is nothing that could be mixed")
        try:
            self.parameters, self.counts = self.read(first)
        except DeviceFault as fault:
            raise InvalidInput(f"initial_arrays cannot be trained: {fault}") from None

    @property
    def digest(self) -> str:
        """Names, shapes and types in short: what a run that goes on must have in common with itself."""
        return hashlib.sha256(repr(list(self._kinds.items())).encode()).hexdigest()

    def record(self, parameters: Vector, counts: Counts) -> ArrayRecord:
        """The arrays as they are sent."""
        arrays: dict[str, Array] = {}
        for name, (shape, dtype) in self._kinds.items():
            own = counts[name] if name in counts else parameters[self.layout[name].span].reshape(shape)
            arrays[name] = Array(np.asarray(own, dtype=dtype))
        return ArrayRecord(arrays)

    def read(self, given: ArrayRecord) -> tuple[Vector, Counts]:
        """What came from a device, checked name by name; DeviceFault if it is not this model."""
        if given.keys() != self._kinds.keys():
            missing, more = sorted(self._kinds.keys() - given.keys()), sorted(given.keys() - self._kinds.keys())
            raise DeviceFault(f"the arrays have other names: {_few(missing)} missing, {_few(more)} not asked for")
        vector = np.empty(self.layout.size, dtype=np.float32)
        counts: dict[str, npt.NDArray[Any]] = {}
        for name, (shape, dtype) in self._kinds.items():
            array = given[name]
            if tuple(array.shape) != shape or array.dtype != str(dtype):
                raise DeviceFault(f"the array {name!r} is {tuple(array.shape)} {array.dtype}, not {shape} {dtype}")
            numbers = elements(array.data, shape, dtype)
            if dtype.kind != "f":
                counts[name] = numbers
                continue
            with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and is refused
                vector[self.layout[name].span] = numbers.ravel()
            if not np.isfinite(vector[self.layout[name].span]).all():
                raise DeviceFault(f"the array {name!r} is not finite")
        return frozen(vector), counts


def _few(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:3]))
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown or "none"
