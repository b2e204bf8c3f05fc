"""A fleet read from a file: the epoch time of each device, and its link if the file has columns for it."""

import csv
import gzip
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.core.streams import stream
from offbeat.fleet.speeds import CostSettings, FixedSpeeds, Speeds
from offbeat.fleet.workload import Floats, Workload

TIMES = ("epoch_seconds", "slowness")
LINKS = ("uplink_mbps", "downlink_mbps", "latency")


def read_lines(path: Path) -> list[str]:
    """The text of a plain or gzipped file, without blank lines."""
    if not path.is_file():
        raise InvalidInput(f"fleet.path: there is no file {path}; give a CSV file, plain or .gz.")
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidInput(f"fleet.path: {path} cannot be read as a CSV file, plain or .gz ({error}).") from error
    return [line for line in text.splitlines() if line.strip()]


def read_columns(path: Path) -> dict[str, Floats]:
    """The columns of a trace that mean something to us, by name; all others are ignored."""
    lines = read_lines(path)
    header = [name.strip() for name in next(csv.reader(lines[:1]), [])]
    wanted = [name for name in ("device", *TIMES, *LINKS) if name in header]
    if len(set(wanted) & set(TIMES)) != 1:
        found = ", ".join(header) or "none"
        raise InvalidInput(
            f"fleet.path: {path} needs a column 'epoch_seconds' or 'slowness', and not both; it has: {found}."
        )
    if len(lines) < 2:
        raise InvalidInput(f"fleet.path: {path} has a header but no rows; give at least one device.")
    places = [header.index(name) for name in wanted]
    try:
        table = np.loadtxt(lines[1:], delimiter=",", usecols=places, ndmin=2, comments=None, quotechar='"')
    except ValueError as error:
        raise InvalidInput(
            f"fleet.path: {path} has a row without a number in {', '.join(wanted)} ({error})."
        ) from error
    columns = dict(zip(wanted, table.T, strict=True))
    for name, column in columns.items():
        _check(path, name, column)
    return columns


def _check(path: Path, name: str, column: Floats) -> None:
    """Seconds and slowness are positive and finite; a bandwidth may be infinite, a latency zero."""
    if name == "device":
        if not np.array_equal(np.sort(column), np.arange(len(column))):
            last = len(column) - 1
            raise InvalidInput(f"fleet.path: column 'device' of {path} must hold each of 0 to {last} exactly once.")
        return
    enough = column >= 0 if name == "latency" else column > 0
    good = enough if name.endswith("_mbps") else enough & np.isfinite(column)
    if not good.all():
        row = int(np.argmin(good))
        allowed = "zero or more" if name == "latency" else "positive"
        raise InvalidInput(
            f"fleet.path: column {name!r} of {path} is {column.item(row)} in row {row + 1}, but must be {allowed}."
        )


class TraceFleet(CostSettings):
    """Epoch times, and links if given, of measured devices from a CSV file."""

    name: Literal["trace"] = "trace"
    path: str = Field(min_length=1)
    """CSV file (plain or .gz) with a header and a column epoch_seconds or slowness. Optional columns: device (0, 1 ...;
    without it rows are drawn at random); uplink_mbps, downlink_mbps, latency, which come before those of [network]."""

    def build(self, workload: Workload) -> Speeds:
        path = Path(self.path)
        columns = read_columns(path)
        rows = self._rows(path, columns, workload)
        if "slowness" in columns:
            seconds = self.epoch_times(workload, columns["slowness"][rows])
        elif self.cost == "flops":
            raise InvalidInput(
                f"fleet.cost is 'flops', which needs a column 'slowness', but {path} has 'epoch_seconds': "
                "use 'seconds' or 'samples'."
            )
        else:
            seconds = self.scaled(workload, columns["epoch_seconds"][rows])
        return FixedSpeeds(seconds, workload, {name: columns[name][rows] for name in LINKS if name in columns})

    def _rows(self, path: Path, columns: dict[str, Floats], workload: Workload) -> npt.NDArray[np.intp]:
        """Which row of the file describes each device."""
        if "device" not in columns:
            known = len(next(iter(columns.values())))
            random = stream(workload.seed, "trace")
            return random.choice(known, workload.devices, replace=workload.devices > known)
        known = len(columns["device"])
        if known < workload.devices:
            raise InvalidInput(
                f"fleet.path: {path} describes {known} devices, but the experiment has {workload.devices}: "
                "give at least as many rows, or leave out the column 'device' to draw rows at random."
            )
        return np.argsort(columns["device"])[: workload.devices]
