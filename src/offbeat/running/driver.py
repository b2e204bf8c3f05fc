"""What both drivers share: their interface, the conditions that end a run, and the rows of metrics."""

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any, Protocol

from offbeat.core.errors import PolicyError
from offbeat.core.parameters import Vector
from offbeat.core.session import Session
from offbeat.core.state import Counters
from offbeat.experiment.run_settings import EvaluationTable, Stop
from offbeat.results.metric import TargetMetric
from offbeat.results.rows import Row, Span
from offbeat.running.accounts import Accounts
from offbeat.training.training_state import Evaluation

OnProgress = Callable[[float, Row | None], None]
"""Called with the completed share of a run (0 to 1) and the newest row of metrics, if there is one."""


def row_of(session: Session, evaluation: Evaluation, *, at: float, busy: float, wasted: float) -> Row:
    """Make a row of metrics: of the model, of the run, and of the algorithm."""
    counted = counted_columns(session.counters, in_flight=len(session.in_flight), busy=busy, wasted=wasted)
    row: Row = {"time": at, "version": session.version, **evaluation.metrics, **counted}
    if evaluation.training_loss is not None:
        row["training_loss"] = evaluation.training_loss
    own = session.own_metrics()
    if taken := sorted(own.keys() & (row.keys() | {"training_loss"})):
        raise PolicyError(
            f"metrics() of {type(session.policy).__name__} returns {', '.join(map(repr, taken))}, which every row "
            "already has: choose other names"
        )
    return row | own


def counted_columns(counters: Counters, *, in_flight: int, busy: float, wasted: float) -> Row:
    """The columns of a row that a run counts, whatever its task measures."""
    return {
        "updates_used": counters.used,
        "updates_discarded": counters.discarded,
        "updates_lost": counters.lost,
        "mean_staleness": counters.staleness_sum / counters.used if counters.used else 0.0,
        "max_staleness": counters.staleness_max,
        "bytes_up": counters.bytes_up,
        "bytes_down": counters.bytes_down,
        "in_flight": in_flight,
        "busy_seconds": busy,
        "wasted_seconds": wasted,
    }


class Milestones:
    """Decides when a run ends and when its versions are evaluated, and keeps the last evaluation."""

    __slots__ = (
        "_evaluate",
        "_evaluation",
        "_every",
        "_last_row",
        "_metric",
        "_next_version",
        "_session",
        "_stop",
        "_updates",
        "_versions",
    )

    def __init__(
        self,
        session: Session,
        stop: Stop,
        schedule: EvaluationTable,
        evaluate: Callable[[Vector], Evaluation],
        metric: TargetMetric,
    ) -> None:
        self._session = session
        self._stop = stop
        self._metric = metric
        self._versions = stop.versions or inf
        self._updates = stop.updates or inf
        self._every = schedule.every_versions
        self._evaluate = evaluate
        self._next_version = self._every or 0
        self._evaluation: tuple[int, Evaluation] | None = None
        """The version that was evaluated last, and its evaluation."""
        self._last_row = (-1.0, -1)

    def row(self, at: float, *, busy: float, wasted: float) -> Row:
        """Make the row of metrics at this time; a version is evaluated once."""
        session = self._session
        if self._evaluation is None or self._evaluation[0] != session.version:
            self._evaluation = (session.version, self._evaluate(session.parameters))
        self._last_row = (at, session.version)
        return row_of(session, self._evaluation[1], at=at, busy=busy, wasted=wasted)

    def seen(self, at: float) -> bool:
        """Whether the last row was of this time and of the current version."""
        return self._last_row == (at, self._session.version)

    def version_is_due(self) -> bool:
        """Whether the current version must be evaluated; True once per version."""
        if self._every is None or self._session.version < self._next_version:
            return False
        self._next_version = self._session.version + self._every
        return True

    def reached(self) -> str | None:
        """The condition that ends the run, if one is met; drivers check the time themselves."""
        if self._session.finished is not None:
            return self._session.finished
        if self._session.version >= self._versions:
            return "versions"
        return "updates" if self._session.counters.used >= self._updates else None

    def reached_by(self, row: Row) -> str | None:
        """The metric in this row that ends the run, if one does."""
        return self._stop.reached(row, self._metric.name, self._metric.direction)

    def snapshot(self) -> tuple[Any, ...]:
        """The state, as plain data."""
        return self._evaluation, self._next_version, self._last_row

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Continue from a snapshot."""
        self._evaluation, self._next_version, self._last_row = saved


class Driver(Protocol):
    """Feeds events to a session and owns the clock. An iteration is a turn: one event, and a row if one is due.

    A snapshot may be taken between two turns.
    """

    session: Session
    now: float
    stop: Stop
    reason: str | None
    accounts: Accounts
    unsaved: bool
    """Whether the driver waits for a checkpoint before it releases a private version."""

    def open_spans(self) -> list[Span]:
        """Spans of the orders in flight, up to now."""
        ...

    def __iter__(self) -> Iterator[Row | None]: ...
    def evaluate(self) -> Row:
        """Evaluate the current version, and return the row of metrics."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """The state of the driver, as plain data and arrays."""
        ...

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue from a snapshot."""
        ...

    @property
    def snapshot_types(self) -> tuple[type[Any], ...]:
        """The record types that a snapshot may hold."""
        ...


def progress_of(driver: Driver) -> float:
    """The completed share of a run."""
    session = driver.session
    return driver.stop.progress(time=driver.now, versions=session.version, updates=session.counters.used)
