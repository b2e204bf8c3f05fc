"""Exceptions, by whose fault it is. Every message is one sentence that a reader can act on.

Messages name no command-line flags: `OutputRefused.remedies` and `OffbeatError.resumable` let the command line do so.
"""

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Literal, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Remedy = Literal["resume", "overwrite", "out"]
REMEDIES: dict[Remedy, str] = {
    "resume": "pass resume=True to continue it",
    "overwrite": "pass overwrite=True to replace it",
    "out": "choose another directory",
}


MOST_NAMES = 25
"""Most names that an error message lists."""


class OffbeatError(Exception):
    """Base of all errors that offbeat raises on purpose."""

    resumable = False
    """Whether the run can be continued from what its directory holds."""


class InvalidInput(OffbeatError):
    """The user's input (settings, data, a directory) cannot be used; nothing was changed. Exit code 2."""


class OutputRefused(InvalidInput):
    """A directory cannot be written to as asked; `remedies` are the arguments that would help."""

    def __init__(self, fact: str, *remedies: Remedy) -> None:
        super().__init__(f"{fact}: {' or '.join(REMEDIES[each] for each in remedies)}")
        self.fact = fact
        self.remedies = remedies

    def __reduce__(self) -> tuple[type["OutputRefused"], tuple[str, ...]]:
        return type(self), (self.fact, *self.remedies)


class DeviceFault(OffbeatError):
    """A device sent a late, duplicate, malformed or unsolicited message. The session is unchanged and continues."""


class PolicyError(OffbeatError):
    """A policy (ours or the user's) yielded something illegal: a bug, and the run ends."""


class Disconnected(OffbeatError):
    """A driver has lost the connection to its devices. The run ends here, but it can be resumed."""


class WorkersLost(OffbeatError):
    """No worker is left. The run ends here, but it can be resumed from its last checkpoint."""

    def __init__(self, message: str, *, resumable: bool = False) -> None:
        super().__init__(message)
        self.resumable = resumable


class Interrupted(OffbeatError):
    """A signal stopped a run; it can be resumed if it has a directory."""

    def __init__(self, message: str, *, number: int = 2, resumable: bool = False) -> None:
        super().__init__(message)
        self.number = number
        """The number of the signal; Ctrl-C is 2."""
        self.resumable = resumable

    def __reduce__(self) -> tuple[type["Interrupted"], tuple[str]]:
        return type(self), (str(self),)


class Diverged(OffbeatError):
    """Local training produced numbers that are not finite; the run ends and keeps its results so far."""


class DiskFull(OffbeatError):
    """A file could not be written for lack of space. Files are replaced atomically, so the last checkpoint is good."""

    def __init__(self, path: str, *, resumable: bool = False) -> None:
        super().__init__(f"the disk is full: {path} could not be written; the last checkpoint is good")
        self.path = path
        self.resumable = resumable

    def __reduce__(self) -> tuple[type["DiskFull"], tuple[str]]:
        return type(self), (self.path,)


def unknown(kind: str, name: str, known: Iterable[str]) -> InvalidInput:
    """An error for a name that is not in a registry, with the nearest known name if one is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    shown = names if len(names) <= MOST_NAMES else [*names[: MOST_NAMES - 2], f"... ({len(names)} in all)"]
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(shown)}."
    return InvalidInput(f"unknown {kind} {name!r}: {hint}")


def checks_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Have a public function answer a misspelt keyword argument with the nearest one that it has.

    >>> checks_keywords(sorted)([1], revers=True)
    Traceback (most recent call last):
    offbeat.core.errors.InvalidInput: unknown argument of sorted() 'revers': did you mean 'reverse'?
    """
    known = [name for name in inspect.signature(function).parameters if name not in ("self", "args", "kwargs")]

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in known:
                raise unknown(f"argument of {function.__name__}()", name, known)
        return function(*args, **kwargs)

    return checked
