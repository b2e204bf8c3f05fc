"""Samples of any structure: an array, rows of different lengths, or a tuple or mapping of these.

The first axis of every array counts samples. Integers (tokens) stay integers and other numbers are float32; pixels of
one byte stay bytes where somebody normalises them batch by batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Rows of different lengths, one after the other in one array: sentences, series. A batch is padded to its longest.

    >>> rows = Ragged.of([[1, 2, 3], [4]], padding=0)
    >>> len(rows), rows.padded().tolist()
    (2, [[1, 2, 3], [4, 0, 0]])
    """

    values: Array
    offsets: Indices
    """Row k is values[offsets[k]:offsets[k + 1]]."""
    padding: float = 0

    @classmethod
    def of(cls, rows: Sequence[npt.ArrayLike], padding: float = 0) -> "Ragged":
        """Rows of any lengths, put end to end."""
        arrays = [np.asarray(row) for row in rows]
        offsets = np.concatenate([[0], np.cumsum([len(array) for array in arrays], dtype=np.int64)])
        return cls(np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64), offsets, padding)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def longest(self) -> int:
        """The length of the longest row."""
        return int(np.diff(self.offsets).max(initial=0))

    def take(self, indices: Indices) -> "Ragged":
        """The rows at these indices, in this order."""
        return Ragged.of([self.values[self.offsets[i] : self.offsets[i + 1]] for i in indices], self.padding)

    def padded(self) -> Array:
        """All rows in one array, each filled up with the padding to the length of the longest."""
        lengths = np.diff(self.offsets)
        whole = np.full((len(self), self.longest, *self.values.shape[1:]), self.padding, dtype=self.values.dtype)
        whole[np.arange(self.longest) < lengths[:, None]] = self.values
        return whole


Samples = Any
"""An array, a `Ragged`, or a tuple or mapping of these."""


@dataclass(frozen=True, slots=True, eq=False)
class LazyDevices:
    """Data that are loaded device by device when they are needed, so that all of them need not fit into memory."""

    sizes: Indices
    """How many training samples each device has."""
    load: Callable[[int], tuple[Samples, Samples]]
    """Inputs and targets of one device."""

    @property
    def offsets(self) -> Indices:
        """Where each device's samples begin if all of them are counted in a row, and where the last ones end."""
        return np.concatenate([[0], np.cumsum(self.sizes, dtype=np.int64)])


def each_array(function: Callable[[Any], Any], samples: Samples) -> Any:
    """The same structure with the function's result in place of every array."""
    if isinstance(samples, tuple):
        return tuple(each_array(function, part) for part in samples)
    if isinstance(samples, Mapping):
        return {name: each_array(function, part) for name, part in samples.items()}
    return function(samples)


def arrays_of(samples: Samples) -> list[Any]:
    """The arrays of a structure, in their order."""
    found: list[Any] = []
    each_array(found.append, samples)
    return found


def count(samples: Samples) -> int:
    """How many samples there are."""
    return len(arrays_of(samples)[0])


def taken(samples: Samples, indices: Indices) -> Samples:
    """The samples at these indices, in this order."""
    return each_array(lambda part: part.take(indices) if isinstance(part, Ragged) else part[indices], samples)


def shapes(samples: Samples) -> Any:
    """The shape of one sample, in the structure of the samples; of a row of any length, that of the longest.

    >>> shapes((np.zeros((4, 2)), {"tokens": np.zeros((4, 7, 3))}))
    ((2,), {'tokens': (7, 3)})
    """

    def shape(part: Any) -> tuple[int, ...]:
        return (part.longest, *part.values.shape[1:]) if isinstance(part, Ragged) else part.shape[1:]

    return each_array(shape, samples)


def numbers(samples: Samples, *, integers: str = "i", pixels: bool = False) -> Samples:
    """The samples as torch takes them: integers (of these kinds of numpy) as int64, everything else as float32.

    With `pixels`, bytes stay bytes: somebody will normalise them.
    """

    def converted(part: Any) -> Any:
        if isinstance(part, Ragged):
            return Ragged(converted(part.values), part.offsets, part.padding)
        array = np.asarray(part)
        if pixels and array.dtype == np.uint8:
            return array
        return np.asarray(array, dtype=np.int64 if array.dtype.kind in integers else np.float32)

    return each_array(converted, samples)
