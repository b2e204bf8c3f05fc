"""Data sets of the Hugging Face hub, or local copies: parquet or arrow files, or a `save_to_disk` directory.

Needs the extra `offbeat[datasets]`. The type of a column decides what it becomes: images become pixels from 0 to 1 (or
standardised), texts become word tokens as in `imdb`, lists of integers int64 tokens, other numbers float32. Targets are
integer or text labels, or numbers for a regression. A reader is made from the training table and then reads any rows of
either table. Tables are memory-mapped; rows are read when the data are loaded or, with `lazy`, when a device trains.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.core.streams import stream
from offbeat.data.dataset import Dataset, DatasetSettings
from offbeat.data.embedded import held_out
from offbeat.data.images import kept_as_bytes
from offbeat.data.partition import by_owner
from offbeat.data.samples import Array, Indices, LazyDevices, Ragged, Samples
from offbeat.data.text import Vocabulary
from offbeat.data.transforms import Bytes, InputPipeline, Standardisation
from offbeat.references import describe

DECODED = 1000
"""Images decoded at a time."""
FORMATS = ("parquet", "arrow")


class Reader(Protocol):
    """Reads columns as samples."""

    def read(self, table: Any) -> Samples:
        """The samples of these rows."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """Reads images as bytes [n, channels, height, width], or standardised."""

    column: str
    mode: str
    shape: tuple[int, int, int]
    norm: Standardisation | None
    """Standardises the pixels; None: they stay bytes."""

    def read(self, table: Any) -> Samples:
        """The images of these rows; InvalidInput if one has another size or cannot be decoded."""
        pixels: Bytes = np.empty((len(table), *self.shape), dtype=np.uint8)
        for first in range(0, len(table), DECODED):
            rows = table.select(range(first, min(first + DECODED, len(table))))
            for row, image in enumerate(cells(rows, self.column), first):
                values = np.asarray(image.convert(self.mode))
                values = values[np.newaxis] if values.ndim == 2 else values.transpose(2, 0, 1)
                if values.shape != self.shape:
                    raise InvalidInput(
                        f"column {self.column!r}, row {row}: the image has shape {values.shape}; it must be that of "
                        f"the first training image, {self.shape}."
                    )
                pixels[row] = values
        return pixels if self.norm is None else self.norm(pixels)


@dataclass(frozen=True, slots=True)
class Texts:
    """Reads texts as word tokens."""

    column: str
    vocabulary: Vocabulary
    length: int

    def read(self, table: Any) -> Samples:
        """The texts of these rows."""
        return self.vocabulary.tokens([str(text) for text in cells(table, self.column)], self.length)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Reads one column of numbers or lists of numbers, or several columns of numbers as features."""

    columns: tuple[str, ...]

    def read(self, table: Any) -> Samples:
        """The numbers of these rows: float32, or int64 where a column holds lists of integers."""
        arrays = [_numbers(table, column) for column in self.columns]
        if len(arrays) == 1 and (isinstance(arrays[0], Ragged) or arrays[0].ndim > 1):
            return arrays[0]
        if any(isinstance(array, Ragged) or array.ndim != 1 for array in arrays):
            raise InvalidInput(f"data.x = {list(self.columns)}: each of several columns must hold one number per row.")
        return np.stack(arrays, axis=1).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Targets:
    """Reads labels, which may be texts, or numeric targets."""

    column: str
    labels: Mapping[Any, int] | None
    """The label of each text; None: the column is numeric."""

    def read(self, table: Any) -> Samples:
        """The targets of these rows."""
        if self.labels is None:
            found = _numbers(table, self.column)
            return found if isinstance(found, Ragged) or found.dtype.kind == "i" else found.astype(np.float32)
        for row, value in enumerate(cells(table, self.column)):
            if value not in self.labels:
                raise InvalidInput(
                    f"column {self.column!r}, row {row}: {value!r} is not a label of the training split."
                )
        return np.array([self.labels[value] for value in cells(table, self.column)], dtype=np.int64)


