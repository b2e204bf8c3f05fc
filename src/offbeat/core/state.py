"""What a device can be, and what may happen to it then: the literal table that every event and action passes.

An order in flight: one that a device is working on.

The set of idle devices: membership, removal and a uniform draw in constant time, a million devices in two arrays.

What a session counts, and a journal of what happened.

What an update must satisfy before it may touch the model.
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


class DeviceState(IntEnum):
    """What a device does, as far as the session knows."""

    AWAY = 0
    IDLE = 1
    TRAINING = 2
    WAITING = 3  # asked for the fresh model and stands still until it is answered


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
"""What may happen to a device in each state, and the state that follows. Anything else is illegal."""
FOLLOWING: Mapping[type, tuple[DeviceState | None, ...]] = {
    what: tuple(TRANSITIONS.get((state, what)) for state in DeviceState) for _, what in TRANSITIONS
}
"""The table of transitions by what happens, then by state: two look-ups without a hash of a pair, for every event and
action."""


class OrderInFlight(Assignment, frozen=True, kw_only=True, eq=False, gc=False):
    """The assignment and what the device was told since. It keeps the versions of the model that it refers to."""

    notified: bool = False
    """Whether the device was told to stop soon."""
    fresh: tuple[tuple[int, Vector], ...] = ()
    """The newer versions that the device was given on the way, with their parameters."""

    @property
    def versions(self) -> list[int]:
        """All versions that the device was given, its base first."""
        return [self.base, *(version for version, _ in self.fresh)]

    def update(self, samples: int, progress: Progress, outcome: Callable[[], Outcome], mask: Mask | None) -> Update:
        """The update that this order ends with."""
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
    """Devices in no particular but reproducible order; `places[device]` is where the device stands in `items`."""

    __slots__ = ("_items", "_places")

    def __init__(self, devices: int, members: npt.NDArray[np.integer]) -> None:
        places = np.full(devices, _ABSENT, dtype=np.int32)
        places[members] = np.arange(len(members), dtype=np.int32)
        self._items = array("i", members.astype(np.int32).tobytes())
        self._places = array("i", places.tobytes())

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, device: int) -> bool:
        return self._places[device] != _ABSENT

    def __iter__(self) -> Iterator[int]:
        return iter(self._items)

    def add(self, device: int) -> None:
        """Add a device, which must not be in the set yet."""
        self._places[device] = len(self._items)
        self._items.append(device)

    def remove(self, device: int) -> None:
        """Fill the gap with the last member."""
        place, last = self._places[device], self._items.pop()
        if last != device:
            self._items[place] = last
            self._places[last] = place
        self._places[device] = _ABSENT

    def sample(self, count: int, generator: np.random.Generator) -> list[int]:
        """Up to `count` distinct members, uniformly; none is removed."""
        size = len(self._items)
        if count == 1 and size:  # by far the most common, and three times as fast as an exactly uniform integer
            return [self._items[int(generator.random() * size)]]
        chosen = generator.choice(size, size=min(count, size), replace=False) if size else ()
        return [self._items[int(place)] for place in chosen]

    def members(self) -> npt.NDArray[np.int32]:
        """All members in their present order: what a snapshot keeps."""
        return np.array(self._items, dtype=np.int32)


LINES_IN_ERRORS = 6
"""How many lines of the journal an error's message has at most."""
JOURNAL_LINES = 256
"""How many lines the journal keeps at most."""
JournalLine = tuple[float, str, int | None, int | None, int]
"""A line of the journal: the time, what happened, the device and the ticket that it concerns, and the version."""


@dataclass(slots=True, kw_only=True, eq=False)
class Counters:
    """What happened so far, for the metrics."""

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
    """The last lines of what happened."""

    lines: deque[JournalLine] = field(default_factory=lambda: deque(maxlen=JOURNAL_LINES))

    def last(self, device: int | None) -> str:
        """The last lines about a device (or, without one, about anything), for the reader of an error."""
        about = [line for line in self.lines if device is None or line[2] == device][-LINES_IN_ERRORS:]
        return "; ".join(f"{time:.6g} {what} v{version}" for time, what, _, _, version in about) or "nothing before"


def check_update(update: Update, given: OrderInFlight, layout: Layout) -> None:
    """What a delivered update must satisfy before it may touch the model; raises DeviceFault."""
    if update.device != given.device or update.ticket != given.ticket or update.base != given.base:
        says = f"device {update.device}, ticket {update.ticket}, base {update.base}"
        raise _fault(given, f"the update says {says}")
    if update.samples < 1 or not 0 <= update.progress.slices <= given.order.slices:
        raise _fault(given, f"the update claims {update.samples} samples, {update.progress.slices} slices")
    if update.mask is not None:
        chosen = update.mask.chosen
        if chosen.shape != (layout.size,) or chosen.dtype != np.bool_:
            raise _fault(given, f"the mask is {chosen.shape} {chosen.dtype}, not ({layout.size},) bool")
    if isinstance(update.outcome, KnownOutcome):  # else they are made when read, and a commit checks what comes of it
        _check_numbers(update.outcome().parameters, given, layout)


def _check_numbers(parameters: Vector, given: OrderInFlight, layout: Layout) -> None:
    if parameters.shape != (layout.size,) or parameters.dtype != np.float32:
        raise _fault(given, f"parameters of shape {parameters.shape} {parameters.dtype}, not ({layout.size},)")
    if not np.isfinite(parameters).all():
        raise _fault(given, "the parameters are not finite")


def _fault(given: OrderInFlight, what: str) -> DeviceFault:
    return DeviceFault(f"device {given.device}, ticket {given.ticket}: {what}")
