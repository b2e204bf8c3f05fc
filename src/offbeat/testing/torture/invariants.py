"""What must hold in every case, whichever driver runs it."""

from collections import Counter
from math import inf

from offbeat.core.session import Session
from offbeat.results.rows import Span
from offbeat.testing.torture.cases import Case

MOST_TURNS = 60_000
"""Turns after which a run counts as hanging."""
HORIZON = 400.0
"""Seconds of the run's clock after which a case ends."""
BOUNDED = {"seafl": "staleness_limit"}
"""Algorithms that promise a largest staleness, and the setting that has it."""
ROUNDS = ("fedavg", "fedprox", "moon", "feddyn", "fedlws")
"""Algorithms whose updates are never stale."""


class Broken(AssertionError):
    """A case violates an invariant."""


def audit(session: Session) -> None:
    """Check the session's own invariants."""
    if wrong := session.audit():
        raise Broken("; ".join(wrong))


def check_counts(session: Session, spans: list[Span], busy: float, case: Case) -> None:
    """Check that no ticket ended twice, and that orders, seconds and staleness add up."""
    counters, tickets = session.counters, [span.ticket for span in spans]
    if twice := [ticket for ticket, count in Counter(tickets).items() if count > 1]:
        raise Broken(f"tickets ended twice: {twice[:5]}")
    if len(tickets) != counters.received + counters.lost:
        raise Broken(f"{len(tickets)} orders ended, but {counters.received} were received and {counters.lost} lost")
    if abs(sum(span.seconds for span in spans) - busy) > 1e-6 * max(1.0, busy):
        raise Broken(f"busy_seconds is {busy}, the orders have {sum(span.seconds for span in spans)}")
    if wrong := [span for span in spans if not span.sent <= span.arrived or not span.sent <= span.landed]:
        raise Broken(f"an order ends before it begins: {wrong[0]}")
    if case.algorithm in ROUNDS and counters.staleness_max:
        raise Broken(f"{case.algorithm} used an update of staleness {counters.staleness_max}")
    bound = getattr(session.policy, BOUNDED.get(case.algorithm, ""), inf)
    if counters.staleness_max > bound:
        raise Broken(f"staleness {counters.staleness_max} exceeds {bound}")
