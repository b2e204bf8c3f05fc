"""The plain records of a simulation: when it stops and evaluates, the timing of an order, and what became of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from msgspec import Struct

from offbeat.core.parameters import Mask
from offbeat.core.session import Session
from offbeat.device.run import LocalRun
from offbeat.device.work import Evaluation

Row = dict[str, float]
"""A line of metrics."""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """When to end a run: at whichever of these is reached first."""

    time: float = inf
    versions: float = inf
    updates: float = inf
    accuracy: float = inf


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When to evaluate the model, beside at the start and at the end."""

    every_seconds: float = inf
    every_versions: int | None = None


class Run(LocalRun, kw_only=True, eq=False, gc=False):
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


class Span(Struct, frozen=True, kw_only=True, gc=False):
    """What became of an order, for the timeline."""

    device: int
    ticket: int
    base: int
    sent: float
    arrived: float
    landed: float
    slices: int
    outcome: str


def row_of(session: Session, evaluation: Evaluation, *, at: float, busy: float, wasted: float) -> Row:
    """The line of metrics at a time: the model, what became of the work, and the algorithm's own figures."""
    counters = session.counters
    row: Row = {
        "time": at,
        "version": session.version,
        "accuracy": evaluation.accuracy,
        "loss": evaluation.loss,
        "updates_used": counters.used,
        "updates_discarded": counters.discarded,
        "updates_lost": counters.lost,
        "mean_staleness": counters.staleness_sum / counters.used if counters.used else 0.0,
        "max_staleness": counters.staleness_max,
        "bytes_up": counters.bytes_up,
        "bytes_down": counters.bytes_down,
        "in_flight": len(session.in_flight),
        "busy_seconds": busy,
        "wasted_seconds": wasted,
    }
    if evaluation.training_loss is not None:
        row["training_loss"] = evaluation.training_loss
    return row | dict(session.policy.metrics(session.state))
