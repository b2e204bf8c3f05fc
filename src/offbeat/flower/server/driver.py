"""The driver of a real run: it feeds the same session as the simulator, from messages and the wall clock.

Iterating over a `Deployment` runs it, one turn per event, with turns of waiting between them. Answers become events,
what the session asks for becomes messages (`server.exchange`).

Everything that happens is written into a record, from which the simulator can replay the run (`simulation.replay`).
"""

import time
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any

from offbeat.core.errors import DeviceFault
from offbeat.core.messages import Event, FreshRequested, Left, Resolved, Started, TimerFired, Uploaded
from offbeat.core.parameters import Vector
from offbeat.core.policy import Forecast
from offbeat.core.record import ResumedLine, RunLine, effect_line, event_line, version_line
from offbeat.core.session import NANOSECOND, Session
from offbeat.experiment.run_settings import DeploymentTable, EvaluationTable, Stop
from offbeat.flower.server.exchange import Exchange
from offbeat.flower.server.membership import Membership, poll_pause
from offbeat.flower.server.translator import OwnMessages, Translator
from offbeat.flower.server.transport import Transport
from offbeat.results.metric import TargetMetric, metrics_in
from offbeat.results.rows import Row, Span
from offbeat.running.accounts import Accounts
from offbeat.running.directory import RunRecord
from offbeat.running.driver import Milestones
from offbeat.training.training_state import Evaluation

MOMENT = 0.001
"""Seconds that are waited at least, so that a timer that is just due does not keep a core busy."""


