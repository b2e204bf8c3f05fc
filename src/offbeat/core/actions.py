"""What a policy may ask of its session. Each action takes effect before the policy is asked for the next one."""

from msgspec import Struct

from offbeat.core.orders import Order
from offbeat.core.parameters import Vector


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
