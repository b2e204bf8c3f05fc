"""Rows of metrics, and the span of every order: what a run writes while it is in progress."""

from msgspec import Struct

Row = dict[str, float]
"""One evaluation: the time, the version, the task's metrics, and counts of what happened until then, by name."""

COMMON_COLUMNS = (
    "time",
    "version",
    "updates_used",
    "updates_discarded",
    "updates_lost",
    "mean_staleness",
    "max_staleness",
    "bytes_up",
    "bytes_down",
    "in_flight",
    "busy_seconds",
    "wasted_seconds",
)
"""Columns of every row."""
RUN_COLUMNS = (
    *COMMON_COLUMNS,
    "updates_refused",
    "training_loss",
    "energy_wh",
    "traffic_cost",
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
    """The times and the outcome of one order, for the timeline and the accounts."""

    device: int
    ticket: int
    base: int
    sent: float
    arrived: float
    landed: float
    """Time at which the server received the upload or noticed the loss; for an order in flight, the current time."""
    slices: int
    outcome: str
    """"uploaded" or "lost"; "in flight" for an order that has not ended."""
    trained_until: float | None = None
    """Time at which the device stopped training; None if it is not known."""
    pauses: tuple[tuple[float, float], ...] = ()
    """Intervals in which the device waited for a fresh model."""
    ended: float | None = None
    """Time at which the device vanished or its upload was lost, if the server noticed later."""
    samples: int = 0
    """Number of samples on the device."""
    seconds: float = 0.0
    """Seconds of training, by the device's clock."""
    bytes_down: int = 0
    bytes_up: int = 0
    noticed: float | None = None
    """Time at which a stop notice reached the device, if one did; in a deployment the time at which it was sent."""
