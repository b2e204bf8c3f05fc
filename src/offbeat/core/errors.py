"""What can go wrong, told apart by whose fault it is. Every message is one sentence a reader can act on."""

import difflib
from collections.abc import Iterable


class OffbeatError(Exception):
    """Base of all errors that offbeat raises on purpose."""


class InvalidInput(OffbeatError):
    """The user's input (settings, data, a directory) cannot be used; nothing was changed. Exit code 2."""


class DeviceFault(OffbeatError):
    """A device sent something illegal: late, twice, malformed, not asked for. The session is unchanged and goes on."""


class PolicyError(OffbeatError):
    """A policy (our code, or the user's) asked for something illegal: a bug, and the run ends."""


class Disconnected(OffbeatError):
    """A driver has lost the way to its devices: the run cannot go on here, but it can be resumed."""


class WorkersLost(OffbeatError):
    """Nobody is left who trains: the run cannot go on now, but it can be resumed from its last checkpoint."""


class Interrupted(OffbeatError):
    """The user, or who runs the machine, stopped a run with a signal; it can be resumed if it has a directory."""

    def __init__(self, message: str, *, number: int = 2) -> None:
        super().__init__(message)
        self.number = number
        """The number of the signal; Ctrl-C is 2."""

    def __reduce__(self) -> tuple[type["Interrupted"], tuple[str]]:
        return type(self), (str(self),)


class Diverged(OffbeatError):
    """Local training produced numbers that are not finite; the run ends and keeps its results so far."""


def unknown(kind: str, name: str, known: Iterable[str]) -> InvalidInput:
    """An error for a name that is not in a registry, with the nearest known name if one is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}."
    return InvalidInput(f"unknown {kind} {name!r}: {hint}")
