"""The driver of a real run: it feeds the same session as the simulator, from messages and the wall clock.

Iterating over a `Deployment` runs it, one turn per event, with turns of waiting between them. The driver has the clock,
the transport, the timers, the evaluation, the snapshots and the record, which nothing else writes. What replies and
effects mean is decided by the exchange (`server.exchange`), which returns events, messages and lines of the record for
the driver to carry out.

The simulator can replay the run from its record (`simulation.replay`).
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Any

from msgspec.structs import asdict

from offbeat.core.errors import DeviceFault, Disconnected, Diverged
from offbeat.core.messages import (
    Assignment,
    Effect,
    Event,
    FreshRequested,
    Left,
    Lost,
    Resolved,
    Started,
    TimerFired,
    Uploaded,
)
from offbeat.core.parameters import Vector
from offbeat.core.policy import Forecast
from offbeat.core.record import (
    FaultLine,
    HeardLine,
    JoinedLine,
    ResumedLine,
    RunLine,
    effect_line,
    event_line,
    version_line,
)
from offbeat.core.session import Session
from offbeat.core.state import moment
from offbeat.experiment.run_settings import DeploymentTable, EvaluationTable, Stop
from offbeat.flower.server.exchange import Exchange, Output
from offbeat.flower.server.membership import LOOK_SECONDS, Membership, greet_new_nodes, poll_pause
from offbeat.flower.server.reply_checks import OwnMessages, PendingOrder, Translator
from offbeat.flower.server.transport import OutgoingMessage, ReceivedReply, Transport
from offbeat.results.metric import TargetMetric
from offbeat.results.rows import RUN_COLUMNS, Row, Span
from offbeat.running.accounts import Accounts
from offbeat.running.directory import RunRecord
from offbeat.running.driver import Milestones
from offbeat.training.training_state import Evaluation

MOMENT = 0.001
"""Shortest wait in seconds, so that a timer about to fire does not keep a core busy."""


LAST_UPDATES = 256
"""The last updates, among which an error looks for those that made the model diverge."""


class Deployment:
    """A real run of one session. It owns the clock and all IO; the session owns the state of the algorithm."""

    __slots__ = (
        "_attended",
        "_clock",
        "_events",
        "_exchange",
        "_ignored_before",
        "_inbox",
        "_log",
        "_looked",
        "_membership",
        "_milestones",
        "_next_tick",
        "_origin",
        "_record",
        "_response_seconds",
        "_restarts",
        "_saw_nodes",
        "_sleep",
        "_stirred",
        "_translator",
        "_transport",
        "_unreleased",
        "_uploaded",
        "accounts",
        "now",
        "reason",
        "schedule",
        "session",
        "stop",
        "unsaved",
    )

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
        """`translator` reads replies, if the devices do not run offbeat's client app."""
        self.session = session
        self.stop = stop
        self.schedule = schedule
        self.now = 0.0
        self.reason: str | None = None
        self.unsaved = False
        """Whether a private version or order waits to be sent until a checkpoint holds it."""
        self._unreleased: list[Output] = []
        """The messages that wait."""
        self.accounts = Accounts(session.devices)
        self._transport = transport
        self._membership = membership
        self._translator = translator or OwnMessages()
        self._exchange = Exchange(session, membership, self._translator, seed=seed, settings=settings)
        self._record = record
        self._log = log
        self._clock = clock
        self._sleep = sleep
        self._response_seconds = settings.answer_seconds
        self._milestones = Milestones(session, stop, schedule, evaluator, metric or TargetMetric())
        self._events: deque[Event] = deque()
        """Events that the session is told next."""
        self._inbox: deque[ReceivedReply] = deque()
        """Replies that were fetched and not read yet."""
        self._origin: float | None = None
        self._ignored_before = 0
        """Replies that were ignored before the last resume."""
        self._restarts = 0
        """How many times the run was resumed."""
        self._uploaded: deque[PendingOrder] = deque(maxlen=LAST_UPDATES)
        """The orders of the last updates."""
        self._stirred = 0.0
        """When something happened last."""
        self._looked = -inf
        """When replies were polled last."""
        self._saw_nodes = -inf
        """When the list of nodes was read last."""
        self._attended = 0.0
        """When a device was last connected and responsive."""
        self._next_tick = 0.0

    def open_spans(self) -> list[Span]:
        """Orders in flight, as far as the server has seen."""
        return self._exchange.open_spans(self.now)

    # The loop -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Row | None]:
        self._open()
        checked = self.session.version
        while self.reason is None:
            self.now = min(self._time(), self.stop.horizon)
            if self.now == self.stop.horizon and self._next_timer()[1] > self.stop.horizon:
                self.reason = "time"
            elif self.now >= self._next_tick and not self._events:  # devices work while a model is evaluated
                while self._next_tick <= self.now:
                    self._next_tick += self.schedule.interval
                yield self.evaluate()
            elif not self._turn():
                self._sleep(self._pause())
                yield None
            elif self.session.version == checked and self.session.finished is None:
                self._stirred = self.now
                yield None
                self._release()
            else:
                self._stirred = self.now
                checked = self.session.version
                if self.unsaved:
                    yield None  # the loop saves a checkpoint
                    self._release()
                self.reason = self._milestones.reached() or self.reason
                yield self.evaluate() if self._milestones.version_is_due() else None
        if not self._milestones.seen(self.now):
            yield self.evaluate()

    def _pause(self) -> float:
        """Seconds until the next turn. Each poll costs this process and the SuperLink milliseconds of CPU time."""
        overdue = min(self._transport.next_deadline(), self._exchange.next_rest_end(self.now))
        due = min(self._next_timer()[1], self._next_tick, self.stop.horizon, overdue) - self.now
        return max(MOMENT, min(self._longest_pause(), due))

    def _longest_pause(self) -> float:
        """Polling interval if nothing is due before: longer if all awaited replies are of stock nodes."""
        devices = {sent.device for sent in self._transport.waiting.values()}
        only_stock = bool(devices) and min(devices) >= 0 and not devices & self._membership.interruptible
        return poll_pause(self.now - self._stirred, only_stock=only_stock)

    def _time(self) -> float:
        assert self._origin is not None
        return moment(max(self.now, self._clock() - self._origin))

    def _open(self) -> None:
        self._stirred = self._attended = self.now
        self.accounts.names = self._membership.names
        self._origin = self._clock() - self.now
        self._transport.count_from(self._origin)  # devices were greeted before the run began
        self._membership.count_from(self._origin)
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
            self._events.append(Started())
        elif self.reason is None:
            self._carry_out(self._exchange.resumed())

    def _turn(self) -> bool:
        """Handle the next reply, timer or change of nodes; return whether there was one. Devices come before timers.

        A timer fires when everything that had arrived by then is handled, even if replies keep arriving.
        """
        name, due = self._next_timer()
        timer_is_next = due <= self._looked and not self._inbox
        happened = bool(self._events) or (not timer_is_next and self._look())
        if self._events:
            self._tell(self._events.popleft())
        elif not happened:
            if due > self.now:
                return False
            self._handle(TimerFired(name=name), due)
        return True

    def _next_timer(self) -> tuple[str, float]:
        return min(self.session.timers.items(), key=lambda timer: timer[1], default=("", inf))

    # Messages -----------------------------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Handle the next reply, and then whatever is due; return whether there was anything.

        What is due is handled after every poll, even if replies arrive faster than they are read.
        """
        if not self._inbox:
            self._look_at_nodes()
            self._inbox.extend(self._transport.poll())
            self._looked = self.now
        happened = bool(self._inbox) or bool(self._events)
        if self._inbox:
            self._receive(self._inbox.popleft())
        if not self._inbox:
            late = self._transport.give_up_overdue(self._looked)
            for sent in late:
                self._carry_out(self._exchange.overdue(sent, self.now))
            rested = self._exchange.rested(self._transport.busy, self.now)
            self._carry_out(rested)
            happened = happened or bool(late) or bool(rested)
        return happened

    def _receive(self, reply: ReceivedReply) -> None:
        try:
            outputs = self._exchange.received(reply, self.now)
        except Diverged as error:
            raise self._diverged(error) from None
        except DeviceFault as fault:
            self.session.refuse()
            self._refuse(reply.sent.device, reply.sent.ticket, fault)
        else:
            self._carry_out(outputs)

    def _refuse(self, device: int, ticket: int, fault: DeviceFault) -> None:
        """Refuse a reply of a device, and give up its order."""
        self.accounts.refused(device)
        self._carry_out(self._exchange.failed(device, ticket, "refused", f"refused: {fault}", self.now))

    def _look_at_nodes(self) -> None:
        """Greet new nodes and give up those that have disconnected; Disconnected if no device can work."""
        if self.now - self._saw_nodes < LOOK_SECONDS:
            return
        self._saw_nodes = self.now
        transport, membership, online = self._transport, self._membership, self._transport.nodes()
        for node in [node for node in membership.device_of if node not in online]:
            self._carry_out(self._exchange.node_gone(node, transport.drop(node), self.now))
        greet_new_nodes(membership, transport, online, self.now)
        if not all(transport.silent(node) for node in membership.device_of):
            self._attended = self.now
        elif (seconds := self.now - self._attended) > self._response_seconds:
            raise Disconnected(f"no device connected or responded for {seconds:.0f} s: resume when one does")
        if (fault := self._exchange.common_failure) is not None:
            raise Disconnected(f"all devices keep failing; last error: {fault}")

    def _carry_out(self, outputs: Iterable[Output]) -> None:
        """Queue events, send messages, and write lines into the record; faults and new devices also into the log."""
        for output in outputs:
            match output:
                case OutgoingMessage(sent=sent):
                    if not self._transport.send(*output) and sent.leg:
                        why = "the message could not be sent"
                        self._carry_out(self._exchange.failed(sent.device, sent.ticket, "unsent", why, self.now))
                case FaultLine(device=device, why=why):
                    who = f"{self._membership.title(device)}: " if device >= 0 else ""
                    self._log(f"{self.now:.1f} s: {who}{why}")
                    self._record.write(output)
                case JoinedLine(device=device):
                    self._log(f"{self.now:.1f} s: {self._membership.title(device)} joined")
                    self.accounts.names = self._membership.names
                    self._record.write(output)
                case HeardLine():
                    self._record.write(output)
                case _:
                    self._events.append(output)

    # Events -------------------------------------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        """Handle an event of a device, which the session may refuse."""
        if isinstance(event, Left) and not self.session.is_idle(event.device):
            return  # it was given an order just now
        try:
            self._handle(event)
        except DeviceFault as fault:
            if not isinstance(event, Uploaded | FreshRequested):
                raise
            self._refuse(event.device, event.ticket, fault)

    def _handle(self, event: Event, due: float = inf) -> None:
        """Give the session an event, record it, and carry out the effects.

        A timer that is noticed late fires at the time it was due, if nothing has happened since: polling and evaluation
        do not make rounds longer.
        """
        session, version, at = self.session, self.session.version, max(self.session.now, min(due, self.now))
        try:
            effects = session.handle(event, at)
        except Diverged as error:
            raise self._diverged(error, event) from None
        order = self._exchange.accepted(event)
        if order is not None:
            self._account(event, order)
        remembered, norm = (order.remembered, order.norm) if order is not None else (0, None)
        self._record.write(event_line(event, at=at, remembered=remembered, norm=norm))
        if session.version != version:
            self._record.write(version_line(session, at=at))
        for effect in effects:
            if (line := effect_line(effect, at=at)) is not None:
                self._record.write(line)
            if isinstance(effect, Resolved):
                self.accounts.resolved(effect.tickets, effect.used, session.version)
                for ticket in effect.tickets:
                    self._translator.resolved(ticket, effect.used, session.version)
        # Make all messages before sending any: if the connection breaks, the checkpoint has every order.
        messages = self._exchange.messages(effects, self.now)
        if self._milestones.reached() is not None:  # after the end no reply would be awaited
            messages = []
        if self._must_be_saved(effects, session.version != version):
            self._unreleased, self.unsaved = list(messages), True
        else:
            self._carry_out(messages)

    def _must_be_saved(self, effects: Iterable[Effect], is_new: bool) -> bool:
        """Whether a checkpoint must hold what has happened before any device hears of it.

        A private version that was released and then made again after a crash would be released twice, with other noise
        and perhaps from other updates, but counted once. Where orders count, so must every order that was sent.
        """
        if self.session.private_sums:
            return is_new
        return self.session.participation is not None and any(isinstance(each, Assignment) for each in effects)

    def _release(self) -> None:
        """Send what waited for a checkpoint: from now on the run cannot be resumed from before it."""
        messages, self._unreleased, self.unsaved = self._unreleased, [], False
        self._carry_out(messages)

    def _account(self, event: Event, order: PendingOrder) -> None:
        """Close the account of an order that has ended, and record where it merged newer models."""
        match event:
            case Uploaded(update=update):
                for merge in order.merges:
                    line = HeardLine(at=self.now, device=order.device, ticket=order.ticket, **asdict(merge))
                    self._record.write(line)
                self.accounts.delivered(order.span(self.now, "uploaded", update.bytes(self.session.layout)))
                self._uploaded.append(order)
            case Lost():
                self.accounts.lost(order.span(self.now, "lost"))

    def _diverged(self, error: Diverged, event: Event | None = None) -> Diverged:
        """The error with the updates that may have caused it; a refused device is not one of them."""
        if isinstance(event, Uploaded) and (order := self._exchange.pending(event.ticket)) is not None:
            self._uploaded.append(order)
        largest = sorted(self._uploaded, key=lambda order: -(order.norm or 0.0))[:3]
        names = [f"device {each.device}, ticket {each.ticket}, norm {each.norm or 0.0:.3g}" for each in largest]
        return Diverged(f"{error}; largest of the last updates: {'; '.join(names)}" if names else str(error))

    # Evaluation and snapshots -------------------------------------------------------------------------------------

    def evaluate(self) -> Row:
        """Evaluate the current version, and return its row of metrics."""
        accounts = self.accounts
        row = self._milestones.row(self.now, busy=accounts.busy_seconds, wasted=accounts.wasted_seconds)
        reached = self._milestones.reached_by(row)
        if reached is not None:
            self.reason = reached
        self._log_row(row)
        ignored = self._ignored_before + self._transport.ignored.total()
        return row | self._exchange.figures() | {"replies_ignored": ignored, "restarts": self._restarts}

    def _log_row(self, row: Row) -> None:
        measured = "".join(f"{name} {row[name]:.4f}, " for name in [key for key in row if key not in RUN_COLUMNS][:1])
        self._log(
            f"{self.now:.1f} s: version {row['version']:.0f}, {measured}"
            f"{row['updates_used']:.0f} updates used, {row['in_flight']:.0f} in flight"
        )

    _SAVED = ("now", "reason", "_next_tick", "_restarts")

    def snapshot(self) -> dict[str, Any]:
        """Everything that the future depends on, except what the devices are doing: a resumed server cannot know it."""
        return {
            "session": self.session.snapshot(),
            "accounts": self.accounts.snapshot(),
            "exchange": self._exchange.snapshot(),
            "samples": self._membership.samples,
            "names": self._membership.name_of,
            "forecast": self.session.forecast,
            "record": self._record.position,
            "milestones": self._milestones.snapshot(),
            "ignored": self._ignored_before + self._transport.ignored.total(),
            "translator": self._translator.snapshot(),
        } | {name: getattr(self, name) for name in self._SAVED}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a snapshot. Orders in flight are lost; connected devices are greeted like new ones."""
        joined = self._membership.present
        self.session.restore(saved["session"], saved["forecast"])
        self.accounts.restore(saved["accounts"])
        self._exchange.restore(saved["exchange"])
        self._milestones.restore(saved["milestones"])
        self._translator.restore(saved["translator"])
        self._ignored_before = saved["ignored"]
        self._membership.samples[~joined] = saved["samples"][~joined]
        self._membership.name_of = saved.get("names", {}) | self._membership.name_of
        self._record.open(saved["record"])
        for name in self._SAVED:
            setattr(self, name, saved[name])
        self._restarts += 1

    @property
    def snapshot_types(self) -> tuple[type[Any], ...]:
        """The classes that a snapshot may hold."""
        return (
            *self.session.snapshot_types,
            *Accounts.snapshot_types,
            *Exchange.snapshot_types,
            Forecast,
            Evaluation,
        )
