"""The local run of one order in virtual time."""

from collections.abc import Sequence
from math import inf

from offbeat.core.parameters import Mask
from offbeat.results.rows import Span
from offbeat.simulation.lifecycle import Fate
from offbeat.training.local_run import LocalRun, ends_of, slices_by


class TimedRun(LocalRun, kw_only=True, eq=False, gc=False):
    """The local run of one order with its times, from dispatch to upload or loss."""

    device: int
    ticket: int
    base: int
    sent: float
    arrived: float
    """When the model has arrived and the device begins."""
    samples: int
    steps: int
    """Optimiser steps in an epoch."""
    layers: int
    """Trained layers of the model: slices per optimiser step, if a slice is a layer."""
    seconds: Sequence[float]
    """Duration of each slice."""
    bytes_down: int
    """Bytes sent to the device so far."""
    fate: Fate
    start: float
    """When the current training began: after the download, or after the last answer."""
    first: int = 0
    """The slice with which the current training began."""
    until: float = 0.0
    """When the current training stops."""
    mask: Mask | None = None
    """The elements that the upload contains; None: all."""
    bytes_up: int = 0
    """Bytes of the upload."""
    pauses: tuple[tuple[float, float], ...] = ()
    """Times in which the device waited for a fresh model, from its question to the arrival of the answer."""
    heard: float = 0.0
    """When the answer reaches a device that goes on training after its question; it uploads no earlier."""
    asks: bool = False
    """Whether the next event that the server sees is a question, not the upload."""
    over: float = inf
    """When the next event that the server sees arrives or is lost, or when the device vanishes."""
    token: int = 0
    """Number of the plan: events that were scheduled under an earlier number are ignored."""

    @property
    def ends(self) -> list[float]:
        """End times of the slices of the current training."""
        return ends_of(self.seconds[self.first : self.progress.slices], self.start)

    def steps_in(self, slices: int) -> int:
        """Optimiser steps in the next slices, or in the last ones if negative."""
        if self.order.unit == "epoch":
            return slices * self.steps
        done = self.progress.slices
        return (done + slices) // self.layers - done // self.layers

    def take_back(self, slices: int, until: float) -> None:
        """Drop the last planned slices: the training stops at `until`."""
        self.trained(-slices, self.steps_in(-slices), until - self.until)
        self.until = until

    def span(self, landed: float, outcome: str) -> Span:
        """Summarise the order for accounts and timeline, as of the time `landed`."""
        progress, over = self.progress, self.over
        ended = over if over < landed else landed
        until = self.until if self.until > self.start else self.start
        until = until if until < over else over  # no min and max: their calls cost time for every order
        slices = progress.slices
        if until > landed:  # what is planned for later has not been done
            slices = self.first + slices_by(self.ends, landed)
        pauses = self.pauses
        if until < ended and (self.asks or until < self.heard):
            pauses = (*pauses, (until, ended if self.asks or ended < self.heard else self.heard))
        return Span(  # positional arguments, in the order of its fields: 1.5 times as fast as keywords
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
