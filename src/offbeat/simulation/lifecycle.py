"""Event queue and device lifecycle, shared by the simulator and by Flower apps on a virtual clock.

A device leaves and returns by its availability, fails in the middle of an order, or loses an upload. The fleet decides
all of this from its seed; `DeviceLifecycle` says when it happens and what the server sees of it.
"""

from collections.abc import Sequence
from heapq import heappush
from math import inf
from typing import Any

from msgspec import Struct

from offbeat.fleet import Fleet

QueueEntry = tuple[float, int, int, str, int, Any]
"""Time, priority, sequence number, kind of event, device or ticket, detail."""


class EventQueue:
    """Heap of future events in a total order: by time, then by priority, then in the order of scheduling.

    Entries are plain data, so that a queue is saved as it is. The engines pop from `entries` themselves.
    """

    __slots__ = ("entries", "sequence")

    def __init__(self) -> None:
        self.entries: list[QueueEntry] = []
        self.sequence = 0

    def push(self, time: float, kind: str, subject: int, detail: Any = None, priority: int = 0) -> None:
        """Schedule an event."""
        self.sequence += 1
        heappush(self.entries, (time, priority, self.sequence, kind, subject, detail))


class Fate(Struct, frozen=True, gc=False):
    """What will go wrong with one order, decided when its device gets it."""

    vanishes: float = inf
    """When the device leaves or fails; inf: it stays."""
    returns: float = inf
    """When it can be reached again: after a failure when it has recovered, else as its availability says."""
    upload_lost: bool = False


UNDISTURBED = Fate()


class DeviceLifecycle:
    """Schedules when devices leave and return, and knows which of them the server has found to have vanished."""

    def __init__(self, fleet: Fleet, queue: EventQueue) -> None:
        self.vanished: set[int] = set()
        """Devices that the server knows to have vanished, until they return."""
        self.paused: set[int] = set()
        """Vanished devices whose changes of availability are not followed until they return: a device that never
        returns would otherwise keep the run going for ever."""
        self._fleet = fleet
        self._fails = fleet.failures.vanish > 0.0 or fleet.failures.lost_upload > 0.0
        self._queue = queue

    def follow(self, devices: int) -> None:
        """Schedule the first change of availability of each device."""
        if not self._fleet.availability.always:
            for device in range(devices):
                self._await_change(device, 0.0)

    def _await_change(self, device: int, now: float) -> None:
        at = self._fleet.availability.next_change(device, now)
        if at < inf:
            self._queue.push(at, "change", device)

    def is_available(self, device: int, now: float) -> bool:
        """Whether the device is in an on time of its availability."""
        return self._fleet.availability.available(device, now)

    # One order -----------------------------------------------------------------------------------------------------

    def fate(self, device: int, ticket: int | None, since: float, start: float, seconds: Sequence[float]) -> Fate:
        """Decide what goes wrong with an order, or with a message that never fails (`ticket` None).

        The device is available at `since`; it works from `start` on, for the sum of `seconds`.
        """
        availability, failures = self._fleet.availability, self._fleet.failures
        leaves = inf if availability.always else availability.next_change(device, since)
        failure = failures.failure(device, ticket) if self._fails and ticket is not None else None
        if failure is None:
            return UNDISTURBED if leaves == inf else Fate(leaves, leaves)
        if failure.vanish_after is not None:
            fails = start + failure.vanish_after * sum(seconds)
            if fails < leaves:
                rejoin = inf if failures.rejoin_seconds is None else failures.rejoin_seconds
                return Fate(fails, fails + rejoin, failure.upload_lost)
        return Fate(leaves, leaves, failure.upload_lost)

    def outcome(self, fate: Fate, kind: str, at: float) -> tuple[str, float]:
        """What the server sees in place of `kind`, which it would see at `at`, and when."""
        if at >= fate.vanishes:
            return "vanished", self.noticed(fate)
        if fate.upload_lost and kind == "upload":
            return "upload lost", at + self._fleet.failures.detect_seconds
        return kind, at

    def noticed(self, fate: Fate) -> float:
        """When the server notices that the device has vanished."""
        return fate.vanishes + self._fleet.failures.detect_seconds

    # What the server knows of a device -----------------------------------------------------------------------------

    def lose(self, device: int, returns: float) -> None:
        """Note that the server has given the device up until it returns."""
        self.vanished.add(device)
        if returns < inf:
            self._queue.push(returns, "return", device)

    def returned(self, device: int, now: float) -> None:
        """Note that the device has returned: its availability is followed again."""
        self.vanished.discard(device)
        if device in self.paused:
            self.paused.discard(device)
            self._await_change(device, now)

    def changed(self, device: int, now: float) -> bool:
        """Follow a change of availability; returns False if the device has vanished, so that nobody sees it."""
        if device in self.vanished:
            self.paused.add(device)
            return False
        self._await_change(device, now)
        return True
