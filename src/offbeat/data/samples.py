"""Samples of any structure: an array, rows of different lengths, or a tuple or mapping of these.

The first axis of every array counts samples. Integers (tokens) are int64 and other numbers float32; pixels stay bytes
if a pipeline normalises them batch by batch.
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
    """Rows of different lengths (sentences, series), end to end in one array. A batch is padded to its longest row.

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
        """Rows of any lengths, joined end to end."""
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
        """All rows in one array, padded to the length of the longest."""
        lengths = np.diff(self.offsets)
        whole = np.full((len(self), self.longest, *self.values.shape[1:]), self.padding, dtype=self.values.dtype)
        whole[np.arange(self.longest) < lengths[:, None]] = self.values
        return whole


Samples = Any
"""An array, a `Ragged`, or a tuple or mapping of these."""


@dataclass(frozen=True, slots=True, eq=False)
class LazyDevices:
    """Training data that are loaded device by device, so that they need not fit into memory."""

    sizes: Indices
    """Number of training samples of each device."""
    load: Callable[[int], tuple[Samples, Samples]]
    """Inputs and targets of one device."""

    @property
    def offsets(self) -> Indices:
        """Device k has samples offsets[k] to offsets[k + 1] - 1, counted over all devices."""
        return np.concatenate([[0], np.cumsum(self.sizes, dtype=np.int64)])


def each_array(function: Callable[[Any], Any], samples: Samples) -> Any:
    """The same structure, with the function applied to every array."""
    if isinstance(samples, tuple):
        return tuple(each_array(function, part) for part in samples)
    if isinstance(samples, Mapping):
        return {name: each_array(function, part) for name, part in samples.items()}
    return function(samples)


def arrays_of(samples: Samples) -> list[Any]:
    """The arrays of a structure, in order."""
    found: list[Any] = []
    each_array(found.append, samples)
    return found


def count(samples: Samples) -> int:
    """The number of samples."""
    return len(arrays_of(samples)[0])


def taken(samples: Samples, indices: Indices) -> Samples:
    """The samples at these indices, in this order."""
    return each_array(lambda part: part.take(indices) if isinstance(part, Ragged) else part[indices], samples)


def shapes(samples: Samples) -> Any:
    """The shape of one sample, in the structure of the samples; for rows, that of the longest.

    >>> shapes((np.zeros((4, 2)), {"tokens": np.zeros((4, 7, 3))}))
    ((2,), {'tokens': (7, 3)})
    """

    def shape(part: Any) -> tuple[int, ...]:
        return (part.longest, *part.values.shape[1:]) if isinstance(part, Ragged) else part.shape[1:]

    return each_array(shape, samples)


def numbers(samples: Samples, *, integers: str = "i", pixels: bool = False) -> Samples:
    """The samples with integers (numpy kinds `integers`) as int64 and other numbers as float32.

    With `pixels`, bytes stay bytes, to be normalised later.
    """

    def converted(part: Any) -> Any:
        if isinstance(part, Ragged):
            return Ragged(converted(part.values), part.offsets, part.padding)
        array = np.asarray(part)
        if pixels and array.dtype == np.uint8:
            return array
        return np.asarray(array, dtype=np.int64 if array.dtype.kind in integers else np.float32)

    return each_array(converted, samples)
