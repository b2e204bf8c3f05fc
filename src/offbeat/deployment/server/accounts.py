"""The accounts of a deployment: what each device did with its time, for `devices.csv`, the metrics and the timeline."""

import csv
import io
from typing import Any

from msgspec import Struct, structs

from offbeat.core.orders import Progress
from offbeat.results.rows import Span


class PendingOrder(Struct, kw_only=True, eq=False):
    """An order at work, as far as the server has seen."""

    device: int
    ticket: int
    base: int
    sent: float
    leg: int = 0
    """Messages that were sent for it."""
    progress: Progress = Progress()
    settled: int = 0
    """The last ticket that had been received of the device, whose memory it may begin with."""
    remembered: int = 0
    """The ticket whose memory the device began it with."""


class DeviceAccount(Struct, kw_only=True, eq=False):
    """Of one device. All seconds are of the wall clock."""

    device: int
    samples: int = 0
    orders: int = 0
    delivered: int = 0
    used: int = 0
    lost: int = 0
    refused: int = 0
    staleness_sum: int = 0
    training_seconds: float = 0.0
    """By the device's own clock."""
    way_seconds: float = 0.0
    """From order to delivery, less the training: communication, starting processes, questions."""
    idle_seconds: float = 0.0
    """Waiting for an order, between two of them."""
    bytes_down: int = 0
    bytes_up: int = 0


def span_of(pending: PendingOrder, outcome: str, now: float) -> Span:
    """What became of an order. When a device trained is not known, so its training stands at the end."""
    return Span(
        device=pending.device,
        ticket=pending.ticket,
        base=pending.base,
        sent=pending.sent,
        arrived=max(pending.sent, now - pending.progress.seconds),
        landed=now,
        slices=pending.progress.slices,
        outcome=outcome,
    )


class Accounts:
    """What all devices did so far."""

    def __init__(self, devices: int) -> None:
        self.figures = [DeviceAccount(device=device) for device in range(devices)]
        self.busy_seconds = 0.0
        self.wasted_seconds = 0.0
        self.spans: list[Span] = []
        self._landed: dict[int, float] = {}
        self._unsettled: dict[int, tuple[int, int, float]] = {}
        """Of delivered tickets whose fate is open: the device, the base, the seconds."""

    def ordered(self, pending: PendingOrder, samples: int, size: int) -> None:
        figures = self.figures[pending.device]
        figures.samples = samples
        figures.orders += 1
        figures.bytes_down += size
        figures.idle_seconds += pending.sent - self._landed.pop(pending.device, pending.sent)

    def delivered(self, pending: PendingOrder, size: int, now: float) -> None:
        figures, seconds = self.figures[pending.device], pending.progress.seconds
        figures.delivered += 1
        figures.bytes_up += size
        figures.way_seconds += max(0.0, now - pending.sent - seconds)
        self._unsettled[pending.ticket] = (pending.device, pending.base, seconds)
        self._landed[pending.device] = now
        self._ended(pending, "uploaded", now)

    def lost(self, pending: PendingOrder, now: float) -> None:
        self.wasted_seconds += pending.progress.seconds
        self._ended(pending, "lost", now)

    def _ended(self, pending: PendingOrder, outcome: str, now: float) -> None:
        seconds = pending.progress.seconds
        self.busy_seconds += seconds
        self.figures[pending.device].training_seconds += seconds
        self.spans.append(span_of(pending, outcome, now))

    def settled(self, ticket: int, used: bool, version: int) -> None:
        """A delivery went into this version, or was given up."""
        device, base, seconds = self._unsettled.pop(ticket)
        if used:
            self.figures[device].used += 1
            self.figures[device].staleness_sum += version - 1 - base
        else:
            self.wasted_seconds += seconds

    def csv(self) -> str:
        """A line for each device, with the mean staleness of its updates that were used in the place of the sum."""
        text = io.StringIO()
        names = [field.name for field in structs.fields(DeviceAccount) if field.name != "staleness_sum"]
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*names, "mean_staleness"])
        for each in self.figures:
            values = [getattr(each, name) for name in names]
            mean = each.staleness_sum / each.used if each.used else 0.0
            writer.writerow([round(value, 3) if isinstance(value, float) else value for value in [*values, mean]])
        return text.getvalue()

    def snapshot(self) -> dict[str, Any]:
        return {
            "figures": self.figures,
            "busy": self.busy_seconds,
            "wasted": self.wasted_seconds,
            "unsettled": self._unsettled,
            "landed": self._landed,
        }

    def restore(self, saved: dict[str, Any]) -> None:
        self.figures, self._unsettled, self._landed = saved["figures"], saved["unsettled"], saved["landed"]
        self.busy_seconds, self.wasted_seconds = saved["busy"], saved["wasted"]
