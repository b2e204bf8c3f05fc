"""How often and how closely a device may contribute to the model: limits, and the ledger that a session keeps.

A private run needs them for its proof: a device contributes to a version at most once, at most `most` times in the run,
and not to versions that share noise. The session does not order a device that could break a limit and refuses its
upload. Orders that are lost or discarded contribute to no version and do not count.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import PolicyError

NEVER = -(2**30)
"""The version of the last contribution of a device that has made none."""
Counts = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class ParticipationLimits:
    """The limits of a run."""

    most: int
    """Most contributions of a device in the run."""
    separation: int = 1
    """Least number of versions from one contribution of a device to its next."""
    block: int = 1
    """At most one contribution of a device to the versions 1 ... `block`, to the next `block` versions, and so on."""
    epsilon: Callable[[int], float] = lambda contributions: 0.0
    """The privacy loss of a device with this many contributions."""
    orders: bool = False
    """Whether every order counts, used or not: devices protect what they upload, and the server is not trusted."""
    reason: str = "participation"
    """Why the run ends when no device may contribute any more."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """What the privacy loss follows from, for the summary of the run."""


@dataclass(kw_only=True, eq=False)
class ParticipationState:
    """The ledger as a snapshot holds it."""

    received: Counts
    used: Counts
    last: Counts
    waiting: dict[int, int] = field(default_factory=dict)


class Participation:
    """The contributions of all devices so far. The session owns it."""

    __slots__ = ("_last", "_received", "_used", "_waiting", "limits")

    def __init__(self, limits: ParticipationLimits, devices: int) -> None:
        self.limits = limits
        self._received: Counts = np.zeros(devices, dtype=np.int32)
        """Updates of each device that were used or wait to be."""
        self._used: Counts = np.zeros(devices, dtype=np.int32)
        self._last: Counts = np.full(devices, NEVER, dtype=np.int32)
        """The version to which each device contributed last."""
        self._waiting: dict[int, int] = {}
        """The device of each received update that is not resolved, by ticket."""

    def allowed(self, devices: npt.NDArray[np.int32], version: int) -> npt.NDArray[np.int32]:
        """Those of the devices that may contribute to this version and to every later one."""
        limits, last = self.limits, self._last[devices]
        apart = (version - last >= limits.separation) & ((version - 1) // limits.block > (last - 1) // limits.block)
        free = apart & (self._received[devices] < limits.most)
        if self._waiting:
            free &= ~np.isin(devices, list(self._waiting.values()))
        return devices[free]

    def allows(self, device: int, version: int) -> bool:
        """Whether the device may contribute to this version."""
        return len(self.allowed(np.array([device], dtype=np.int32), version)) == 1

    def order(self, device: int) -> None:
        """A device was given an order."""
        if self.limits.orders:
            self._received[device] += 1
            self._used[device] += 1

    def receive(self, ticket: int, device: int) -> None:
        """An update was received."""
        if not self.limits.orders:
            self._waiting[ticket] = device
            self._received[device] += 1

    def discard(self, ticket: int) -> None:
        """A received update will never be used."""
        if not self.limits.orders:
            self._received[self._waiting.pop(ticket)] -= 1

    def commit(self, tickets: Sequence[int], version: int) -> None:
        """These updates were used for this version."""
        if self.limits.orders:
            return
        devices = [self._waiting[ticket] for ticket in tickets]
        if len(set(devices)) < len(devices):
            raise PolicyError(f"version {version} uses two updates of one device, but a device may contribute once")
        for ticket in tickets:
            del self._waiting[ticket]
        self._used[devices] += 1
        self._last[devices] = version

    def exhausted(self, version: int) -> bool:
        """Whether no device may contribute to this version: if none is in training, it will never be made."""
        return not len(self.allowed(np.arange(len(self._used), dtype=np.int32), version))

    @property
    def contributions(self) -> Counts:
        """The number of versions to which each device has contributed, or of its orders if these count."""
        return self._used

    @property
    def epsilon(self) -> float:
        """The largest privacy loss of a device so far."""
        return self.limits.epsilon(int(self._used.max(initial=0)))

    def summary(self) -> dict[str, Any]:
        """The privacy loss and what it follows from."""
        counts = np.bincount(self._used)
        devices = {str(number): int(count) for number, count in enumerate(counts) if count}
        return {"epsilon": self.epsilon, **self.limits.inputs, "devices_by_contributions": devices}

    def snapshot(self) -> ParticipationState:
        """A copy of the ledger."""
        return ParticipationState(
            received=self._received.copy(), used=self._used.copy(), last=self._last.copy(), waiting=dict(self._waiting)
        )

    def restore(self, saved: ParticipationState) -> None:
        """Continue from a snapshot."""
        self._received, self._used, self._last = saved.received.copy(), saved.used.copy(), saved.last.copy()
        self._waiting = dict(saved.waiting)


def sample_of(
    devices: npt.NDArray[np.int32], count: int, excluding: Collection[int], generator: np.random.Generator
) -> list[int]:
    """Draw up to `count` of the devices that are not excluded, uniformly and without replacement."""
    free = devices[~np.isin(devices, list(excluding))] if excluding else devices
    return [int(device) for device in generator.choice(free, size=min(count, len(free)), replace=False)]
