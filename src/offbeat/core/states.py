"""What a device can be, and what may happen to it then: the literal table that every event and action passes."""

from collections.abc import Mapping
from enum import IntEnum

from offbeat.core.actions import Dispatch, SendFresh, StopSoon
from offbeat.core.events import FreshRequested, Left, Lost, Ready, Uploaded


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
