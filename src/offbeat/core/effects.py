"""What a session asks of its driver in return for an event: the simulator schedules it, a deployment sends it."""

from dataclasses import dataclass

from offbeat.core.messages import Order
from offbeat.core.parameters import Vector


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assignment:
    """Deliver this order, with the model it starts from, to a device. The ticket is unique in the run."""

    device: int
    ticket: int
    order: Order
    base: int
    parameters: Vector


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FreshModel:
    """Answer a device that asked and waits. `parameters` is None if there is nothing newer for it."""

    device: int
    ticket: int
    version: int
    parameters: Vector | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopNotice:
    """Tell a device to upload after the slice it is in."""

    device: int
    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerSet:
    """Feed `TimerFired(name)` at this time."""

    name: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The fate of a delivered update is known: it went into a version, or it was given up."""

    ticket: int
    used: bool


Effect = Assignment | FreshModel | StopNotice | TimerSet | Settled
