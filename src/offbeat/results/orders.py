"""The order log of a run: one record of fixed size per order, written when its fate is known. Reports read it.

`orders.bin` is `MAGIC` followed by records of `ORDER`, in the order in which the orders were resolved or lost. A record
that is incomplete, because the run was killed while it wrote, is ignored.
"""

from collections.abc import Iterable, Sequence
from math import nan
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import astuple

from offbeat.core.errors import InvalidInput
from offbeat.results.files import Log
from offbeat.results.rows import Span

MAGIC = b"offbeat orders 1"
FRESH, USED, DISCARDED, LOST, RECEIVED, IN_FLIGHT = range(6)
"""Kinds of records: a device waited for a fresh model from `sent` to `landed`; and the fates of an order."""
ORDER = np.dtype(
    [
        ("kind", "<u2"),
        ("slices", "<u2"),
        ("device", "<u4"),
        ("ticket", "<u4"),
        ("base", "<u4"),
        ("version", "<u4"),  # in which the update was used; 0 if it was not
        ("samples", "<u4"),
        ("sent", "<f8"),
        ("arrived", "<f8"),
        ("trained", "<f8"),  # end of training; nan if it is not known
        ("ended", "<f8"),  # when the device vanished or its upload was lost; else like landed
        ("landed", "<f8"),
        ("resolved", "<f8"),  # when the update was used or discarded; nan if it was not
        ("noticed", "<f8"),  # when a stop notice reached the device; nan if none did
    ]
)
_pack = Struct("<HHIIIII7d").pack
Records = npt.NDArray[Any]
"""An array of `ORDER`."""
Closed = tuple[int, Sequence[Span]]
"""Orders whose fate is known: the version that used their updates, or 0 if they were discarded or lost."""


def record(span: Span, kind: int, version: int = 0, at: float = nan) -> bytes:
    """The record of an order, preceded by those of its waits for a fresh model."""
    # All fields at once: reading them one by one takes twice as long, for every order of a run.
    device, ticket, base, sent, arrived, landed, slices, _, trained, pauses, ended, samples, _, _, _, noticed = astuple(
        span
    )
    order = _pack(
        kind,
        slices if slices < 65_536 else 65_535,
        device,
        ticket,
        base,
        version,
        samples,
        sent,
        arrived,
        nan if trained is None else trained,
        landed if ended is None else ended,
        landed,
        at,
        nan if noticed is None else noticed,
    )
    if not pauses:
        return order
    waits = (
        _pack(FRESH, 0, device, ticket, base, 0, 0, asked, nan, nan, nan, answered, nan, nan)
        for asked, answered in pauses
    )
    return b"".join((*waits, order))


def records(spans: Iterable[Span], kind: int) -> bytes:
    """The records of orders that are not closed yet."""
    return b"".join(record(span, kind) for span in spans)


class OrderLog:
    """Writes the order log of a run. To continue a log, pass its length as `position`."""

    def __init__(self, path: Path, position: int = 0) -> None:
        self._log = Log(path, position)
        if not position:
            self._log.append(MAGIC)

    def write(self, closed: Iterable[Closed], at: float) -> None:
        """Add orders that were resolved or lost at this time."""
        for version, spans in closed:
            if version:
                self._log.append(b"".join([record(span, USED, version, at) for span in spans]))
            else:
                for span in spans:
                    self._log.append(record(span, DISCARDED if span.outcome == "uploaded" else LOST, 0, at))

    def finish(self, received: Iterable[Span], in_flight: Iterable[Span]) -> None:
        """Add the orders that the end of the run left unresolved or in flight."""
        self._log.append(records(received, RECEIVED))
        self._log.append(records(in_flight, IN_FLIGHT))

    def flush(self) -> None:
        """Write the buffer, so that other processes can read it."""
        self._log.flush()

    @property
    def position(self) -> int:
        """Length of the file in bytes, to which a resumed run truncates it."""
        return self._log.position

    def close(self) -> None:
        """Write the buffer and close the file."""
        self._log.close()


def read_orders(path: Path) -> Records | None:
    """The records of an order log; None if the run has none, as runs of version 0.1 have not."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if not data.startswith(MAGIC[: len(data)]):
        raise InvalidInput(f"{path} is not an order log of this version of offbeat")
    return parse_records(data[len(MAGIC) :])


def parse_records(data: bytes) -> Records:
    """The complete records in these bytes."""
    return np.frombuffer(data[: len(data) // ORDER.itemsize * ORDER.itemsize], dtype=ORDER)
