"""Rows of metrics, and the span of every order: what a run writes while it is in progress."""

from collections import Counter
from collections.abc import Mapping, Sequence
from zlib import crc32

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
EVALUATOR_COLUMNS = ("evaluators", "evaluation_samples", "evaluator_set")
"""Columns of a row whose metrics devices measured: their number, their samples, and a checksum of who they are."""
RUN_COLUMNS = (
    *COMMON_COLUMNS,
    *EVALUATOR_COLUMNS,
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
    "replies_ignored",
    "restarts",
)
"""Columns of a row that every run may have, whatever its task measures."""


def evaluator_columns(samples: Mapping[int, float]) -> Row:
    """The columns for devices that evaluated a version, from the number of samples of each.

    >>> evaluator_columns({7: 3, 4: 5})
    {'evaluators': 2, 'evaluation_samples': 8, 'evaluator_set': 1571773183}
    """
    names = ",".join(map(str, sorted(samples)))
    return dict(zip(EVALUATOR_COLUMNS, (len(samples), sum(samples.values()), crc32(names.encode())), strict=True))


def on_one_set(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows that may be compared: all, or those of the largest set of devices if different sets measured them.

    Empty if no two rows were measured by the same devices.
    """
    sets = Counter((row["evaluation_samples"], row["evaluator_set"]) for row in rows if "evaluator_set" in row)
    if len(sets) < 2:
        return rows
    (_, largest), number = max(sets.items(), key=lambda each: (each[0][0], each[1]))
    return [row for row in rows if row.get("evaluator_set") == largest] if number > 1 else []


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
