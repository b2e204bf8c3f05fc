"""Says in words when a run did not do what runs are for: it made no version, diverged, or stood still to its end."""

from collections.abc import Sequence

from offbeat.algorithms.sizes import sizes_of
from offbeat.core.session import Session
from offbeat.results.rows import Row

DIVERGED = "diverged: "
"""The beginning of the reason for which a run that diverged was stopped."""
NOTHING_LEFT = "nothing left to happen"
STANDSTILL = 0.25
"""The share of a run without any order in flight, at its end, that counts as a problem."""


def problem_of(session: Session, rows: Sequence[Row], reason: str) -> str | None:
    """What went wrong in a run that was stopped for this reason, as a sentence without its full stop; or None."""
    end, counters = rows[-1]["time"], session.counters
    if reason.startswith(DIVERGED):
        return f"training diverged at {end:.4g} s, after version {session.version}: {reason.removeprefix(DIVERGED)}"
    if reason != "time" and reason in rows[-1]:
        return None  # a metric has reached the value at which the run ends
    if session.version == 0:
        return f"no version was made in {end:.4g} s: {_why_no_version(session)}"
    quiet = _standstill(rows)
    if reason != NOTHING_LEFT and end - quiet <= STANDSTILL * end:
        return None
    before = f"after {counters.used} used updates"
    if session.idle:
        return (
            f"the run stood still from {quiet:.4g} s on, {before}: none of the {session.idle} idle devices was ordered"
        )
    return f"the run stood still from {quiet:.4g} s on, {before}: no device was available"


def _why_no_version(session: Session) -> str:
    counters, buffer = session.counters, sizes_of(session.policy).get("buffer")
    if not counters.dispatched:
        return (
            f"the algorithm ordered none of the {session.idle} idle devices"
            if session.idle
            else ("no device was available")
        )
    if not counters.received:
        if counters.lost:
            return f"{counters.lost} of {counters.dispatched} orders were lost, and no update was received"
        return f"none of the {counters.dispatched} orders was completed; increase the stop time or give shorter orders"
    if counters.discarded == counters.received:
        return f"all {counters.received} updates were discarded"
    if buffer is not None and counters.received < buffer:
        return f"only {counters.received} updates were received, and the buffer holds {buffer:g}; decrease it"
    return f"{counters.received} updates were received, but the algorithm used none of them"


def _standstill(rows: Sequence[Row]) -> float:
    """The time of the first of the last rows in which no order is in flight and the number of used updates stays."""
    since = rows[-1]["time"]
    for row in reversed(rows):
        if row["in_flight"] or row["updates_used"] != rows[-1]["updates_used"]:
            break
        since = row["time"]
    return since
