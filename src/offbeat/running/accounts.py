"""The accounts of a run: how every order ended, and how each device spent its time.

A driver reports orders that end and updates that are resolved. From these come the busy and wasted seconds of the
metrics, the spans of the timeline, and `devices.csv`. Totals per device are computed when the loop takes the spans, so
that a driver's turn stays short.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any

from msgspec import Struct, structs

from offbeat.results.orders import Closed
from offbeat.results.rows import Span

FIFTHS = 5
NO_COLUMNS: Mapping[str, Sequence[float]] = MappingProxyType({})
MOST_DEVICES = 10_000
"""Largest fleet with accounts per device."""


class DeviceAccount(Struct, kw_only=True, eq=False, gc=False):
    """Totals of one device. Seconds are those of the run's clock: virtual in a simulation, wall-clock otherwise."""

    device: int
    samples: int = 0
    orders: int = 0
    delivered: int = 0
    used: int = 0
    lost: int = 0
    refused: int = 0
    staleness_sum: int = 0
    training_seconds: float = 0.0
    """Training, by the device's own clock."""
    way_seconds: float = 0.0
    """From order to upload without the training: communication, start of processes, waiting for replies."""
    idle_seconds: float = 0.0
    """Without an order, from the start of the run to its end; includes the time in which the device is away."""
    bytes_down: int = 0
    bytes_up: int = 0


