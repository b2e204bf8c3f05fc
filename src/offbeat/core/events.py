"""What happens to a session: the only things a policy ever reacts to. They carry no time: a policy has no clock."""

from dataclasses import dataclass

from offbeat.core.messages import Progress, Update


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The run begins; the devices that are present are idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A device that was away is here again (or for the first time) and idle."""

    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """An idle device went away."""

    device: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Uploaded:
    """A device delivered its update and is idle."""

    device: int
    ticket: int
    update: Update


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshRequested:
    """A device in training asks for the newest model and waits for the answer."""

    device: int
    ticket: int
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Nothing will come back for this ticket: the device vanished, its upload was lost or refused. It is away."""

    device: int
    ticket: int
    reason: str = "vanished"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """A timer that the policy had set ran out."""

    name: str


Event = Started | Ready | Left | Uploaded | FreshRequested | Lost | TimerFired
