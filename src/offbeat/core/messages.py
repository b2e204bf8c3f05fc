"""The messages around a session: events come in, a policy answers with actions, and effects go out to the driver.

Events carry no time, because a policy has no clock; they are tagged, so that a record holds them as they are. Each
action takes effect before the policy yields the next one. A simulator schedules effects, a deployment sends them.
"""

from msgspec import Struct

from offbeat.core.orders import Order, Progress, Update
from offbeat.core.parameters import Vector


class Started(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """The run starts; devices that are present are idle."""


class Ready(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A device that was away is available and idle, again or for the first time."""

    device: int


class Left(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """An idle device became unavailable."""

    device: int


class Uploaded(Struct, frozen=True, kw_only=True, eq=False, gc=False, tag=True):
    """A device uploaded its update and is idle."""

    device: int
    ticket: int
    update: Update


class FreshRequested(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A device in training asks for the newest version and waits for the reply."""

    device: int
    ticket: int
    progress: Progress


class Lost(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """No update will come for this ticket: the device vanished, or its upload was lost or refused. It is away."""

    device: int
    ticket: int
    reason: str = "vanished"


class TimerFired(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A timer that the policy set has fired."""

    name: str


Event = Started | Ready | Left | Uploaded | FreshRequested | Lost | TimerFired


class Dispatch(Struct, frozen=True, kw_only=True, gc=False):
    """Send an idle device an order to train, with the current version."""

    device: int
    order: Order


class SendFresh(Struct, frozen=True, kw_only=True, gc=False):
    """Reply to a device's request with the current version."""

    device: int


class StopSoon(Struct, frozen=True, kw_only=True, gc=False):
    """Tell a device in training to upload after its current slice, or without it (`Order.drops_unfinished`)."""

    device: int


class Commit(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """Make these parameters the next version. `used` names the updates that are used in it for the first time."""

    parameters: Vector
    used: tuple[int, ...] = ()


class Discard(Struct, frozen=True, kw_only=True, gc=False):
    """Discard a received update."""

    ticket: int
    reason: str


class SetTimer(Struct, frozen=True, kw_only=True, gc=False):
    """Cause `TimerFired(name)` after a number of seconds. One timer per name at a time."""

    name: str
    after: float


class Finish(Struct, frozen=True, kw_only=True, gc=False):
    """End the run."""

    reason: str


Action = Dispatch | SendFresh | StopSoon | Commit | Discard | SetTimer | Finish


class Assignment(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """Send a device this order, with the model it starts from. The ticket is unique in the run."""

    device: int
    ticket: int
    order: Order
    base: int
    parameters: Vector


class FreshModel(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """Reply to a device that waits for a newer version. `parameters` is None if there is none."""

    device: int
    ticket: int
    version: int
    parameters: Vector | None


class StopNotice(Struct, frozen=True, kw_only=True, gc=False):
    """Tell a device to upload after its current slice."""

    device: int
    ticket: int


class TimerSet(Struct, frozen=True, kw_only=True, gc=False):
    """Feed `TimerFired(name)` at this time."""

    name: str
    at: float


class Resolved(Struct, frozen=True, kw_only=True, gc=False):
    """Received updates are resolved: used in a version, or discarded."""

    tickets: tuple[int, ...]
    used: bool


Effect = Assignment | FreshModel | StopNotice | TimerSet | Resolved
