"""The plain record of a simulation: the timing of an order."""

from collections.abc import Sequence
from math import inf

from msgspec import Struct

from offbeat.device.run import LocalRun


class Run(Struct, kw_only=True, eq=False, gc=False):
    """The timing of one order on one device."""

    device: int
    ticket: int
    base: int
    sent: float
    arrived: float
    """When the device has the model and begins."""
    samples: int
    steps: int
    """Steps of training in a slice."""
    seconds: Sequence[float]
    """What each slice takes."""
    vanishes: float = inf
    upload_lost: bool = False
    local: LocalRun
    start: float
    ends: list[float] = []
    until: float = 0.0
    """The training that the device is in: when it began, when each of its slices ends, when it stops."""
    token: int = 0
    """Counts the changes of plan: what was scheduled under an older token no longer happens."""