def cells(table: Any, column: str) -> list[Any]:
    """The values of a column as Python objects; InvalidInput if one is missing or cannot be decoded."""
    try:
        values: list[Any] = table.select_columns([column])[:][column]
    except Exception as error:  # a damaged file or image can raise anything
        raise InvalidInput(f"column {column!r} cannot be read: {describe(error)}.") from error
    absent = next((row for row, value in enumerate(values) if value is None), None)
    if absent is not None:
        raise InvalidInput(f"column {column!r}, row {absent}: the value is missing.")
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
    """The reader of the inputs, by the types of the training table's columns."""
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
    """The reader of the targets, and the names of the classes if known."""
    feature = table.features[column]
    if type(feature).__name__ == "ClassLabel":
        return Targets(column, None), tuple(feature.names)
    if type(feature).__name__ == "Value" and "string" in feature.dtype:
        names = sorted(set(cells(table, column)))
        return Targets(column, {name: label for label, name in enumerate(names)}), tuple(names)
    return Targets(column, None), ()


class HuggingFace(DatasetSettings):
    """Any data set of the Hugging Face hub, or a local parquet or arrow copy; needs the extra 'datasets'."""

    name: Literal["huggingface"] = "huggingface"
    source: Annotated[str, Field(min_length=1)]
    """The name on the hub ("ylecun/mnist"), or a local file or directory of parquet or arrow files whose names begin
    with the split, or a directory that `save_to_disk` wrote."""
    config: str | None = None
    """Configuration of a data set on the hub, if it has several."""
    revision: str | None = None
    """Commit or tag of a data set on the hub, so that a run can be repeated."""
    train: Annotated[str, Field(min_length=1)] = "train"
    """The split to train on; on the hub also a part of one, such as "train[:80%]"."""
    test: str = "test"
    """The split to test on; empty: every fifth training sample of each class is held out."""
    x: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)]
    """The input column, or a list of numeric columns."""
    y: Annotated[str, Field(min_length=1)]
    """The target column."""
    device: str | None = None
    """The column that names each sample's owner: its first `devices` values in sorted order are the devices."""
    devices: Annotated[int, Field(gt=0)] = 100
    """Devices that hold the data."""
    mean: list[float] = Field([0.0])
    """Subtracted from pixels between 0 and 1: one number for all channels, or one per channel."""
    std: list[Annotated[float, Field(gt=0)]] = Field([1.0])
    """Pixels are then divided by it."""
    as_bytes: bool | None = None
    """Keep pixels as bytes and normalise each batch: a quarter of the memory, bit-identical results (default: if
    float32 pixels would take more than 256 MB)."""
    vocabulary: Annotated[int, Field(ge=3)] = 20_000
    """Size of the vocabulary of text inputs, including padding (0) and unknown words (1)."""
    length: Annotated[int, Field(ge=1)] = 256
    """Words used of each text input, from its beginning."""
    limit: Annotated[int, Field(gt=0)] | None = None
    """Maximum number of training samples; the seed does not change which."""
    lazy: bool = False
    """Read a device's samples when it trains, so that the data need not fit into memory; needs `device`."""
    cache: str | None = None
    """Cache directory of the `datasets` library (default: its own)."""

    @property
    def divided(self) -> bool:
        """Whether the data come divided over devices."""
        return self.device is not None

    def load(self, seed: int) -> Dataset:
        """Read the columns; the seed is not used."""
        if self.lazy and self.device is None:
            raise InvalidInput("data.lazy = true reads samples device by device: data.device must name a column")
        train, test = self._tables()
        columns = [self.x] if isinstance(self.x, str) else self.x
        for split, table in ((self.train, train), (self.test or self.train, test)):
            self._check_columns(split, table, columns)
        norm = Standardisation(tuple(self.mean), tuple(self.std))
        inputs = inputs_of(train, columns, vocabulary=self.vocabulary, length=self.length, norm=norm)
        pipeline = None
        if isinstance(inputs, Pixels) and kept_as_bytes(self.as_bytes, prod(inputs.shape) * (len(train) + len(test))):
            inputs, pipeline = replace(inputs, norm=None), InputPipeline(standardisation=norm)
        targets, names = targets_of(train, self.y)
        kept = None if self.device is None else by_owner(np.array(cells(train, self.device)), self.devices, self.device)
        y = targets.read(train)
        lazy = None
        if self.lazy and kept is not None:
            owned = [kept.samples(device) for device in range(kept.devices)]
            lazy = LazyDevices(kept.sizes, TableOfDevices(train, owned, inputs, targets))
        return Dataset(
            train_x=inputs.read(train) if lazy is None else lazy,
            train_y=y if lazy is None else None,
            test_x=inputs.read(test),
            test_y=targets.read(test),
            classes=len(names) or _classes(y),
            class_names=names,
            device_names=() if kept is None or lazy else kept.names,
            devices=None if kept is None or lazy else tuple(kept.samples(device) for device in range(kept.devices)),
            pipeline=pipeline,
            vocabulary=self.vocabulary if isinstance(inputs, Texts) else None,
            columns={} if lazy else Columns(train, but=columns),
        )

    def _tables(self) -> tuple[Any, Any]:
        """The training and the test table."""
        train = self._table(self.train)
        if self.test:
            test = self._table(self.test)
        else:
            values = cells(train, self.y) if self.y in train.column_names else []
            classes = len(values) > 0 and isinstance(values[0], str | int)
            strata = np.unique(np.array(values), return_inverse=True)[1] if classes else np.zeros(len(train), np.int64)
            kept, out = held_out(strata)
            train, test = train.select(kept), train.select(out)
        if self.limit is not None and self.limit < len(train):
            train = train.select(np.sort(stream(0, "limit").permutation(len(train))[: self.limit]))
        for split, table in ((self.train, train), (self.test or self.train, test)):
            if not len(table):
                raise InvalidInput(f"data.source = {self.source!r}: split {split!r} is empty.")
        return train, test

    def _table(self, split: str) -> Any:
        try:
            import datasets
        except ImportError as error:
            raise InvalidInput(f"data.name = 'huggingface' needs the extra offbeat[datasets]: {error}.") from error
        datasets.disable_progress_bars()
        path = Path(self.source).expanduser()
        try:
            if not path.exists():
                return datasets.load_dataset(
                    self.source, self.config, split=split, revision=self.revision, cache_dir=self.cache
                )
            if any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
                return _split(datasets.load_from_disk(str(path)), split)
            files, kind = local_files(path, split)
            return datasets.load_dataset(kind, data_files=files, split="train", cache_dir=self.cache)
        except InvalidInput as error:
            raise InvalidInput(f"data.source = {self.source!r}: {error}") from error
        except Exception as error:  # damaged files, no network, no such data set: the library raises anything
            reason = describe(error.__cause__ or error)
            raise InvalidInput(f"data.source = {self.source!r}: split {split!r} cannot be loaded: {reason}.") from error

    def _check_columns(self, split: str, table: Any, inputs: list[str]) -> None:
        wanted = {"x": inputs, "y": [self.y], "device": [self.device] if self.device and split == self.train else []}
        for key, columns in wanted.items():
            for column in columns:
                if column not in table.column_names:
                    there = ", ".join(table.column_names)
                    raise InvalidInput(f"data.{key} = {column!r}: split {split!r} has the columns {there}")


