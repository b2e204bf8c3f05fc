"""The accounts of a run: what became of every order, and what each device did with its time.

A driver says what has ended and what has been resolved. From that come the busy and wasted seconds of the metrics, the
spans of the timeline, and a line per device for `devices.csv`. What a device did is counted from the spans when
somebody takes them, so that a driver's own turn stays short.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, structs

from offbeat.results.rows import Span

MOST_DEVICES = 10_000
"""A larger fleet has no accounts per device: nobody reads a table that long."""


class DeviceAccount(Struct, kw_only=True, eq=False, gc=False):
    """What one device did. All seconds are of the run's clock: a virtual one in a simulation, else the wall clock."""

    device: int
    samples: int = 0
    orders: int = 0
    delivered: int = 0
    used: int = 0
    lost: int = 0
    refused: int = 0
    staleness_sum: int = 0
    training_seconds: float = 0.0
    """Training by the device's own clock."""
    way_seconds: float = 0.0
    """From order to delivery, less the training: communication, starting processes, questions."""
    idle_seconds: float = 0.0
    """Waiting for an order, between a delivery and the next order."""
    bytes_down: int = 0
    bytes_up: int = 0


class Accounts:
    """What all devices did so far."""

    __slots__ = ("_figures", "_landed", "_unresolved", "_used", "busy_seconds", "per_device", "spans", "wasted_seconds")

    def __init__(self, devices: int) -> None:
        self.busy_seconds = 0.0
        self.wasted_seconds = 0.0
        self.spans: list[Span] = []
        """Orders that ended since somebody last took them."""
        self.per_device = devices <= MOST_DEVICES
        self._figures = [DeviceAccount(device=device) for device in range(devices if self.per_device else 0)]
        """The account of every device, as far as it is counted."""
        self._used: list[tuple[int, list[Span]]] = []
        """Versions, each with the deliveries that went into it, that are not counted for their devices yet."""
        self._landed: dict[int, float] = {}
        """When each device delivered that has had no order since."""
        self._unresolved: dict[int, Span] = {}
        """Delivered tickets of which it is not known yet whether they are used."""

    # What a driver says -------------------------------------------------------------------------------------------

    def delivered(self, span: Span) -> None:
        """An order ended with a delivery."""
        self.busy_seconds += span.seconds
        self._unresolved[span.ticket] = span
        self.spans.append(span)

    def lost(self, span: Span) -> None:
        """An order ended without one."""
        self.busy_seconds += span.seconds
        self.wasted_seconds += span.seconds
        self.spans.append(span)

    def resolved(self, tickets: Iterable[int], used: bool, version: int) -> None:
        """Deliveries went into this version, or were given up."""
        spans = [self._unresolved.pop(ticket) for ticket in tickets]
        if not used:
            for span in spans:
                self.wasted_seconds += span.seconds
        elif self.per_device:
            self._used.append((version, spans))

    def refused(self, device: int) -> None:
        """An answer of a device was refused."""
        if self.per_device:
            self._figures[device].refused += 1

    # What is made of it -------------------------------------------------------------------------------------------

    def take_spans(self) -> list[Span]:
        """Orders that ended since this was last called, now counted for their devices."""
        taken = self.spans.copy()
        self.spans.clear()
        if self.per_device:
            for span in taken:
                self._count(span)
            self._count_used()
        return taken

    def _count(self, span: Span) -> None:
        account = self._figures[span.device]
        account.samples = span.samples
        account.orders += 1
        account.bytes_down += span.bytes_down
        account.training_seconds += span.seconds
        account.idle_seconds += span.sent - self._landed.pop(span.device, span.sent)
        if span.outcome == "lost":
            account.lost += 1
        else:
            account.delivered += 1
            account.bytes_up += span.bytes_up
            account.way_seconds += max(0.0, span.landed - span.sent - span.seconds)
            self._landed[span.device] = span.landed

    def _count_used(self) -> None:
        for version, spans in self._used:
            for span in spans:
                account = self._figures[span.device]
                account.used += 1
                account.staleness_sum += version - 1 - span.base
        self._used.clear()

    def table(self, open_spans: Iterable[Span] = ()) -> list[DeviceAccount]:
        """The account of every device, including the orders in flight as far as the server has seen."""
        self._count_used()
        accounts = [structs.replace(account) for account in self._figures]
        for span in open_spans:
            account = accounts[span.device]
            account.samples = span.samples
            account.orders += 1
            account.bytes_down += span.bytes_down
            account.idle_seconds += span.sent - self._landed.get(span.device, span.sent)
        return accounts

    def csv(self, open_spans: Iterable[Span] = ()) -> str:
        """A line for each device, with the mean staleness of its updates that were used in the place of the sum."""
        text = io.StringIO()
        names = [field.name for field in structs.fields(DeviceAccount) if field.name != "staleness_sum"]
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*names, "mean_staleness"])
        for each in self.table(open_spans):
            values = [getattr(each, name) for name in names]
            mean = each.staleness_sum / each.used if each.used else 0.0
            writer.writerow([round(value, 3) if isinstance(value, float) else value for value in [*values, mean]])
        return text.getvalue()

    # Snapshots ----------------------------------------------------------------------------------------------------

    snapshot_types = (DeviceAccount, Span)

    def snapshot(self) -> dict[str, Any]:
        """Everything that was said so far, counted or not."""
        self._count_used()
        return {
            "busy": self.busy_seconds,
            "wasted": self.wasted_seconds,
            "spans": self.spans,
            "figures": {each.device: each for each in self._figures if each.orders or each.used or each.refused},
            "landed": self._landed,
            "unresolved": self._unresolved,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""
        self.busy_seconds, self.wasted_seconds = saved["busy"], saved["wasted"]
        self.spans[:] = saved["spans"]
        self._landed, self._unresolved = saved["landed"], saved["unresolved"]
        for device, account in saved["figures"].items():
            self._figures[device] = account
