"""What happens to a session: the only things a policy ever reacts to. They carry no time: a policy has no clock."""

from msgspec import Struct

from offbeat.core.orders import Progress, Update


class Started(Struct, frozen=True, kw_only=True, gc=False):
    """The run begins; the devices that are present are idle."""


class Ready(Struct, frozen=True, kw_only=True, gc=False):
    """A device that was away is here again (or for the first time) and idle."""

    device: int


class Left(Struct, frozen=True, kw_only=True, gc=False):
    """An idle device went away."""

    device: int


class Uploaded(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """A device delivered its update and is idle."""

    device: int
    ticket: int
    update: Update


class FreshRequested(Struct, frozen=True, kw_only=True, gc=False):
    """A device in training asks for the newest model and waits for the answer."""

    device: int
    ticket: int
    progress: Progress


class Lost(Struct, frozen=True, kw_only=True, gc=False):
    """Nothing will come back for this ticket: the device vanished, its upload was lost or refused. It is away."""

    device: int
    ticket: int
    reason: str = "vanished"


class TimerFired(Struct, frozen=True, kw_only=True, gc=False):
    """A timer that the policy had set ran out."""

    name: str


Event = Started | Ready | Left | Uploaded | FreshRequested | Lost | TimerFired
