"""Your own table: a CSV or parquet file with a target column and, optionally, a column that names the device.

Numeric columns are standardised and text columns one-hot encoded, both by what the training part holds.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.core.errors import InvalidInput, unknown
from offbeat.core.streams import stream
from offbeat.data.dataset import Dataset, DatasetSettings, Floats
from offbeat.data.partition import by_owner
from offbeat.data.samples import Array, Indices

MISSING = {"", "na", "n/a", "nan", "null", "none"}
"""Cells that count as missing, in any case."""
MOST_LABELS = 20
"""Most different integers in a target that is taken for a label."""
MOST_CATEGORIES = 200
"""Most different texts in a column that is one-hot encoded."""

Numeric = npt.NDArray[np.float64]


class CsvTable(DatasetSettings):
    """Your own table: a CSV (.csv, .csv.gz) or parquet file with a target column and optionally a device column."""

    name: Literal["csv"] = "csv"
    path: Annotated[str, Field(min_length=1)]
    """The file; parquet needs pyarrow, which the extra offbeat[datasets] has."""
    target: Annotated[str, Field(min_length=1)]
    """The column to predict."""
    device: str | None = None
    """The column that names the device of each row: its first `devices` values in sorted order are the devices."""
    devices: Annotated[int, Field(gt=0)] = 100
    """Devices that hold the data."""
    features: list[str] | None = None
    """The input columns (default: all but target, device and `drop`)."""
    drop: list[str] = Field([])
    """Columns to leave out, such as identifiers."""
    categorical: list[str] = Field([])
    """Columns of numbers to one-hot encode, such as codes; text columns always are."""
    predict: Literal["", "classes", "numbers"] = ""
    """What the target holds (default: classes if it holds text or at most 20 different integers, else numbers)."""
    test: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of each device's rows that is held out for evaluation; the seed does not change which."""
    missing: Literal["refuse", "fill"] = "refuse"
    """What to do with empty cells of input columns. fill: the mean of the training part; of text, a category."""
    standardise_target: bool = False
    """Whether numeric targets get mean 0 and standard deviation 1, so that errors are in standard deviations."""
    separator: Literal["", ",", ";", "\t", "|"] = ""
    """The column separator of a CSV file (default: the most frequent of , ; tab | in the header)."""

    @property
    def divided(self) -> bool:
        """Whether the data come divided over devices."""
        return self.device is not None

    def load(self, seed: int) -> Dataset:
        """Read the file; the seed is not used."""
        table = self.read()
        features = self._features(table)
        if self.device is not None:
            used = np.sort(by_owner(table[self.device].texts(), self.devices, self.device).indices)
            table = {name: column.take(used) for name, column in table.items()}
        y, classes = self._targets(table[self.target])
        owners, names = np.zeros(len(y), np.int64), tuple[str, ...]()
        if self.device is not None:
            unique, owners = np.unique(table[self.device].texts(), return_inverse=True)
            names = tuple(unique.tolist())
        train, test = split(owners, y if classes else None, self.test)
        if not len(test):
            raise InvalidInput(f"data.test = {self.test:g}: no row of {self.path} is left to evaluate on")
        x = self._inputs({name: table[name] for name in features}, train)
        if not classes and self.standardise_target:
            y = (y - y[train].mean()) / (y[train].std() or 1.0)
        targets = y.astype(np.int64 if classes else np.float32)
        each = range(len(names))
        return Dataset(
            train_x=x[train],
            train_y=targets[train],
            test_x=x[test],
            test_y=targets[test],
            classes=len(classes) or 1,
            class_names=classes,
            devices=tuple(np.flatnonzero(owners[train] == device) for device in each) if names else None,
            device_names=names,
            test_devices=tuple(np.flatnonzero(owners[test] == device) for device in each) if names else None,
            columns={name: column.take(train).texts() for name, column in table.items()},
        )

    def read(self) -> "dict[str, _Column]":
        """The columns of the file by name."""
        path = Path(self.path).expanduser()
        if not path.is_file():
            raise InvalidInput(f"data.path: the file {path} does not exist; it must be CSV (plain or .gz) or parquet")
        found = _parquet(path) if path.suffix == ".parquet" else _csv(path, self.separator)
        if not found or not len(next(iter(found.values()))):
            raise InvalidInput(f"data.path: {path} has no rows below its header")
        return found

    def _check(self, table: "Mapping[str, _Column]", key: str, names: list[str]) -> None:
        for name in names:
            if name not in table:
                raise unknown(f"column in data.{key},", name, table)

    def _targets(self, column: "_Column") -> tuple[Numeric, tuple[str, ...]]:
        """The targets, and the names of the classes; no names if they are numbers."""
        numbers = column.numbers
        if numbers is not None and self.predict != "classes":
            labels = bool((numbers == numbers.round()).all()) and len(np.unique(numbers)) <= MOST_LABELS
            if self.predict == "numbers" or not labels:
                return numbers, ()
        elif self.predict == "numbers":
            raise InvalidInput(f"data.predict = 'numbers': column {self.target!r} of {self.path} holds text")
        values: Array = column.texts() if numbers is None else numbers
        unique, labels_ = np.unique(values, return_inverse=True)
        if len(unique) < 2:
            raise InvalidInput(f"data.target = {self.target!r}: all rows have the same value, {unique[0]}")
        named = (f"{value:g}" if numbers is not None else value for value in unique.tolist())
        return labels_.astype(np.float64), tuple(named)

    def _features(self, table: "Mapping[str, _Column]") -> list[str]:
        """The input columns; InvalidInput if a column does not exist or has missing values that are not filled."""
        needed = [self.target, *([self.device] if self.device else [])]
        self._check(table, "target", needed[:1])
        self._check(table, "device", needed[1:])
        self._check(table, "drop", self.drop)
        self._check(table, "categorical", self.categorical)
        out = {*needed, *self.drop}
        names = [name for name in table if name not in out] if self.features is None else self.features
        self._check(table, "features", names)
        if not names:
            raise InvalidInput(f"data.features: {self.path} has no column besides target and device")
        for name in needed:
            _refuse_missing(table[name], self.path, name, "fill it or remove the row")
        for name in names if self.missing == "refuse" else ():
            _refuse_missing(table[name], self.path, name, 'list the column in data.drop or set data.missing = "fill"')
        return names

    def _inputs(self, table: "Mapping[str, _Column]", train: Indices) -> Floats:
        parts = []
        for name, column in table.items():
            if column.numbers is None or name in self.categorical:
                parts.append(_one_hot(column, train, name))
            else:
                parts.append(_standardised(column.numbers, train)[:, None])
        return np.concatenate(parts, axis=1).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class _Column:
    """The cells of a column as text, or as numbers if all of them are."""

    cells: Array
    numbers: Numeric | None
    """NaN where a cell is missing; None if a cell holds text."""
    absent: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.cells)

    @classmethod
    def of(cls, cells: Array) -> "_Column":
        """The column of these texts."""
        absent = np.array([cell.lower() in MISSING for cell in cells.tolist()], dtype=bool)
        try:
            numbers = np.where(absent, "nan", cells).astype(np.float64)
        except ValueError:
            return cls(cells, None, absent)
        return cls(cells, None if absent.all() else numbers, absent)

    def take(self, rows: Indices) -> "_Column":
        """These rows of the column."""
        return _Column(self.cells[rows], None if self.numbers is None else self.numbers[rows], self.absent[rows])

    def texts(self) -> Array:
        """The cells as text."""
        return self.cells.astype(str)


