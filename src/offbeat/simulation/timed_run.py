"""The local run of an order in virtual time."""

from collections.abc import Sequence
from math import inf

from offbeat.core.parameters import Mask
from offbeat.results.rows import Span
from offbeat.simulation.lifecycle import Fate
from offbeat.training.local_run import LocalRun, ends_of, slices_by


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
    """Steps of training in an epoch."""
    layers: int
    """Layers of the model that are trained: slices of a step of training, if a slice is a layer."""
    seconds: Sequence[float]
    """What each slice takes."""
    bytes_down: int
    """What was sent to the device so far."""
    fate: Fate
    start: float
    """When the training that the device is in began."""
    first: int = 0
    """The slice with which the training that the device is in began."""
    until: float = 0.0
    """When the training that the device is in stops."""
    mask: Mask | None = None
    """What the upload will carry, if not everything."""
    bytes_up: int = 0
    """What the upload will weigh."""
    pauses: tuple[tuple[float, float], ...] = ()
    """When the device waited for a fresh model, from its question to the answer's arrival."""
    heard: float = 0.0
    """When the answer reaches a device that trains on after its question: it uploads no sooner."""
    asks: bool = False
    """Whether what the server sees next is a question, and not the upload."""
    over: float = inf
    """When what the server sees next arrives, is lost, or the device has vanished."""
    token: int = 0
    """Counts the changes of plan: what was scheduled under an older token no longer happens."""

    @property
    def ends(self) -> list[float]:
        """When each slice ends of the training that the device is in."""
        return ends_of(self.seconds[self.first : self.progress.slices], self.start)

    def steps_in(self, slices: int) -> int:
        """Steps of SGD in the next slices, or in the last ones if negative."""
        if self.order.unit == "epoch":
            return slices * self.steps
        done = self.progress.slices
        return (done + slices) // self.layers - done // self.layers

    def take_back(self, slices: int, until: float) -> None:
        """The last slices that were planned will not be done: the training stops at this time."""
        self.trained(-slices, self.steps_in(-slices), until - self.until)
        self.until = until

    def span(self, landed: float, outcome: str) -> Span:
        """What became of the order, or what has become of it so far."""
        progress, over = self.progress, self.over
        ended = over if over < landed else landed
        until = self.until if self.until > self.start else self.start
        until = until if until < over else over  # min and max would be calls, and this is made for every order
        slices = progress.slices
        if until > landed:  # what is planned for later is not done
            slices = self.first + slices_by(self.ends, landed)
        pauses = self.pauses
        if until < ended and (self.asks or until < self.heard):
            pauses = (*pauses, (until, ended if self.asks or ended < self.heard else self.heard))
        return Span(  # by position, which is half as fast again: device, ticket, base, then in the order of its fields
            self.device,
            self.ticket,
            self.base,
            self.sent,
            self.arrived,
            landed,
            slices,
            outcome,
            until,
            pauses,
            ended,
            self.samples,
            progress.seconds,
            self.bytes_down,
            self.bytes_up,
        )
