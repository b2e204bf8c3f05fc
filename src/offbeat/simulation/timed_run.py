"""The plain record of a simulation: the timing of an order."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import inf

from offbeat.core.parameters import Mask
from offbeat.device.local_run import LocalRun
from offbeat.results.rows import Span


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
    pauses: tuple[tuple[float, float], ...] = ()
    """When the device waited for a fresh model, from its question to the answer's arrival."""
    asks: bool = False
    """Whether what the server sees next is a question, and not the upload."""
    over: float = inf
    """When what the server sees next arrives, is lost, or the device has vanished."""
    token: int = 0
    """Counts the changes of plan: what was scheduled under an older token no longer happens."""

    @property
    def ends(self) -> list[float]:
        """When each slice of that training ends."""
        return list(accumulate(self.seconds[self.first : self.progress.slices], initial=self.start))[1:]

    def span(self, landed: float, outcome: str) -> Span:
        """What became of the order, or what has become of it so far."""
        ended, until = min(self.over, landed), min(max(self.until, self.start), self.over)
        slices = self.progress.slices
        if until > landed:  # what is planned for later is not done
            slices = self.first + bisect_right(self.ends, landed)
        return Span(
            device=self.device,
            ticket=self.ticket,
            base=self.base,
            sent=self.sent,
            arrived=self.arrived,
            landed=landed,
            slices=slices,
            outcome=outcome,
            trained_until=until,
            pauses=(*self.pauses, (until, ended)) if self.asks and until < ended else self.pauses,
            ended=ended,
        )
