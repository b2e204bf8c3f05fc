"""How long a device that failed rests before it gets its next order, and when all have failed too often."""

from collections.abc import Collection
from math import inf

LONGEST_REST = 64
"""The longest rest, in units of the first one."""
MOST_FAILURES = 8
"""Failures in a row of every device that is there, after which a run cannot go on."""


class Backoff:
    """Devices that are there but away for the session. The first rest doubles with every failure in a row."""

    def __init__(self, rest_seconds: float) -> None:
        self._rest_seconds = rest_seconds
        self._until: dict[int, float] = {}
        self._failures: dict[int, int] = {}

    def joined(self, device: int, now: float) -> None:
        """The device is here and may be given work at once."""
        self._until[device] = now

    def left(self, device: int) -> None:
        """The device is not here any more."""
        self._until.pop(device, None)

    def failed(self, device: int, now: float) -> None:
        """The device failed: it rests, twice as long after each failure in a row."""
        failures = self._failures[device] = self._failures.get(device, 0) + 1
        self._until[device] = now + self._rest_seconds * min(2 ** (failures - 1), LONGEST_REST)

    def delivered_again(self, device: int) -> None:
        """The device delivered, so that its failures are forgotten."""
        self._failures.pop(device, None)

    def over(self, now: float) -> list[int]:
        """Devices whose rest is over, as far as we are concerned."""
        return [device for device, until in self._until.items() if until <= now]

    def next_end(self, now: float) -> float:
        """When the next rest ends that has not ended by now."""
        return min((until for until in self._until.values() if until > now), default=inf)

    def ended(self, device: int) -> None:
        """The rest of the device is over."""
        del self._until[device]

    def all_fail(self, devices: Collection[int]) -> bool:
        """Whether all of these have failed again and again."""
        return bool(devices) and all(self._failures.get(device, 0) >= MOST_FAILURES for device in devices)
