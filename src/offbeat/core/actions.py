"""What a policy may ask of its session. Each action takes effect before the policy is asked for the next one."""

from dataclasses import dataclass

from offbeat.core.messages import Order
from offbeat.core.parameters import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Send the current version to an idle device with an order to train."""

    device: int
    order: Order


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFresh:
    """Answer a device's request with the current version."""

    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSoon:
    """Ask a device in training to finish the slice it is in and to upload what it has."""

    device: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Commit:
    """Make these parameters the next version. `used` names the updates that went into it for the first time."""

    parameters: Vector
    used: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Give up an update that was delivered and will not be used."""

    ticket: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Have `TimerFired(name)` happen after so many seconds. One timer per name at a time."""

    name: str
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """End the run."""

    reason: str


Action = Dispatch | SendFresh | StopSoon | Commit | Discard | SetTimer | Finish