class Accounts:
    """The accounts of all devices."""

    __slots__ = (
        "_figures",
        "_landed",
        "_unresolved",
        "busy_seconds",
        "closed",
        "marks",
        "names",
        "per_device",
        "spans",
        "wasted_seconds",
    )

    def __init__(
        self, devices: int, names: Sequence[str] | None = None, marks: Mapping[str, Sequence[float]] = NO_COLUMNS
    ) -> None:
        self.marks = marks
        """Columns of `devices.csv` that are known from the start."""
        self.names = names
        """The names of the devices, if they have any."""
        self.busy_seconds = 0.0
        self.wasted_seconds = 0.0
        self.spans: list[Span] = []
        """Orders that ended since `take_spans`."""
        self.per_device = devices <= MOST_DEVICES
        self._figures = [DeviceAccount(device=device) for device in range(devices if self.per_device else 0)]
        """The account of every device, without the spans not taken yet."""
        self.closed: list[Closed] = []
        """Orders that were used, discarded or lost since `take_closed`."""
        self._landed: dict[int, float] = {}
        """Time at which the last order of each device ended, if it has had no order since."""
        self._unresolved: dict[int, Span] = {}
        """Received updates that are not resolved, by ticket."""

    # Reports of the driver ----------------------------------------------------------------------------------------

    def delivered(self, span: Span) -> None:
        """An order ended with an upload."""
        self.busy_seconds += span.seconds
        self._unresolved[span.ticket] = span
        self.spans.append(span)

    def lost(self, span: Span) -> None:
        """An order ended without an upload."""
        self.busy_seconds += span.seconds
        self.wasted_seconds += span.seconds
        self.spans.append(span)
        self.closed.append((0, (span,)))

    def resolved(self, tickets: Iterable[int], used: bool, version: int) -> None:
        """Updates were used in this version, or discarded."""
        spans = [self._unresolved.pop(ticket) for ticket in tickets]
        if not used:
            for span in spans:
                self.wasted_seconds += span.seconds
        self.closed.append((version if used else 0, spans))

    def refused(self, device: int) -> None:
        """A message of a device was refused."""
        if self.per_device:
            self._figures[device].refused += 1

    def refused_devices(self) -> dict[str, int]:
        """The number of refused messages of each device that sent any, most first."""
        found = [(each.device, each.refused) for each in self._figures if each.refused]
        return {str(device): count for device, count in sorted(found, key=lambda pair: (-pair[1], pair[0]))}

    # Results ------------------------------------------------------------------------------------------------------

    def take_spans(self) -> list[Span]:
        """Return the orders that ended since the last call, and count them for their devices."""
        taken = self.spans.copy()
        self.spans.clear()
        if self.per_device:
            for span in taken:
                self._count(span)
        return taken

    def take_closed(self) -> list[Closed]:
        """Return the orders that were used, discarded or lost since the last call; count the used ones."""
        taken = self.closed.copy()
        self.closed.clear()
        if self.per_device:
            for version, spans in taken:
                if version:
                    for span in spans:
                        account = self._figures[span.device]
                        account.used += 1
                        account.staleness_sum += version - 1 - span.base
        return taken

    @property
    def received(self) -> list[Span]:
        """Received updates that are not resolved yet."""
        return list(self._unresolved.values())

    def _count(self, span: Span) -> None:
        account = self._figures[span.device]
        account.samples = span.samples
        account.orders += 1
        account.bytes_down += span.bytes_down
        account.training_seconds += span.seconds
        account.idle_seconds += span.sent - self._landed.get(span.device, 0.0)
        self._landed[span.device] = span.landed
        if span.outcome == "lost":
            account.lost += 1
        else:
            account.delivered += 1
            account.bytes_up += span.bytes_up
            account.way_seconds += max(0.0, span.landed - span.sent - span.seconds)

    def table(self, open_spans: Iterable[Span] = (), now: float = 0.0) -> list[DeviceAccount]:
        """The account of every device up to now, with the orders in flight."""
        self.take_closed()
        accounts, busy = [structs.replace(account) for account in self._figures], set[int]()
        for span in open_spans:
            account = accounts[span.device]
            account.samples = span.samples
            account.orders += 1
            account.bytes_down += span.bytes_down
            account.idle_seconds += span.sent - self._landed.get(span.device, 0.0)
            busy.add(span.device)
        for account in accounts:
            if account.device not in busy:
                account.idle_seconds += max(0.0, now - self._landed.get(account.device, 0.0))
        return accounts

    def csv(
        self, open_spans: Iterable[Span] = (), now: float = 0.0, columns: Mapping[str, Sequence[float]] = NO_COLUMNS
    ) -> str:
        """The accounts as CSV, a line per device with its mean staleness, its influence and its name.

        `columns` are further columns, with a number for each device, or replace the influence.
        """
        table = self.table(open_spans, now)
        text, columns = io.StringIO(), {**self.marks, "influence": influence(table), **columns}
        names = [field.name for field in structs.fields(DeviceAccount) if field.name != "staleness_sum"]
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*names, "mean_staleness", *columns, *(["name"] if self.names else [])])
        for each in table:
            values = [getattr(each, name) for name in names]
            mean = each.staleness_sum / each.used if each.used else 0.0
            known = [round(it, 3) if isinstance(it, float) else it for it in [*values, mean]]
            more = [round(column[each.device], 6) for column in columns.values()]
            writer.writerow([*known, *more, *([self.names[each.device]] if self.names else [])])
        return text.getvalue()

    # Snapshots ----------------------------------------------------------------------------------------------------

    snapshot_types = (DeviceAccount, Span)

    def snapshot(self) -> dict[str, Any]:
        """The state of the accounts, as plain data."""
        self.take_closed()
        return {
            "busy": self.busy_seconds,
            "wasted": self.wasted_seconds,
            "spans": self.spans,
            "figures": {each.device: each for each in self._figures if each.orders or each.used or each.refused},
            "landed": self._landed,
            "unresolved": self._unresolved,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue from a snapshot."""
        self.busy_seconds, self.wasted_seconds = saved["busy"], saved["wasted"]
        self.spans[:] = saved["spans"]
        self._landed, self._unresolved = saved["landed"], saved["unresolved"]
        for device, account in saved["figures"].items():
            self._figures[device] = account


def influence(table: Sequence[DeviceAccount]) -> list[float]:
    """The share of each device in the samples of all used updates."""
    samples = [each.used * each.samples for each in table]
    total = sum(samples) or 1
    return [each / total for each in samples]


def influence_summary(
    table: Sequence[DeviceAccount], shares: Sequence[float], pace: Sequence[float] = ()
) -> dict[str, Any]:
    """The largest share of a device; of five devices or more, those of the fifths from the fastest to the slowest.

    `pace` is the time that each device trains, if it is known; otherwise the mean over its orders that ended.

    >>> table = [DeviceAccount(device=k, delivered=k and 1, training_seconds=9.0 - k) for k in range(5)]
    >>> influence_summary(table, [0.0, 0.1, 0.2, 0.3, 0.4])  # device 0 has uploaded nothing: it counts as the slowest
    {'largest': 0.4, 'fastest_to_slowest_fifth': [0.4, 0.3, 0.2, 0.1, 0.0]}
    """
    found: dict[str, Any] = {"largest": round(max(shares), 6)}
    if len(table) < FIFTHS:
        return found
    if len(pace) != len(table):
        ended = [each.delivered + each.lost for each in table]
        pace = [each.training_seconds / count if count else inf for each, count in zip(table, ended, strict=True)]
    fifths = [0.0] * FIFTHS
    for place, device in enumerate(sorted(range(len(table)), key=pace.__getitem__)):
        fifths[place * FIFTHS // len(table)] += shares[device]
    return found | {"fastest_to_slowest_fifth": [round(each, 6) for each in fifths]}
