"""Reads measurements of devices from CSV files: columns, units, and errors with line numbers."""

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from offbeat.core.errors import InvalidInput
from offbeat.core.settings import Settings
from offbeat.core.streams import stream
from offbeat.fleet.workload import Floats, Integers, Workload

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0, "d": 86400.0}
MEGABITS = {"Mbit/s": 1.0, "kbit/s": 1e-3, "bit/s": 1e-6, "Gbit/s": 1e3, "MB/s": 8.0, "kB/s": 8e-3, "B/s": 8e-6}
NO_UNITS: Mapping[str, float] = MappingProxyType({})
QUANTITIES: Mapping[str, Mapping[str, float]] = {
    "device": NO_UNITS,
    "time": SECONDS,
    "epoch_seconds": SECONDS,
    "slowness": NO_UNITS,
    "speed": NO_UNITS,
    "uplink_mbps": MEGABITS,
    "downlink_mbps": MEGABITS,
    "latency": SECONDS,
    "available": NO_UNITS,
}
"""The quantities that a file may contain, and their units; the first is the one used here."""
YES, NO = {"1", "1.0", "true", "yes", "on"}, {"0", "0.0", "false", "no", "off"}

Rule = tuple[str, Callable[[Floats], npt.NDArray[np.bool_]]]
"""What the numbers of a column must be, in words and as a test."""
POSITIVE: Rule = ("positive", lambda column: (column > 0) & np.isfinite(column))
POSITIVE_OR_INFINITE: Rule = ("positive", lambda column: column > 0)
NOT_NEGATIVE: Rule = ("zero or more", lambda column: (column >= 0) & np.isfinite(column))
FINITE: Rule = ("a number", np.isfinite)


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """The known columns of a file, as text, by quantity."""

    where: str
    """The table of the experiment that names the file, for messages."""
    path: Path
    header: list[str]
    lines: list[int]
    """The line number of each row, counted from 1 with the header."""
    names: Mapping[str, str]
    """The column name of each quantity."""
    texts: Mapping[str, list[str]]
    units: Mapping[str, str]
    comma: bool
    """Whether numbers may have a decimal comma, since columns are not separated by commas."""

    def __contains__(self, quantity: str) -> bool:
        return quantity in self.texts

    def wrong(self, row: int, quantity: str, must: str) -> InvalidInput:
        """The error for a wrong cell, with its line."""
        name, text = self.names[quantity], self.texts[quantity][row]
        meant = "" if name == quantity else f" ({quantity})"
        return InvalidInput(
            f"{self.where}.path: column {name!r}{meant} of {self.path} is {text!r} in line {self.lines[row]}, "
            f"but must be {must}."
        )

    def numbers(self, quantity: str, rule: Rule) -> Floats:
        """A column in our unit; InvalidInput if a number violates the rule."""
        must, keeps = rule
        values = []
        for row, text in enumerate(self.texts[quantity]):
            try:
                values.append(float(text.replace(",", ".") if self.comma else text))
            except ValueError:
                raise self.wrong(row, quantity, f"{must}, not text" if must != "a number" else must) from None
        column = np.array(values, dtype=np.float64)
        good = keeps(column)
        if not good.all():
            raise self.wrong(int(np.argmin(good)), quantity, must)
        known = QUANTITIES[quantity]
        return column * known[self.units[quantity]] if quantity in self.units else column

    def switches(self, quantity: str) -> list[bool]:
        """A column of true and false."""
        for row, text in enumerate(self.texts[quantity]):
            if text.lower() not in YES | NO:
                raise self.wrong(row, quantity, "1 or 0, true or false, yes or no, on or off")
        return [text.lower() in YES for text in self.texts[quantity]]

    def devices(self) -> dict[str, list[int]]:
        """The rows of each device, in the order of the file; of one device without a column "device"."""
        if "device" not in self:
            return {"": list(range(len(self.lines)))}
        rows: dict[str, list[int]] = {}
        for row, text in enumerate(self.texts["device"]):
            rows.setdefault(text, []).append(row)
        return rows


