"""The books that a session keeps: orders at work, counters, and a journal of what happened."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from offbeat.core.effects import Assignment
from offbeat.core.parameters import Vector

STORY_LINES = 6
JOURNAL_LINES = 256


class Flight(Assignment, frozen=True, kw_only=True, eq=False, gc=False):
    """An order at work: the assignment, and what the device was told since. It keeps the versions that it refers to."""

    notified: bool = False
    fresh: tuple[tuple[int, Vector], ...] = ()
    """The newer versions that the device was given on the way, with their parameters."""

    @property
    def versions(self) -> list[int]:
        """All versions that it was given, its base first."""
        return [self.base, *(version for version, _ in self.fresh)]


@dataclass(slots=True, kw_only=True, eq=False)
class Counters:
    """What happened so far, for the metrics."""

    dispatched: int = 0
    received: int = 0
    used: int = 0
    discarded: int = 0
    lost: int = 0
    refused: int = 0
    requests: int = 0
    answered: int = 0
    notices: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0


@dataclass(slots=True)
class Journal:
    """The last lines of what happened; `record`, if set, is given every line as the session writes it."""

    lines: deque[tuple[Any, ...]] = field(default_factory=lambda: deque(maxlen=JOURNAL_LINES))
    record: Callable[[tuple[Any, ...]], None] | None = None

    def story(self, device: int | None) -> str:
        """The last lines about a device (or about anything), for an error's reader."""
        about = [line for line in self.lines if device is None or line[2] == device][-STORY_LINES:]
        return "; ".join(f"{time:.6g} {what} v{version}" for time, what, _, _, version in about) or "nothing before"
