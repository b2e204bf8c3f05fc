"""The messages around a session: events come in, a policy answers with actions, and effects go out to the driver.

Events carry no time, because a policy has no clock; they are tagged, so that a record holds them as they are. Each
action takes effect before the policy yields the next one. A simulator schedules effects, a deployment sends them.
"""

from msgspec import Struct

from offbeat.core.orders import Order, Progress, Update
from offbeat.core.parameters import Vector


class Started(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The run begins; the devices that are present are idle."""


class Ready(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A device that was away is here again (or for the first time) and idle."""

    device: int


class Left(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """An idle device went away."""

    device: int


class Uploaded(Struct, frozen=True, kw_only=True, eq=False, gc=False, tag=True):
    """A device delivered its update and is idle."""

    device: int
    ticket: int
    update: Update


class FreshRequested(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A device in training asks for the newest model and waits for the answer."""

    device: int
    ticket: int
    progress: Progress


class Lost(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Nothing will come back for this ticket: the device vanished, its upload was lost or refused. It is away."""

    device: int
    ticket: int
    reason: str = "vanished"


class TimerFired(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A timer that the policy had set ran out."""

    name: str


Event = Started | Ready | Left | Uploaded | FreshRequested | Lost | TimerFired


class Dispatch(Struct, frozen=True, kw_only=True, gc=False):
    """Send the current version to an idle device with an order to train."""

    device: int
    order: Order


class SendFresh(Struct, frozen=True, kw_only=True, gc=False):
    """Answer a device's request with the current version."""

    device: int


class StopSoon(Struct, frozen=True, kw_only=True, gc=False):
    """Ask a device in training to finish the slice it is in, or drop it (`Order.drops_unfinished`), and to upload."""

    device: int


class Commit(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """Make these parameters the next version. `used` names the updates that went into it for the first time."""

    parameters: Vector
    used: tuple[int, ...] = ()


class Discard(Struct, frozen=True, kw_only=True, gc=False):
    """Give up an update that was delivered and will not be used."""

    ticket: int
    reason: str


class SetTimer(Struct, frozen=True, kw_only=True, gc=False):
    """Have `TimerFired(name)` happen after so many seconds. One timer per name at a time."""

    name: str
    after: float


class Finish(Struct, frozen=True, kw_only=True, gc=False):
    """End the run."""

    reason: str


Action = Dispatch | SendFresh | StopSoon | Commit | Discard | SetTimer | Finish


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


class Resolved(Struct, frozen=True, kw_only=True, gc=False):
    """What becomes of delivered updates is known: they went into a version, or they were given up."""

    tickets: tuple[int, ...]
    used: bool


Effect = Assignment | FreshModel | StopNotice | TimerSet | Resolved
