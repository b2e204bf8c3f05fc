"""The event queue: a heap with a total order, so that equal times never make a run depend on anything else.

An entry is (time, priority, sequence, kind, subject, detail). Equal times are ordered by priority, then by the order in
which they were scheduled. Entries are plain data: a queue is saved and restored as it is.
"""

from heapq import heappush
from typing import Any

QueueEntry = tuple[float, int, int, str, int, Any]


class EventQueue:
    """Events to come, ordered by time, then by priority, then as they were pushed.

    The entries are a heap: who takes the next one out pops it from there.
    """

    __slots__ = ("entries", "sequence")

    def __init__(self) -> None:
        self.entries: list[QueueEntry] = []
        self.sequence = 0

    def __len__(self) -> int:
        return len(self.entries)

    def push(self, time: float, kind: str, subject: int, detail: Any = None, priority: int = 0) -> None:
        """Add an event."""
        self.sequence += 1
        heappush(self.entries, (time, priority, self.sequence, kind, subject, detail))