class Deployment:
    """A real run of one session. It owns the clock and the messages; the session owns everything else."""

    def __init__(
        self,
        session: Session,
        transport: Transport,
        membership: Membership,
        evaluator: Callable[[Vector], Evaluation],
        *,
        seed: int,
        stop: Stop,
        schedule: EvaluationTable,
        record: RunRecord,
        log: Callable[[str], None],
        settings: DeploymentTable,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        translator: Translator | None = None,
        metric: TargetMetric | None = None,
    ) -> None:
        """`translator` reads what devices say, if these are not messages of offbeat's own."""
        self.session = session
        self.stop = stop
        self.schedule = schedule
        self.now = 0.0
        self.reason: str | None = None
        self.accounts = Accounts(session.devices)
        self._membership = membership
        self._translator = translator or OwnMessages()
        self._exchange = Exchange(
            session,
            transport,
            membership,
            self.accounts,
            seed=seed,
            record=record,
            log=log,
            settings=settings,
            translator=self._translator,
        )
        self._record = record
        self._log = log
        self._clock = clock
        self._sleep = sleep
        self._origin: float | None = None
        self._restarts = 0
        """How often the run was resumed."""
        self._stirred = 0.0
        """When something happened last."""
        self._next_tick = 0.0
        self._milestones = Milestones(session, stop, schedule, evaluator, metric or TargetMetric())

    def open_spans(self) -> list[Span]:
        """Orders in flight, as far as the server has seen."""
        return self._exchange.open_spans()

    # The loop -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Row | None]:
        self._open()
        checked = self.session.version
        while self.reason is None:
            self.now = self._exchange.now = min(self._time(), self.stop.horizon)
            if self.now == self.stop.horizon and self._next_timer()[1] > self.stop.horizon:
                self.reason = "time"
            elif self.now >= self._next_tick and not self._exchange.events:  # devices work while a model is evaluated
                while self._next_tick <= self.now:
                    self._next_tick += self.schedule.interval
                yield self.evaluate()
            elif not self._turn():
                self._sleep(self._pause())
                yield None
            elif self.session.version == checked and self.session.finished is None:
                self._stirred = self.now
                yield None
            else:
                self._stirred = self.now
                checked = self.session.version
                self.reason = self._milestones.reached() or self.reason
                yield self.evaluate() if self._milestones.version_is_due() else None
        if not self._milestones.seen(self.now):
            yield self.evaluate()

    def _pause(self) -> float:
        """How long to wait before looking again. A look costs two processes some milliseconds of a core each."""
        due = min(self._next_timer()[1], self._next_tick, self.stop.horizon, self._exchange.next_due()) - self.now
        return max(MOMENT, min(self._longest_pause(), due))

    def _longest_pause(self) -> float:
        """How long to wait if nothing is due before."""
        return poll_pause(self.now - self._stirred, only_stock=self._exchange.only_stock_nodes_answer())

    def _time(self) -> float:
        assert self._origin is not None
        return round(max(self.now, self._clock() - self._origin), NANOSECOND)

    def _open(self) -> None:
        self._stirred = self.now
        self._origin = self._clock() - self.now
        self._exchange.open(self.now, self._origin)
        if not self._restarts:
            self._record.open()
            self._record.write(
                RunLine.of(
                    self.session,
                    at=self.session.now,
                    samples=self._membership.samples.tolist(),
                    present=sorted(self._membership.node_of),
                    own_data=not self._membership.known,
                )
            )
        else:
            self._record.write(ResumedLine(at=self.session.now))
            self.reason = self.reason or self._milestones.reached()
        if not self.session.started:
            self._exchange.events.append(Started())
        elif self.reason is None:
            self._exchange.tell_who_is_here()

    def _turn(self) -> bool:
        """Deal with the next thing that has happened, if anything has. Devices come before timers.

        A timer fires when all that had come by then is dealt with, also if more comes in all the time.
        """
        events, (name, due) = self._exchange.events, self._next_timer()
        timer_is_next = due <= self._exchange.looked and not self._exchange.unread
        happened = bool(events) or (not timer_is_next and self._exchange.look())
        if events:
            self._tell(events.popleft())
        elif not happened:
            if due > self.now:
                return False
            self._handle(TimerFired(name=name), due)
        return True

    def _tell(self, event: Event) -> None:
        """Handle an event of a device, which the session may refuse."""
        if isinstance(event, Left) and not self.session.is_idle(event.device):
            return  # it was given an order just now
        try:
            self._handle(event)
        except DeviceFault as fault:
            if not isinstance(event, Uploaded | FreshRequested):
                raise
            self._exchange.refused(event.device, event.ticket, fault)

    def _next_timer(self) -> tuple[str, float]:
        return min(self.session.timers.items(), key=lambda timer: timer[1], default=("", inf))

    def _handle(self, event: Event, due: float = inf) -> None:
        """Tell the session, write it down, and carry out what it asks for in return.

        A timer that is noticed late fires when it was due, if nothing has happened since: so rounds do not grow longer
        by what polling and evaluation take.
        """
        session, version, at = self.session, self.session.version, max(self.session.now, min(due, self.now))
        effects = session.handle(event, at)
        self._record.write(event_line(event, at=at, remembered=self._exchange.close_order(event)))
        if session.version != version:
            self._record.write(version_line(session, at=at))
        for effect in effects:
            if (line := effect_line(effect, at=at)) is not None:
                self._record.write(line)
            if isinstance(effect, Resolved):
                self.accounts.resolved(effect.tickets, effect.used, session.version)
                for ticket in effect.tickets:
                    self._translator.resolved(ticket, effect.used, session.version)
        self._exchange.carry_out(effects, sending=self._milestones.reached() is None)

    # Evaluation and snapshots -------------------------------------------------------------------------------------

    def evaluate(self) -> Row:
        """The row of metrics of the current version."""
        session, accounts = self.session, self.accounts
        row = self._milestones.row(self.now, busy=accounts.busy_seconds, wasted=accounts.wasted_seconds)
        reached = self._milestones.reached_by(row)
        if reached is not None:
            self.reason = reached
        measured = "".join(f"{name} {row[name]:.4f}, " for name in metrics_in(row)[:1])
        self._log(
            f"{self.now:.1f} s: version {session.version}, {measured}"
            f"{session.counters.used} updates used, {len(session.in_flight)} in flight"
        )
        return row | self._exchange.figures() | {"restarts": self._restarts}

    _SAVED = ("now", "reason", "_next_tick", "_restarts")

    def snapshot(self) -> dict[str, Any]:
        """Everything that the future depends on, but for what devices are doing: a server that resumes cannot know."""
        return {
            "session": self.session.snapshot(),
            "accounts": self.accounts.snapshot(),
            "exchange": self._exchange.snapshot(),
            "samples": self._membership.samples,
            "forecast": self.session.forecast,
            "record": self._record.position,
            "milestones": self._milestones.snapshot(),
            "translator": self._translator.snapshot(),
        } | {name: getattr(self, name) for name in self._SAVED}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a snapshot. What was in flight is lost; the devices that are here are greeted like new ones."""
        joined = self._membership.present
        self.session.restore(saved["session"], saved["forecast"])
        self.accounts.restore(saved["accounts"])
        self._exchange.restore(saved["exchange"])
        self._milestones.restore(saved["milestones"])
        self._translator.restore(saved["translator"])
        self._membership.samples[~joined] = saved["samples"][~joined]
        self._record.open(saved["record"])
        for name in self._SAVED:
            setattr(self, name, saved[name])
        self._restarts += 1

    @property
    def snapshot_types(self) -> tuple[type[Any], ...]:
        """The dataclasses that a snapshot may hold."""
        return (
            *self.session.snapshot_types,
            *Accounts.snapshot_types,
            *Exchange.snapshot_types,
            Forecast,
            Evaluation,
        )
