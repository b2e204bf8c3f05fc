"""What a session asks of its driver in return for an event: the simulator schedules it, a deployment sends it."""

from msgspec import Struct

from offbeat.core.orders import Order
from offbeat.core.parameters import Vector


class Assignment(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """Deliver this order, with the model it starts from, to a device. The ticket is unique in the run."""

    device: int
    ticket: int
    order: Order
    base: int
    parameters: Vector


class FreshModel(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """Answer a device that asked and waits. `parameters` is None if there is nothing newer for it."""

    device: int
    ticket: int
    version: int
    parameters: Vector | None


class StopNotice(Struct, frozen=True, kw_only=True, gc=False):
    """Tell a device to upload after the slice it is in."""

    device: int
    ticket: int


class TimerSet(Struct, frozen=True, kw_only=True, gc=False):
    """Feed `TimerFired(name)` at this time."""

    name: str
    at: float


class Settled(Struct, frozen=True, kw_only=True, gc=False):
    """What becomes of delivered updates is known: they went into a version, or they were given up."""

    tickets: tuple[int, ...]
    used: bool


Effect = Assignment | FreshModel | StopNotice | TimerSet | Settled