def _csv(path: Path, separator: str) -> dict[str, _Column]:
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidInput(f"data.path: {path} cannot be read as a CSV file, plain or .gz ({error})") from error
    first = text.strip().partition("\n")[0]
    delimiter = separator or max(list(",;\t|"), key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    header: list[str] = []
    rows: list[list[str]] = []
    for record in reader:
        if not any(cell.strip() for cell in record):
            continue
        if not header:
            header = [cell.strip() for cell in record]
            continue
        if len(record) != len(header):
            raise InvalidInput(
                f"data.path: line {reader.line_num} of {path} has {len(record)} columns, the header {len(header)}"
            )
        rows.append([cell.strip() for cell in record])
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise InvalidInput(f"data.path: two columns of {path} are named {twice!r}")
    return {name: _Column.of(np.array([row[place] for row in rows])) for place, name in enumerate(header)}


def _parquet(path: Path) -> dict[str, _Column]:
    try:
        from pyarrow import parquet, types
    except ImportError:
        raise InvalidInput(
            f"data.path: {path} is a parquet file, which needs pyarrow: pip install 'offbeat[datasets]', or use CSV"
        ) from None
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise InvalidInput(f"data.path: {path} cannot be read as a parquet file ({error})") from error
    found = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type.value_type if types.is_dictionary(column.type) else column.type
        if not (
            types.is_integer(kind)
            or types.is_floating(kind)
            or types.is_boolean(kind)
            or types.is_string(kind)
            or types.is_large_string(kind)
            or types.is_decimal(kind)
        ):
            raise InvalidInput(f"data.path: column {name!r} of {path} is of type {kind}: convert it to number or text")
        values = ["" if value is None else str(value) for value in column.to_pylist()]
        if types.is_boolean(kind):
            values = [{"True": "1", "False": "0"}.get(value, value) for value in values]
        found[name] = _Column.of(np.array(values))
    return found


def _refuse_missing(column: _Column, path: str, name: str, remedy: str) -> None:
    if column.absent.any():
        row = int(column.absent.argmax()) + 1
        count = int(column.absent.sum())
        raise InvalidInput(
            f"data.path: column {name!r} of {path} has {count} missing values, the first in row {row} "
            f"below the header: {remedy}"
        )


def _standardised(numbers: Numeric, train: Indices) -> Numeric:
    """The numbers with the training part's mean 0 and deviation 1; missing ones become the mean."""
    known = numbers[train][~np.isnan(numbers[train])]
    mean, deviation = (known.mean(), known.std()) if len(known) else (0.0, 1.0)
    scaled: Numeric = np.nan_to_num((numbers - mean) / (deviation or 1.0), nan=0.0)
    return scaled


def _one_hot(column: _Column, train: Indices, name: str) -> Numeric:
    """A column of zeros and ones per value of the training part; a value that it lacks is all zeros."""
    texts = column.texts()
    known = np.unique(texts[train])
    if len(known) > MOST_CATEGORIES:
        raise InvalidInput(
            f"data.features: column {name!r} has {len(known)} different texts, too many to one-hot encode (at most "
            f"{MOST_CATEGORIES}): list it in data.drop"
        )
    encoded: Numeric = (texts[:, None] == known[None, :]).astype(np.float64)
    return encoded


def split(owners: Indices, labels: Numeric | None, share: float) -> tuple[Indices, Indices]:
    """The rows to train on and those to test on: a share of each device's rows and, if there are labels, of each label.

    Every device keeps at least one row to train on.

    >>> train, test = split(np.array([0, 0, 0, 0, 1, 1, 1, 1, 2]), None, 0.25)
    >>> np.bincount(np.array([0, 0, 0, 0, 1, 1, 1, 1, 2])[test]).tolist(), len(train)
    ([1, 1], 7)
    """
    shuffled = stream(0, "held-out rows").permutation(len(owners))
    keys = (owners[shuffled],) if labels is None else (labels[shuffled], owners[shuffled])
    ordered = shuffled[np.lexsort(keys)]
    steps = np.floor(np.arange(len(ordered) + 1) * share + 1e-9)
    test = ordered[np.diff(steps) > 0]
    kept = np.bincount(owners, minlength=1) - np.bincount(owners[test], minlength=int(owners.max(initial=0)) + 1)
    test = np.sort(test[kept[owners[test]] > 0])
    return np.setdiff1d(np.arange(len(owners)), test), test
