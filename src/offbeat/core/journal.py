"""What a session counts, and a journal of what happened."""

from collections import deque
from dataclasses import dataclass, field

LINES_IN_ERRORS = 6
"""How many lines of the journal an error's message has at most."""
JOURNAL_LINES = 256
"""How many lines the journal keeps at most."""
JournalLine = tuple[float, str, int | None, int | None, int]
"""A line of the journal: the time, what happened, the device and the ticket that it concerns, and the version."""


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
    """The last lines of what happened."""

    lines: deque[JournalLine] = field(default_factory=lambda: deque(maxlen=JOURNAL_LINES))

    def last(self, device: int | None) -> str:
        """The last lines about a device (or, without one, about anything), for the reader of an error."""
        about = [line for line in self.lines if device is None or line[2] == device][-LINES_IN_ERRORS:]
        return "; ".join(f"{time:.6g} {what} v{version}" for time, what, _, _, version in about) or "nothing before"
