"""What a run leaves behind while it goes on: rows of metrics, and the span of every order."""

from msgspec import Struct

Row = dict[str, float]
"""One evaluation: the time, the version, the task's metrics, and counts of what happened until then, by name."""

RUN_COLUMNS = (
    "time",
    "version",
    "updates_used",
    "updates_discarded",
    "updates_lost",
    "updates_refused",
    "mean_staleness",
    "max_staleness",
    "bytes_up",
    "bytes_down",
    "in_flight",
    "busy_seconds",
    "wasted_seconds",
    "training_loss",
    "devices",
    "faults_unsent",
    "faults_unanswered",
    "faults_node_error",
    "faults_node_gone",
    "faults_not_admitted",
    "restarts",
)
"""Columns of a row that every run may have, whatever its task measures."""


class Span(Struct, frozen=True, gc=False):
    """What became of an order, for the timeline and the accounts."""

    device: int
    ticket: int
    base: int
    sent: float
    arrived: float
    landed: float
    """When the server received the upload or noticed the loss; for an order in flight, when this was written."""
    slices: int
    outcome: str
    """"uploaded" or "lost"; "in flight" for an order that has not ended."""
    trained_until: float | None = None
    """When the device stopped training; None where nobody knows."""
    pauses: tuple[tuple[float, float], ...] = ()
    """When the device waited for a fresh model: from its question to the answer's arrival."""
    ended: float | None = None
    """When the device's part was over, if the server learned of that later: it vanished, or its upload was lost."""
    samples: int = 0
    """How many samples the device holds."""
    seconds: float = 0.0
    """Seconds of training by the device's own clock."""
    bytes_down: int = 0
    bytes_up: int = 0