class MeasuredFile(Settings):
    """A CSV file with measurements, and its format."""

    path: str = Field(min_length=1)
    """CSV file (plain or .gz) with a header."""
    columns: dict[str, str] = Field({})
    """The column of a quantity, for example `{epoch_seconds = "train_ms"}` (default: the quantity's name).
    Quantities: device, time, epoch_seconds, slowness, speed, uplink_mbps, downlink_mbps, latency, available."""
    units: dict[str, str] = Field({})
    """The unit of a column, for example `{epoch_seconds = "ms"}`: s, ms, us, min, h, d for times, Mbit/s, kbit/s,
    bit/s, Gbit/s, MB/s, kB/s, B/s for bandwidths (default: seconds and Mbit/s)."""
    separator: Literal["", ",", ";", "\t", "|"] = ""
    """The column separator (default: the most frequent of , ; tab | in the header)."""
    assign: Literal["", "device", "random"] = ""
    """"device": the file's devices are the experiment's, by name or number (0, 1 ...), whatever the order of the rows;
    where nothing else names the devices, names are numbered in sorted order. "random": every device draws one of the
    file's (default: "device" if there is such a column)."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        for key, given in (("columns", self.columns), ("units", self.units)):
            for quantity in given:
                if quantity not in QUANTITIES:
                    raise ValueError(f"{key} has {quantity!r}, which is none of {', '.join(QUANTITIES)}")
        for quantity, unit in self.units.items():
            known = QUANTITIES[quantity]
            if unit not in known:
                choice = f"must be one of {', '.join(known)}" if known else "is a quantity without a unit"
                raise ValueError(f"units.{quantity} = {unit!r}: it {choice}")
        return self

    def read(self, where: str, quantities: Sequence[str]) -> Measurements:
        """The columns of these quantities that the file has; other columns are ignored."""
        path = Path(self.path)
        text = _text(where, path)
        first = text.strip().partition("\n")[0]
        separator: str = self.separator or max(list(",;\t|"), key=first.count)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        header: list[str] = []
        records: list[tuple[int, list[str]]] = []
        for record in reader:
            if not any(cell.strip() for cell in record):
                continue
            if header:
                records.append((reader.line_num, [cell.strip() for cell in record]))
            else:
                header = [cell.strip() for cell in record]
        for quantity in self.columns.keys() | self.units.keys():
            if self.columns.get(quantity, quantity) not in header:
                key = f"{where}.{'columns' if quantity in self.columns else 'units'}.{quantity}"
                name = self.columns.get(quantity, quantity)
                raise InvalidInput(f"{key}: {path} has no column {name!r}; it has: {', '.join(header) or 'none'}.")
        names = {each: self.columns.get(each, each) for each in quantities if self.columns.get(each, each) in header}
        if header and not records:
            raise InvalidInput(f"{where}.path: {path} has a header but no rows: add at least one device.")
        indices = {quantity: header.index(name) for quantity, name in names.items()}
        for line, cells in records:
            if len(cells) <= max(indices.values(), default=-1):
                raise InvalidInput(
                    f"{where}.path: line {line} of {path} has {len(cells)} columns, but the header has {len(header)}."
                )
        return Measurements(
            where=where,
            path=path,
            header=header,
            lines=[line for line, _ in records],
            names=names,
            texts={quantity: [cells[index] for _, cells in records] for quantity, index in indices.items()},
            units=self.units,
            comma=separator != ",",
        )

    def assigned(self, found: Measurements, names: Sequence[str], workload: Workload, role: str) -> Integers:
        """The index of the file's device for each device of the experiment; `role` names the random stream."""
        known, devices = len(names), workload.devices
        if self.assign == "random" or (not self.assign and "device" not in found):
            return stream(workload.seed, role).choice(known, devices, replace=devices > known)
        column = f"{found.where}.path: column {found.names.get('device', 'device')!r} of {found.path}"
        numbered = all(name.isdigit() for name in names) and sorted(map(int, names)) == list(range(known))
        if workload.names is not None and not numbered:
            if missing := [name for name in workload.names if name not in names]:
                raise InvalidInput(
                    f"{column} has no {missing[0]!r}, which is a device of {workload.named_by}: add it, or set "
                    f"{found.where}.assign = 'random'."
                )
            return np.array([names.index(name) for name in workload.names], dtype=np.int64)
        if not numbered and all(name.isdigit() for name in names):
            raise InvalidInput(f"{column} must hold every number from 0 to {known - 1}, or names.")
        if known < devices:
            raise InvalidInput(
                f"{found.where}.path: {found.path} describes {known} devices, but the experiment has {devices}: add "
                f"devices, or set {found.where}.assign = 'random'."
            )
        order = np.argsort([int(name) for name in names] if numbered else names, kind="stable")
        return order[:devices].astype(np.int64)


def _text(where: str, path: Path) -> str:
    """The text of a plain or gzipped file."""
    if not path.is_file():
        raise InvalidInput(f"{where}.path: the file {path} does not exist; it must be a CSV file, plain or .gz.")
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidInput(f"{where}.path: {path} cannot be read as a CSV file, plain or .gz ({error}).") from error
