"""From the columns of a Hugging Face table to samples: what a column holds decides what becomes of it.

A reader is made from the training table and can then read any part of it or of the test table. Images become pixels,
texts become tokens of words, numbers float32 or, if they are integers in lists (tokens), int64.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from offbeat.core.errors import InvalidInput
from offbeat.core.references import describe
from offbeat.core.samples import Array, Ragged, Samples
from offbeat.data.text import Vocabulary
from offbeat.data.transforms import Bytes, Standardisation

DECODED = 1000
"""Images that are decoded at a time."""


class Reader(Protocol):
    """Makes samples of a column."""

    def read(self, table: Any) -> Samples:
        """The samples of these rows."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """Reads images as bytes [n, channels, height, width], or standardised."""

    column: str
    mode: str
    shape: tuple[int, int, int]
    norm: Standardisation | None
    """How the pixels become numbers, unless they stay bytes."""

    def read(self, table: Any) -> Samples:
        """The images of these rows; InvalidInput if one has another size or cannot be decoded."""
        pixels: Bytes = np.empty((len(table), *self.shape), dtype=np.uint8)
        for first in range(0, len(table), DECODED):
            rows = table.select(range(first, min(first + DECODED, len(table))))
            for place, image in enumerate(cells(rows, self.column), first):
                values = np.asarray(image.convert(self.mode))
                values = values[np.newaxis] if values.ndim == 2 else values.transpose(2, 0, 1)
                if values.shape != self.shape:
                    raise InvalidInput(
                        f"column {self.column!r}, row {place}: the image has shape {values.shape}, and the first of "
                        f"the training split {self.shape}: they must be the same."
                    )
                pixels[place] = values
        return pixels if self.norm is None else self.norm(pixels)


@dataclass(frozen=True, slots=True)
class Texts:
    """Reads texts as tokens of words."""

    column: str
    vocabulary: Vocabulary
    length: int

    def read(self, table: Any) -> Samples:
        """The texts of these rows."""
        return self.vocabulary.tokens([str(text) for text in cells(table, self.column)], self.length)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Reads a number of each row, or a list of them; several columns stand side by side."""

    columns: tuple[str, ...]

    def read(self, table: Any) -> Samples:
        """The numbers of these rows: float32, or int64 where a column holds lists of integers."""
        arrays = [_numbers(table, column) for column in self.columns]
        if len(arrays) == 1 and (isinstance(arrays[0], Ragged) or arrays[0].ndim > 1):
            return arrays[0]
        if any(isinstance(array, Ragged) or array.ndim != 1 for array in arrays):
            raise InvalidInput(f"x = {list(self.columns)}: several columns must each hold one number in every row.")
        return np.stack(arrays, axis=1).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Targets:
    """Reads labels, by their names if they are texts, or other targets."""

    column: str
    labels: Mapping[Any, int] | None
    """The label of each text; None: integers are labels as they are, and other numbers are targets."""

    def read(self, table: Any) -> Samples:
        """The targets of these rows."""
        if self.labels is None:
            found = _numbers(table, self.column)
            return found if isinstance(found, Ragged) or found.dtype.kind == "i" else found.astype(np.float32)
        for row, value in enumerate(cells(table, self.column)):
            if value not in self.labels:
                raise InvalidInput(f"column {self.column!r}, row {row}: {value!r} is no label of the training split.")
        return np.array([self.labels[value] for value in cells(table, self.column)], dtype=np.int64)


def cells(table: Any, column: str) -> list[Any]:
    """The values of a column as Python objects; InvalidInput if one is missing or cannot be decoded."""
    try:
        values: list[Any] = table.select_columns([column])[:][column]
    except Exception as error:  # a damaged file or image can end in any exception; all mean the same to the user
        raise InvalidInput(f"column {column!r} cannot be read: {describe(error)}.") from error
    absent = next((row for row, value in enumerate(values) if value is None), None)
    if absent is not None:
        raise InvalidInput(f"column {column!r}, row {absent}: there is no value.")
    return values


def _numbers(table: Any, column: str) -> Any:
    values = cells(table, column)
    try:
        array: Array = np.asarray(values)
    except ValueError:  # rows of different lengths
        return Ragged.of([np.asarray(row, dtype=np.int64) for row in values])
    if array.dtype.kind not in "iubf":
        raise InvalidInput(f"column {column!r} holds {array.dtype}: it must hold numbers, images or texts.")
    return array.astype(np.int64 if array.dtype.kind in "iub" else np.float32)


def inputs_of(table: Any, columns: Sequence[str], *, vocabulary: int, length: int, norm: Standardisation) -> Reader:
    """The reader of the inputs that this training table's columns hold."""
    kind = type(table.features[columns[0]]).__name__
    if len(columns) == 1 and kind == "Image":
        first = cells(table.select([0]), columns[0])[0]
        mode = "L" if first.mode in ("L", "1") else "RGB"
        return Pixels(columns[0], mode, (1 if mode == "L" else 3, first.size[1], first.size[0]), norm)
    if len(columns) == 1 and kind == "Value" and "string" in table.features[columns[0]].dtype:
        texts = (str(text) for text in cells(table, columns[0]))
        return Texts(columns[0], Vocabulary.of(texts, vocabulary), length)
    return Numbers(tuple(columns))


def targets_of(table: Any, column: str) -> tuple[Reader, tuple[str, ...]]:
    """The reader of the targets, and the names of the classes where they are known."""
    feature = table.features[column]
    if type(feature).__name__ == "ClassLabel":
        return Targets(column, None), tuple(feature.names)
    if type(feature).__name__ == "Value" and "string" in feature.dtype:
        names = sorted(set(cells(table, column)))
        return Targets(column, {name: label for label, name in enumerate(names)}), tuple(names)
    return Targets(column, None), ()
