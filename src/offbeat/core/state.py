"""The parts of a session's state: device states and their transition table, orders in flight, the idle set, counters;
and the moments at which a session may be told of an event.

`Session` owns one of each and is the only one to change them. Every event and action passes the transition table, and
every update passes `check_update`, before anything changes.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import DeviceFault
from offbeat.core.messages import Assignment, Dispatch, FreshRequested, Left, Lost, Ready, SendFresh, StopSoon, Uploaded
from offbeat.core.orders import KnownOutcome, Outcome, Progress, Update
from offbeat.core.parameters import Layout, Mask, Vector

# Moments --------------------------------------------------------------------------------------------------------------
#
# Every time that a driver gives a session, or that a timer is set to, is made by one of these functions: whole
# nanoseconds since the beginning of the run. Both are monotonic, so a driver that computes a time from the current
# moment can never go back in time.


NANOSECOND = 9
"""Decimals of a moment in seconds: the tenth firing of a timer of 0.1 s is at 1 s, not a rounding error before it."""


PER_SECOND = 1e9
"""Moments in a second."""
FAST_UNTIL, SURE = 1e5, 0.48
"""Up to this time the number of a moment in floats is wrong by less than 0.02, so within 0.48 it is the nearest."""


def moment(seconds: float) -> float:
    """The nearest moment: `round`, which writes decimals and reads them again, only where a product is not sure.

    >>> moment(0.1 + 0.2), moment(3e6 + 1e-10), moment(float("inf"))
    (0.3, 3000000.0, inf)
    """
    exact = seconds * PER_SECOND
    number = (exact + 0.5) // 1
    if -SURE < exact - number < SURE and seconds < FAST_UNTIL:
        return number / PER_SECOND
    return round(seconds, NANOSECOND)


def moment_after(seconds: float) -> float:
    """The first moment that is not before this time: what changes at this time has changed by then."""
    nearest = moment(seconds)
    return nearest if nearest >= seconds else moment(nearest + 1 / PER_SECOND)


# Devices --------------------------------------------------------------------------------------------------------------


class DeviceState(IntEnum):
    """The state of a device, as far as the session knows."""

    AWAY = 0
    IDLE = 1
    TRAINING = 2
    WAITING = 3  # asked for the newest version and waits for the reply


AWAY, IDLE, TRAINING, WAITING = DeviceState
TRANSITIONS: Mapping[tuple[int, type], DeviceState] = {
    (AWAY, Ready): IDLE,
    (IDLE, Left): AWAY,
    (IDLE, Dispatch): TRAINING,
    (TRAINING, FreshRequested): WAITING,
    (WAITING, SendFresh): TRAINING,
    (TRAINING, StopSoon): TRAINING,
    (WAITING, StopSoon): WAITING,
    (TRAINING, Uploaded): IDLE,
    (TRAINING, Lost): AWAY,
    (WAITING, Lost): AWAY,
}
"""The next state of a device, by its state and by what happens to it. Anything else is illegal."""
FOLLOWING: Mapping[type, tuple[DeviceState | None, ...]] = {
    what: tuple(TRANSITIONS.get((state, what)) for state in DeviceState) for _, what in TRANSITIONS
}
"""The same table by what happens, then by state: two look-ups per event or action, without hashing a pair."""


class OrderInFlight(Assignment, frozen=True, kw_only=True, eq=False, gc=False):
    """An assignment and what the device was sent since. It keeps the versions of the model that it refers to alive."""

    notified: bool = False
    """Whether the device was sent a stop notice."""
    fresh: tuple[tuple[int, Vector], ...] = ()
    """Newer versions that were sent to the device during its training, with their parameters."""

    @property
    def versions(self) -> list[int]:
        """All versions that were sent to the device, its base first."""
        return [self.base, *(version for version, _ in self.fresh)]

    def update(self, samples: int, progress: Progress, outcome: Callable[[], Outcome], mask: Mask | None) -> Update:
        """Make the update that ends this order."""
        return Update(
            device=self.device,
            ticket=self.ticket,
            base=self.base,
            base_parameters=self.parameters,
            samples=samples,
            progress=progress,
            outcome=outcome,
            mask=mask,
        )


_ABSENT = -1


class IdleSet:
    """The idle devices, in a reproducible order: membership, removal and a uniform draw in constant time.

    A million devices take two arrays; `_positions[device]` is the index of the device in `_items`.
    """

    __slots__ = ("_items", "_positions")

    def __init__(self, devices: int, members: npt.NDArray[np.integer]) -> None:
        positions = np.full(devices, _ABSENT, dtype=np.int32)
        positions[members] = np.arange(len(members), dtype=np.int32)
        self._items = array("i", members.astype(np.int32).tobytes())
        self._positions = array("i", positions.tobytes())

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, device: int) -> bool:
        return self._positions[device] != _ABSENT

    def __iter__(self) -> Iterator[int]:
        return iter(self._items)

    def add(self, device: int) -> None:
        """Add a device that is not in the set."""
        self._positions[device] = len(self._items)
        self._items.append(device)

    def remove(self, device: int) -> None:
        """Remove a device; the last member takes its position."""
        position, last = self._positions[device], self._items.pop()
        if last != device:
            self._items[position] = last
            self._positions[last] = position
        self._positions[device] = _ABSENT

    def sample(self, count: int, generator: np.random.Generator) -> list[int]:
        """Draw up to `count` distinct members uniformly, without removing them."""
        size = len(self._items)
        if count == 1 and size:  # the usual case; three times as fast as an exactly uniform integer
            return [self._items[int(generator.random() * size)]]
        chosen = generator.choice(size, size=min(count, size), replace=False) if size else ()
        return [self._items[int(position)] for position in chosen]

    def members(self) -> npt.NDArray[np.int32]:
        """All members in their current order, for a snapshot."""
        return np.array(self._items, dtype=np.int32)


LINES_IN_ERRORS = 6
"""Most lines of the journal in an error message."""
JOURNAL_LINES = 256
"""Most lines that the journal keeps."""
JournalLine = tuple[float, str, int | None, int | None, int]
"""A line of the journal: time, what happened, device, ticket, version."""


@dataclass(slots=True, kw_only=True, eq=False)
class Counters:
    """Totals of the run so far, for the metrics."""

    dispatched: int = 0
    received: int = 0
    used: int = 0
    discarded: int = 0
    lost: int = 0
    refused: int = 0
    requests: int = 0
    answered: int = 0
    notices: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0


@dataclass(slots=True)
class Journal:
    """The last events and actions, for error messages."""

    lines: deque[JournalLine] = field(default_factory=lambda: deque(maxlen=JOURNAL_LINES))

    def last(self, device: int | None) -> str:
        """The last lines about a device, or about any device if it is None, as text for an error message."""
        about = [line for line in self.lines if device is None or line[2] == device][-LINES_IN_ERRORS:]
        return "; ".join(f"{time:.6g} {what} v{version}" for time, what, _, _, version in about) or "no earlier events"


def check_update(update: Update, given: OrderInFlight, layout: Layout, *, finite: bool = True) -> None:
    """Raise DeviceFault if a received update does not fit its order and the model, or unless its numbers are finite."""
    if update.device != given.device or update.ticket != given.ticket or update.base != given.base:
        says = f"device {update.device}, ticket {update.ticket}, base {update.base}"
        raise _fault(given, f"the update is of {says}")
    if update.samples < 1 or not 0 <= update.progress.slices <= given.order.slices:
        raise _fault(given, f"the update claims {update.samples} samples, {update.progress.slices} slices")
    if update.mask is not None:
        chosen = update.mask.chosen
        if chosen.shape != (layout.size,) or chosen.dtype != np.bool_:
            raise _fault(given, f"the mask is {chosen.shape} {chosen.dtype}, not ({layout.size},) bool")
    if isinstance(update.outcome, KnownOutcome):  # otherwise computed when read, and the commit is checked
        _check_numbers(update.outcome().parameters, given, layout, finite)


def _check_numbers(parameters: Vector, given: OrderInFlight, layout: Layout, finite: bool) -> None:
    if parameters.shape != (layout.size,) or parameters.dtype != np.float32:
        raise _fault(given, f"parameters of shape {parameters.shape} {parameters.dtype}, not ({layout.size},)")
    if finite and not np.isfinite(parameters).all():
        raise _fault(given, "the parameters are not finite")


def _fault(given: OrderInFlight, what: str) -> DeviceFault:
    return DeviceFault(f"device {given.device}, ticket {given.ticket}: {what}")
