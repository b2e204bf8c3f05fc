"""The plain record of a simulation: the timing of an order."""

from collections.abc import Sequence
from itertools import accumulate
from math import inf

from offbeat.core.parameters import Mask
from offbeat.device.local_run import LocalRun


class TimedRun(LocalRun, kw_only=True, eq=False, gc=False):
    """The local run of one order, with its timing."""

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
    start: float
    first: int = 0
    until: float = 0.0
    """The training that the device is in: when it began, with which slice, when it stops."""
    mask: Mask | None = None
    """What the upload will carry, if not everything."""
    token: int = 0
    """Counts the changes of plan: what was scheduled under an older token no longer happens."""

    @property
    def ends(self) -> list[float]:
        """When each slice of that training ends."""
        return list(accumulate(self.seconds[self.first : self.progress.slices], initial=self.start))[1:]
