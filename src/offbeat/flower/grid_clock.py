"""The clock of a grid: the wall clock, unless the grid has one of its own.

Whoever drives a run on Flower's messages (`offbeat.flower.Async`) reads the time and waits through these functions
only. So the same code runs in real time on a SuperLink and in virtual time on a grid that simulates one. The contract:

A grid has a clock of its own if it has both of these methods (an attribute `now` that is a number does not count).

- `now() -> float`: seconds from any origin, which never go back. It moves only while somebody waits.
- `wait(seconds: float) -> None`: let time pass, until so many seconds (perhaps infinitely many) have passed or until
  something has happened that a caller would want to look at, whichever is first: an answer can be pulled, or a node
  has come or gone. It may also return earlier than that, but time must have moved, unless there is something to pull.

On such a grid `pull_messages(ids)` gives the answers that have arrived by `now()`, in the order of their arrival, and
may be asked for all of them in one call; `get_node_ids()` gives the nodes that are there at `now()`.
"""

import time
from typing import Any


def has_clock(grid: Any) -> bool:
    """Whether the grid keeps its own time, so that a wait ends by itself when something has happened."""
    return callable(getattr(grid, "now", None)) and callable(getattr(grid, "wait", None))


def grid_now(grid: Any) -> float:
    """Seconds of the grid's clock."""
    return float(grid.now()) if has_clock(grid) else time.monotonic()


def grid_wait(grid: Any, seconds: float) -> None:
    """Let so many seconds pass; on a grid with a clock of its own fewer, if something happens before."""
    if has_clock(grid):
        grid.wait(seconds)
    else:
        time.sleep(seconds)