@dataclass(frozen=True, slots=True)
class TableOfDevices:
    """Reads one device's rows of a table."""

    table: Any
    owned: list[Indices]
    inputs: Reader
    targets: Reader

    def __call__(self, device: int) -> tuple[Samples, Samples]:
        rows = self.table.select(self.owned[device])
        return self.inputs.read(rows), self.targets.read(rows)


class Columns(Mapping[str, Array]):
    """The columns with one value per row, read on first access."""

    def __init__(self, table: Any, but: list[str]) -> None:
        plain = (name for name, feature in table.features.items() if type(feature).__name__ in ("Value", "ClassLabel"))
        self._names = [name for name in plain if name not in but]
        self._table = table

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        return np.array(cells(self._table, name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def local_files(path: Path, split: str) -> tuple[list[str], str]:
    """The files of a split, and their format."""
    for kind in FORMATS:
        if path.is_file():
            found = [path] if path.suffix == f".{kind}" else []
        else:
            found = sorted([*path.rglob(f"{split}*.{kind}"), *(path / split).rglob(f"*.{kind}")])
        if found:
            return [str(each) for each in dict.fromkeys(found)], kind
    raise InvalidInput(f"no parquet or arrow file has a name that begins with {split!r}.")


def _split(loaded: Any, split: str) -> Any:
    """A split of a saved data set; a single table is the training split."""
    if not isinstance(loaded, dict):
        return loaded
    if split not in loaded:
        raise InvalidInput(f"there is no split {split!r}, only {', '.join(loaded)}.")
    return loaded[split]


def _classes(y: Samples) -> int:
    """The number of classes of integer labels without names; 0 for other targets, which `Dataset` counts."""
    return 1 + int(y.max()) if not isinstance(y, Ragged) and y.ndim == 1 and y.dtype.kind == "i" else 0
