"""The driver of a real run: it feeds the same session as the simulator, from messages and the wall clock.

Iterating over a `Deployment` runs it, one turn per event, with turns of waiting between them. Answers become events,
what the session asks for becomes messages. Nothing that a device does can hang the run or reach the model unchecked:
every message has a deadline of our own, and an answer that is late, out of step or malformed is refused and its order
given up.

Everything that happens is written into a record, from which the simulator can replay the run (`simulation.replay`).
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from math import inf
from secrets import token_hex
from typing import Any

from flwr.app import RecordDict

from offbeat.core.coverage import bytes_down, submodel
from offbeat.core.effects import Assignment, FreshModel, Settled, StopNotice
from offbeat.core.errors import DeviceFault, Disconnected
from offbeat.core.events import Event, FreshRequested, Left, Lost, Ready, Started, TimerFired, Uploaded
from offbeat.core.forecast import Forecast
from offbeat.core.orders import Progress
from offbeat.core.parameters import Vector
from offbeat.core.session import NANOSECOND, Session
from offbeat.deployment.protocol.codec import one_line, unpack
from offbeat.deployment.protocol.messages import (
    Answer,
    Begin,
    Continue,
    Delivery,
    FromDevice,
    Heard,
    Notice,
    Question,
    Refusal,
)
from offbeat.deployment.server.answer_checks import Expected, in_time
from offbeat.deployment.server.backoff import Backoff
from offbeat.deployment.server.membership import LOOK_SECONDS, Membership, poll_pause
from offbeat.deployment.server.pending_order import PendingOrder
from offbeat.deployment.server.translator import OwnMessages, Translator
from offbeat.deployment.server.transport import ReceivedAnswer, SentMessage, Transport
from offbeat.device.training_state import Evaluation
from offbeat.results.metric import metrics_in
from offbeat.results.rows import Row, Span
from offbeat.running.accounts import Accounts
from offbeat.running.driver import Milestones
from offbeat.running.record import (
    FaultLine,
    HeardLine,
    JoinedLine,
    ResumedLine,
    RunLine,
    RunRecord,
    effect_line,
    event_line,
    version_line,
)
from offbeat.settings.schedule import Schedule, Stop
from offbeat.settings.schema import DeploymentTable

MOMENT = 0.001
"""Seconds that are waited at least, so that a timer that is just due does not keep a core busy."""
OutgoingMessage = tuple[PendingOrder, Begin | Answer, Vector | None]


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
        schedule: Schedule,
        record: RunRecord,
        log: Callable[[str], None],
        settings: DeploymentTable,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        wakes: bool = False,
        translator: Translator | None = None,
    ) -> None:
        """`wakes` says that `sleep` ends by itself when an answer comes or a node comes or goes, so it may be long.

        `translator` reads what devices say, if it is not messages of offbeat's own.
        """
        self.session = session
        self.stop = stop
        self.schedule = schedule
        self.now = 0.0
        self.reason: str | None = None
        self.accounts = Accounts(session.devices)
        self._transport = transport
        self._membership = membership
        self._seed = seed
        self._record = record
        self._log = log
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._wakes = wakes
        self._translator = translator or OwnMessages()
        self._origin: float | None = None
        self._resumed = False
        self._todo: deque[Event] = deque()
        self._inbox: deque[ReceivedAnswer] = deque()
        self._pending: dict[int, PendingOrder] = {}
        self._backoff = Backoff(settings.rest_seconds)
        self._settled: dict[int, int] = {}
        """The last ticket that was received of each device."""
        self._looked = -inf
        self._stirred = 0.0
        """When something happened last."""
        self._attended = 0.0
        """When there was a device last."""
        self._last_fault = ""
        self.identity = token_hex(16)
        """What nodes know this run by, also when it is resumed: a run of Flower's has another number then."""
        self._next_tick = 0.0
        self._milestones = Milestones(session, stop, schedule, evaluator)

    def open_spans(self) -> list[Span]:
        """Orders in flight, as far as the server has seen."""
        return [pending.span(self.now, "in flight") for pending in self._pending.values()]

    # The loop -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Row | None]:
        self._open()
        checked = self.session.version
        while self.reason is None:
            self.now = min(self._time(), self.stop.time)
            if self.now == self.stop.time and self._next_timer()[1] > self.stop.time:
                self.reason = "time"
            elif self.now >= self._next_tick:
                while self._next_tick <= self.now:
                    self._next_tick += self.schedule.every_seconds
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
        due = min(self._next_timer()[1], self._next_tick, self.stop.time) - self.now
        if not self._wakes:
            return max(MOMENT, min(poll_pause(self.now - self._stirred), due))
        self._looked = -inf
        ours = min(self._transport.next_deadline, self._backoff.next_end(self.now)) - self.now
        return max(MOMENT, min(due, ours, self._settings.answer_seconds))

    def _time(self) -> float:
        assert self._origin is not None
        return round(max(self.now, self._clock() - self._origin), NANOSECOND)

    def _open(self) -> None:
        self._attended = self._stirred = self.now
        self._origin = self._clock() - self.now
        self._transport.count_from(self._origin)  # devices were greeted before there was a run
        self._membership.count_from(self._origin)
        if not self._resumed:
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
            self._todo.append(Started())
        elif self.reason is None:
            self._tell_session_who_is_here()

    def _tell_session_who_is_here(self) -> None:
        """Tell a session that goes on what has become of its devices."""
        joined = self._membership.node_of
        for device in range(self.session.devices):
            if device in joined and self.session.is_away(device):
                self._todo.append(Ready(device=device))
            elif device not in joined and self.session.is_idle(device):
                self._todo.append(Left(device=device))
        for ticket, order in self.session.in_flight.items():  # last: policies begin anew when nothing is in flight
            self._todo.append(Lost(device=order.device, ticket=ticket, reason="the server was restarted"))
            if order.device in joined:
                self._todo.append(Ready(device=order.device))

    def _turn(self) -> bool:
        """Deal with the next thing that has happened, if anything has. Devices come before timers."""
        if self._todo:
            event = self._todo.popleft()
            if not isinstance(event, Left) or self.session.is_idle(event.device):  # else it was given an order just now
                self._handle(event)
            return True
        self._look_at_nodes()
        if not self._inbox:
            self._inbox.extend(self._transport.poll())
        if self._inbox:
            self._receive(self._inbox.popleft())
            return True
        for sent in self._transport.overdue(self.now):
            sent.given_up = True
            self._fail(sent, f"no answer within {self.now - sent.at:.0f} s")
            self._notify(sent.device, sent.ticket, give_up=True)
            return True
        for device in self._backoff.over(self.now):
            if self.session.is_away(device) and not self._transport.busy(self._membership.node_of[device]):
                self._backoff.ended(device)
                self._handle(Ready(device=device))
                return True
        name, due = self._next_timer()
        if due <= self.now:
            self._handle(TimerFired(name=name), due)
            return True
        return bool(self._todo)

    def _next_timer(self) -> tuple[str, float]:
        return min(self.session.timers.items(), key=lambda timer: timer[1], default=("", inf))

    def _handle(self, event: Event, due: float = inf) -> None:
        """Tell the session, write it down, and carry out what it asks for in return.

        A timer that is noticed late fires when it was due, if nothing has happened since: so rounds do not grow longer
        by what polling and evaluation take.
        """
        session, version, at = self.session, self.session.version, max(self.session.now, min(due, self.now))
        effects = session.handle(event, at)
        self._account_for(event, at)
        if session.version != version:
            self._record.write(version_line(session, at=at))
        outgoing: list[OutgoingMessage] = []
        for effect in effects:
            if (line := effect_line(effect, at=at)) is not None:
                self._record.write(line)
            match effect:
                case Assignment():
                    outgoing.append(self._order(effect))
                case Settled(ticket=ticket, used=used):
                    self.accounts.settled(ticket, used, session.version)
                    self._translator.settled(ticket, used, session.version)
                case FreshModel():
                    outgoing.append(self._answer(effect))
        if self._milestones.reached() is not None:  # the run ends with this event: nobody would wait for an answer
            return
        # Sent when all is written down: if the connection breaks here, a checkpoint is complete. A device that cannot
        # be interrupted hears of a StopNotice when it checks in.
        for message in outgoing:
            self._send(*message)
        for effect in effects:
            if isinstance(effect, StopNotice):
                self._notify(effect.device, effect.ticket)

    def _account_for(self, event: Event, at: float) -> None:
        """Write down an event that was accepted, and end the account of its order."""
        remembered = 0
        match event:
            case Uploaded(ticket=ticket, update=update):
                pending = self._pending.pop(ticket)
                remembered, pending.samples = pending.remembered, update.samples
                self.accounts.delivered(pending.span(self.now, "uploaded", update.bytes(self.session.layout)))
                self._settled[pending.device] = ticket
                self._backoff.delivered_again(pending.device)
            case Lost(ticket=ticket):
                self.accounts.lost(self._pending.pop(ticket).span(self.now, "lost"))
            case FreshRequested(ticket=ticket):
                remembered = self._pending[ticket].remembered
        self._record.write(event_line(event, at=at, remembered=remembered))

    # Messages -----------------------------------------------------------------------------------------------------

    def _order(self, assignment: Assignment) -> OutgoingMessage:
        device, ticket, order, layout = assignment.device, assignment.ticket, assignment.order, self.session.layout
        settled = self._settled.get(device, 0)
        self._pending[ticket] = pending = PendingOrder(
            device=device,
            ticket=ticket,
            base=assignment.base,
            sent=self.now,
            samples=self.session.samples(device),
            bytes_down=bytes_down(order, layout),
            settled=settled,
        )
        body = Begin(
            device=device,
            ticket=ticket,
            order=order,
            base=assignment.base,
            seed=self._seed,
            settled=settled,
            leg_seconds=self._settings.leg_seconds if self._checks_in(device) else None,
            experiment=self.identity,
        )
        model = assignment.parameters
        return pending, body, model if order.width == 1.0 else model[submodel(layout, order.width).chosen]

    def _checks_in(self, device: int) -> bool:
        """Whether a device in training must look for notices from time to time, because they do not reach it."""
        return self.session.policy.notifies and device not in self._membership.interruptible

    def _notify(self, device: int, ticket: int, *, give_up: bool = False) -> None:
        """Tell a device to stop while it trains, if it can be told."""
        node = self._membership.node_of.get(device)
        if node is None or device not in self._membership.interruptible:
            return
        deadline = self.now + self._settings.answer_seconds
        sent = SentMessage(node=node, device=device, ticket=ticket, at=self.now, deadline=deadline, notice=True)
        self._transport.send(sent, Notice(ticket=ticket, give_up=give_up))

    def _heard(self, sent: SentMessage, content: RecordDict | None) -> None:
        """A device has heard of a notice, or will not: then its order ends as if it had not been told."""
        if content is None:
            return
        heard = unpack(content, FromDevice)
        if isinstance(heard, Heard) and heard.ticket == sent.ticket and heard.working and heard.ticket in self._pending:
            self._record.write(
                HeardLine(at=self.now, device=sent.device, ticket=sent.ticket, slices=heard.slices, step=heard.step)
            )

    def _answer(self, fresh: FreshModel) -> OutgoingMessage:
        pending, newer = self._pending[fresh.ticket], fresh.parameters is not None
        pending.bytes_down += self.session.layout.bytes if newer else 0
        stop = self.session.in_flight[fresh.ticket].notified
        body = Answer(ticket=fresh.ticket, leg=pending.leg, version=fresh.version, newer=newer, stop=stop)
        return pending, body, fresh.parameters

    def _send(self, pending: PendingOrder, body: Begin | Continue | Answer, model: Vector | None) -> None:
        node = self._membership.node_of.get(pending.device)
        pending.leg += 1
        sent = SentMessage(
            node=-1 if node is None else node,
            device=pending.device,
            ticket=pending.ticket,
            leg=pending.leg,
            at=self.now,
            deadline=self.now + self._settings.answer_seconds,
        )
        if node is None or not self._transport.send(sent, body, model):
            self._fail(sent, "the message could not be sent")

    def _receive(self, arrived: ReceivedAnswer) -> None:
        """An answer has come."""
        sent = arrived.sent
        if sent.device < 0:
            self._admit(arrived)
        elif sent.notice:
            with suppress(DeviceFault):
                self._heard(sent, arrived.content)
        elif arrived.content is None:
            self._fail(sent, arrived.error)
        else:
            try:
                self._read(sent, arrived.content)
            except DeviceFault as fault:
                self.accounts.refused(sent.device)
                self._fail(sent, f"refused: {fault}")

    def _read(self, sent: SentMessage, content: RecordDict) -> None:
        """Make an event of an answer that passes all checks, or go on with its order."""
        try:
            said = self._checked(sent, content)
        except DeviceFault:
            self.session.refuse()
            raise
        if isinstance(said, Refusal):
            self._fail(sent, f"the device says: {said.reason}")
        elif isinstance(said, Continue):
            self._send(self._pending[sent.ticket], said, None)
        else:
            self._handle(said)

    def _checked(self, sent: SentMessage, content: RecordDict) -> Uploaded | FreshRequested | Continue | Refusal:
        """What an answer comes to: an event, the message to go on with, or that the device refuses."""
        in_time(sent)
        pending, order = self._pending[sent.ticket], self.session.in_flight[sent.ticket]
        expected = Expected(
            sent=sent,
            pending=pending,
            in_flight=order,
            samples=self.session.samples(sent.device),
            layout=self.session.layout,
            norm_bound=self._settings.norm_bound,
            now=self.now,
        )
        body = self._translator.answer(content, expected)
        if isinstance(body, Refusal):
            return body
        pending.progress = Progress(slices=body.slices, steps=body.steps, seconds=body.seconds)
        pending.remembered = body.remembered
        if isinstance(body, Delivery):
            update = self._translator.update(body, content, expected)
            return Uploaded(device=sent.device, ticket=sent.ticket, update=update)
        if isinstance(body, Question):
            return FreshRequested(device=sent.device, ticket=sent.ticket, progress=pending.progress)
        return Continue(ticket=sent.ticket, leg=sent.leg, stop=order.notified)

    def _fail(self, sent: SentMessage, why: str) -> None:
        """Give up what was asked of a device; it may try again after a rest."""
        why = one_line(why)
        self._note(sent.device, why)
        pending = self._pending.get(sent.ticket)
        if pending is None or pending.given_up:
            return
        pending.given_up = True
        if sent.device in self._membership.node_of:
            self._backoff.failed(sent.device, self.now)
        self._todo.append(Lost(device=sent.device, ticket=sent.ticket, reason=why))

    # Nodes --------------------------------------------------------------------------------------------------------

    def _look_at_nodes(self) -> None:
        """Greet those that are new, and give up those that are gone."""
        if self.now - self._looked < LOOK_SECONDS:
            return
        self._looked = self.now
        online = self._transport.nodes()
        for node in [node for node in self._membership.device_of if node not in online]:
            device = self._membership.leave(node)
            self._backoff.left(device)
            nothing = SentMessage(node=node, device=device, at=self.now, deadline=self.now)
            for sent in self._transport.drop(node) or [nothing]:
                self._fail(sent, "its node is gone")
            if self.session.is_idle(device):
                self._todo.append(Left(device=device))
        self._membership.greet(self._transport, online, self.now)
        if not all(self._transport.silent(node) for node in self._membership.device_of):
            self._attended = self.now
        elif (seconds := self.now - self._attended) > self._settings.answer_seconds:
            raise Disconnected(f"no device has been there, or has answered, for {seconds:.0f} s: resume when some are")
        if self._backoff.hopeless(self._membership.node_of):
            raise Disconnected(f"all devices fail again and again, the last one so: {self._last_fault}")

    def _admit(self, arrived: ReceivedAnswer) -> None:
        try:
            device = self._membership.admit(arrived, self.now)
        except DeviceFault as fault:
            self._note(-1, str(fault))
            return
        self._log(f"{self.now:.1f} s: device {device} joined")
        self._record.write(JoinedLine(at=self.now, device=device, samples=self.session.samples(device)))
        self._backoff.joined(device, self.now)

    # What is written down -----------------------------------------------------------------------------------------

    def _note(self, device: int, what: str) -> None:
        """Something went wrong with a device: seen in the log and in the record."""
        what = one_line(what)
        self._last_fault = what
        self._log(f"{self.now:.1f} s: {f'device {device}: ' if device >= 0 else ''}{what}")
        self._record.write(FaultLine(at=self.now, device=device, why=what))

    # Evaluation and snapshots -------------------------------------------------------------------------------------

    def evaluate(self) -> Row:
        """The row of metrics of the current version."""
        session, accounts = self.session, self.accounts
        row = self._milestones.row(self.now, busy=accounts.busy_seconds, wasted=accounts.wasted_seconds)
        reached = self.stop.reached(row)
        if reached is not None:
            self.reason = reached
        measured = "".join(f"{name} {row[name]:.4f}, " for name in metrics_in(row)[:1])
        self._log(
            f"{self.now:.1f} s: version {session.version}, {measured}"
            f"{session.counters.used} updates used, {len(session.in_flight)} in flight"
        )
        return row | {"updates_refused": session.counters.refused, "devices": len(self._membership.node_of)}

    _SAVED = ("now", "reason", "identity", "_pending", "_settled", "_next_tick")

    def snapshot(self) -> dict[str, Any]:
        """Everything that the future depends on, but for what devices are doing: a server that resumes cannot know."""
        return {
            "session": self.session.snapshot(),
            "accounts": self.accounts.snapshot(),
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
        self._milestones.restore(saved["milestones"])
        self._translator.restore(saved["translator"])
        self._membership.samples[~joined] = saved["samples"][~joined]
        self._record.open(saved["record"])
        for name in self._SAVED:
            setattr(self, name, saved[name])
        self._resumed = True

    @property
    def snapshot_types(self) -> tuple[type[Any], ...]:
        """The dataclasses that a snapshot may hold."""
        return (*self.session.snapshot_types, *Accounts.snapshot_types, PendingOrder, Forecast, Progress, Evaluation)
