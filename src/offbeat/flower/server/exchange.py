"""The exchange of messages with devices: what the session asks for is sent, and what comes back becomes events.

Nothing that a device does can hang the run or reach the model unchecked: every message has a deadline of our own, and
an answer that is late, out of step or malformed is refused and its order given up.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from math import inf
from secrets import token_hex
from typing import Any, Literal, get_args

from flwr.app import RecordDict
from msgspec.structs import asdict

from offbeat.core.coverage import bytes_down, submodel
from offbeat.core.errors import DeviceFault, Disconnected
from offbeat.core.messages import (
    Assignment,
    Effect,
    Event,
    FreshModel,
    FreshRequested,
    Left,
    Lost,
    Ready,
    StopNotice,
    Uploaded,
)
from offbeat.core.orders import Progress
from offbeat.core.parameters import Vector
from offbeat.core.record import FaultLine, HeardLine, JoinedLine
from offbeat.core.session import Session
from offbeat.experiment.run_settings import DeploymentTable
from offbeat.flower.protocol.codec import one_line, unpack
from offbeat.flower.protocol.messages import (
    Answer,
    Begin,
    Continue,
    Delivery,
    FromDevice,
    Heard,
    Merge,
    Notice,
    Question,
    Refusal,
)
from offbeat.flower.server.answer_checks import Expected, in_time
from offbeat.flower.server.backoff import Backoff
from offbeat.flower.server.membership import LOOK_SECONDS, Membership
from offbeat.flower.server.pending_order import PendingOrder
from offbeat.flower.server.translator import Translator
from offbeat.flower.server.transport import ReceivedAnswer, SentMessage, Transport
from offbeat.results.rows import Span
from offbeat.running.accounts import Accounts
from offbeat.running.directory import RunRecord

OutgoingMessage = tuple[PendingOrder, Begin | Answer, Vector | None]
Fault = Literal["unsent", "unanswered", "node_error", "node_gone", "not_admitted", "refused"]
"""What can go wrong with a device: its message could not be sent, was not answered in time, or was answered with an
error of its node or its app; its node is gone; a node was not admitted; or an answer was refused."""


class Exchange:
    """Orders in flight as messages. It never changes the session: it puts events into a queue for it."""

    def __init__(
        self,
        session: Session,
        transport: Transport,
        membership: Membership,
        accounts: Accounts,
        *,
        seed: int,
        record: RunRecord,
        log: Callable[[str], None],
        settings: DeploymentTable,
        translator: Translator,
    ) -> None:
        self.now = 0.0
        """The time of the run, which the driver sets."""
        self.events: deque[Event] = deque()
        """What the session is to be told next."""
        self.identity = token_hex(16)
        """What nodes know this run by, also when it is resumed: a run of Flower's has another number then."""
        self._session = session
        self._transport = transport
        self._membership = membership
        self._accounts = accounts
        self._seed = seed
        self._record = record
        self._log = log
        self._settings = settings
        self._translator = translator
        self._inbox: deque[ReceivedAnswer] = deque()
        self._pending: dict[int, PendingOrder] = {}
        self._backoff = Backoff(settings.rest_seconds)
        self._last_received: dict[int, int] = {}
        """The last ticket that was received of each device."""
        self.looked = -inf
        """When answers were looked for last: what had come by then is dealt with before they are looked for again."""
        self._saw_nodes = -inf
        self._attended = 0.0
        """When there was a device last."""
        self._last_fault = ""
        self._faults: dict[str, int] = dict.fromkeys(get_args(Fault), 0)

    def open(self, now: float, origin: float) -> None:
        """The run begins or goes on, and times are counted from here: devices were greeted before there was a run."""
        self.now = self._attended = now
        self._transport.count_from(origin)
        self._membership.count_from(origin)

    def figures(self) -> dict[str, float]:
        """How many devices are there, and how often what went wrong so far, for a row of metrics."""
        faults = {f"faults_{fault}": count for fault, count in self._faults.items() if fault != "refused"}
        return {"updates_refused": self._session.counters.refused, "devices": len(self._membership.node_of), **faults}

    def open_spans(self) -> list[Span]:
        """Orders in flight, as far as the server has seen."""
        return [pending.span(self.now, "in flight") for pending in self._pending.values()]

    def only_stock_nodes_answer(self) -> bool:
        """Whether every answer that is waited for is one of a stock node, which takes seconds."""
        devices = {sent.device for sent in self._transport.waiting.values()}
        return bool(devices) and min(devices) >= 0 and not devices & self._membership.interruptible

    @property
    def unread(self) -> bool:
        """Whether answers have been fetched that are not dealt with yet."""
        return bool(self._inbox)

    def next_due(self) -> float:
        """When an answer is overdue next, or the rest of a device ends."""
        return min(self._transport.next_deadline(), self._backoff.next_end(self.now))

    # What comes in ------------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Deal with the next thing that has come, or has failed to come; whether there was any.

        What is due is dealt with after every look at the SuperLink, also if answers come in faster than they are read.
        """
        if not self._inbox:
            self._look_at_nodes()
            self._inbox.extend(self._transport.poll())
            self.looked = self.now
        if self._inbox:
            self._receive(self._inbox.popleft())
            happened = True
        else:
            happened = bool(self.events)
        if not self._inbox:
            happened |= self._give_up_overdue() | self._end_rests()
        return happened

    def _give_up_overdue(self) -> bool:
        late = self._transport.overdue(self.looked)
        for sent in late:
            sent.given_up = True
            self._fail(sent.device, sent.ticket, "unanswered", f"no answer within {self.now - sent.at:.0f} s")
            self._notify(sent.device, sent.ticket, give_up=True)
        return bool(late)

    def _end_rests(self) -> bool:
        """Devices whose rest is over may be given work, unless they still have something to answer."""
        rested = [
            device
            for device in self._backoff.over(self.now)
            if self._session.is_away(device) and not self._transport.busy(self._membership.node_of[device])
        ]
        for device in rested:
            self._backoff.ended(device)
            self.events.append(Ready(device=device))
        return bool(rested)

    def _receive(self, arrived: ReceivedAnswer) -> None:
        """An answer has come."""
        sent = arrived.sent
        if sent.device < 0:
            self._admit(arrived)
        elif sent.notice:
            with suppress(DeviceFault):
                self._heard(sent, arrived.content)
        elif arrived.content is None:
            self._fail(sent.device, sent.ticket, "node_error", arrived.error)
        else:
            self._read(sent, arrived.content)

    def _read(self, sent: SentMessage, content: RecordDict) -> None:
        """Make an event of an answer that passes all checks, or go on with its order."""
        try:
            said = self._checked(sent, content)
        except DeviceFault as fault:
            self._session.refuse()
            self.refused(sent.device, sent.ticket, fault)
            return
        if isinstance(said, Refusal):
            self._fail(sent.device, sent.ticket, "node_error", f"the device says: {said.reason}")
        elif isinstance(said, Continue):
            self._send(self._pending[sent.ticket], said, None)
        else:
            self.events.append(said)

    def _checked(self, sent: SentMessage, content: RecordDict) -> Uploaded | FreshRequested | Continue | Refusal:
        """What an answer comes to: an event, the message to go on with, or that the device refuses."""
        in_time(sent)
        pending, order = self._pending[sent.ticket], self._session.in_flight[sent.ticket]
        expected = Expected(
            sent=sent,
            pending=pending,
            in_flight=order,
            samples=self._session.samples(sent.device),
            layout=self._session.layout,
            norm_bound=self._settings.norm_bound,
            now=self.now,
        )
        body = self._translator.answer(content, expected)
        if isinstance(body, Refusal):
            return body
        pending.progress = Progress(slices=body.slices, steps=body.steps, seconds=body.seconds)
        pending.remembered = body.remembered
        if isinstance(body, Delivery):
            pending.merges = body.merges
            update = self._translator.update(body, content, expected)
            return Uploaded(device=sent.device, ticket=sent.ticket, update=update)
        if isinstance(body, Question):
            return FreshRequested(device=sent.device, ticket=sent.ticket, progress=pending.progress)
        return Continue(ticket=sent.ticket, leg=sent.leg, stop=order.notified)

    def _heard(self, sent: SentMessage, content: RecordDict | None) -> None:
        """A device has heard of a notice, or will not: then its order ends as if it had not been told."""
        if content is None:
            return
        heard = unpack(content, FromDevice)
        if isinstance(heard, Heard) and heard.ticket == sent.ticket and heard.working and heard.ticket in self._pending:
            self._record.write(
                HeardLine(at=self.now, device=sent.device, ticket=sent.ticket, slices=heard.slices, step=heard.step)
            )

    # What became of an order --------------------------------------------------------------------------------------

    def close_order(self, event: Event) -> int:
        """End the account of an order whose event the session has accepted; the ticket whose memory it began with."""
        match event:
            case Uploaded(ticket=ticket, update=update):
                pending = self._pending.pop(ticket)
                pending.samples = update.samples
                for merge in pending.merges:
                    self._record.write(HeardLine(at=self.now, device=pending.device, ticket=ticket, **asdict(merge)))
                self._accounts.delivered(pending.span(self.now, "uploaded", update.bytes(self._session.layout)))
                self._last_received[pending.device] = ticket
                self._backoff.delivered_again(pending.device)
                return pending.remembered
            case Lost(ticket=ticket):
                self._accounts.lost(self._pending.pop(ticket).span(self.now, "lost"))
            case FreshRequested(ticket=ticket):
                return self._pending[ticket].remembered
        return 0

    def refused(self, device: int, ticket: int, fault: DeviceFault) -> None:
        """An answer of a device is not accepted, and its order is given up."""
        self._accounts.refused(device)
        self._fail(device, ticket, "refused", f"refused: {fault}")

    def _fail(self, device: int, ticket: int, fault: Fault, why: str) -> None:
        """Give up what was asked of a device; it may try again after a rest."""
        why = one_line(why)
        self._note(device, fault, why)
        pending = self._pending.get(ticket)
        if pending is None or pending.given_up:
            return
        pending.given_up = True
        if device in self._membership.node_of:
            self._backoff.failed(device, self.now)
        self.events.append(Lost(device=device, ticket=ticket, reason=why))

    def _note(self, device: int, fault: Fault, what: str) -> None:
        """Something went wrong with a device: seen in the log and in the record, and counted for the summary."""
        what = one_line(what)
        self._faults[fault] += 1
        self._last_fault = what
        self._log(f"{self.now:.1f} s: {f'device {device}: ' if device >= 0 else ''}{what}")
        self._record.write(FaultLine(at=self.now, device=device, why=what))

    # What goes out ------------------------------------------------------------------------------------------------

    def carry_out(self, effects: Iterable[Effect], *, sending: bool = True) -> None:
        """Send what the session asks for. Everything is made ready first: if the connection breaks while messages are
        sent, a checkpoint is complete. A device that cannot be interrupted hears of a notice when it checks in.

        Nothing is sent when a run ends: nobody would wait for the answers."""
        outgoing: list[OutgoingMessage] = []
        notices: list[StopNotice] = []
        for effect in effects:
            match effect:
                case Assignment():
                    outgoing.append(self._order(effect))
                case FreshModel():
                    outgoing.append(self._answer(effect))
                case StopNotice():
                    notices.append(effect)
        if not sending:
            return
        for message in outgoing:
            self._send(*message)
        for notice in notices:
            self._notify(notice.device, notice.ticket)

    def _order(self, assignment: Assignment) -> OutgoingMessage:
        device, ticket, order, layout = assignment.device, assignment.ticket, assignment.order, self._session.layout
        received = self._last_received.get(device, 0)
        self._pending[ticket] = pending = PendingOrder(
            device=device,
            ticket=ticket,
            base=assignment.base,
            sent=self.now,
            samples=self._session.samples(device),
            bytes_down=bytes_down(order, layout),
            received=received,
        )
        body = Begin(
            device=device,
            ticket=ticket,
            order=order,
            base=assignment.base,
            seed=self._seed,
            received=received,
            leg_seconds=self._settings.leg_seconds if self._checks_in(device) else None,
            experiment=self.identity,
        )
        model = assignment.parameters
        return pending, body, model if order.width == 1.0 else model[submodel(layout, order.width).chosen]

    def _checks_in(self, device: int) -> bool:
        """Whether a device in training must look for notices from time to time, because they do not reach it."""
        return self._session.policy.notifies and device not in self._membership.interruptible

    def _answer(self, fresh: FreshModel) -> OutgoingMessage:
        pending, newer = self._pending[fresh.ticket], fresh.parameters is not None
        if newer:
            pending.bytes_down += self._session.layout.bytes
            pending.fresh = [*pending.fresh, fresh.version]
        stop = self._session.in_flight[fresh.ticket].notified
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
            self._fail(sent.device, sent.ticket, "unsent", "the message could not be sent")

    def _notify(self, device: int, ticket: int, *, give_up: bool = False) -> None:
        """Tell a device to stop while it trains, if it can be told."""
        node = self._membership.node_of.get(device)
        if node is None or device not in self._membership.interruptible:
            return
        deadline = self.now + self._settings.answer_seconds
        sent = SentMessage(node=node, device=device, ticket=ticket, at=self.now, deadline=deadline, notice=True)
        self._transport.send(sent, Notice(ticket=ticket, give_up=give_up))

    # Nodes --------------------------------------------------------------------------------------------------------

    def tell_who_is_here(self) -> None:
        """Tell a session that goes on what has become of its devices."""
        joined, session = self._membership.node_of, self._session
        for device in range(session.devices):
            if device in joined and session.is_away(device):
                self.events.append(Ready(device=device))
            elif device not in joined and session.is_idle(device):
                self.events.append(Left(device=device))
        for ticket, order in session.in_flight.items():  # last: policies begin anew when nothing is in flight
            self.events.append(Lost(device=order.device, ticket=ticket, reason="the server was restarted"))
            if order.device in joined:
                self.events.append(Ready(device=order.device))

    def look_at_nodes_next(self) -> None:
        """Nodes may have come or gone: they are looked at in the next turn, however short ago that was done."""
        self._looked = -inf

    def _look_at_nodes(self) -> None:
        """Greet those that are new, and give up those that are gone."""
        if self.now - self._saw_nodes < LOOK_SECONDS:
            return
        self._saw_nodes = self.now
        online = self._transport.nodes()
        for node in [node for node in self._membership.device_of if node not in online]:
            device = self._membership.leave(node)
            self._backoff.left(device)
            for ticket in [sent.ticket for sent in self._transport.drop(node)] or [0]:
                self._fail(device, ticket, "node_gone", "its node is gone")
            if self._session.is_idle(device):
                self.events.append(Left(device=device))
        self._membership.greet(self._transport, online, self.now)
        if not all(self._transport.silent(node) for node in self._membership.device_of):
            self._attended = self.now
        elif (seconds := self.now - self._attended) > self._settings.answer_seconds:
            raise Disconnected(f"no device has been there, or has answered, for {seconds:.0f} s: resume when some are")
        if self._backoff.all_fail(self._membership.node_of):
            raise Disconnected(f"all devices fail again and again, the last one so: {self._last_fault}")

    def _admit(self, arrived: ReceivedAnswer) -> None:
        try:
            device = self._membership.admit(arrived, self.now)
        except DeviceFault as fault:
            self._note(-1, "not_admitted", str(fault))
            return
        self._log(f"{self.now:.1f} s: device {device} joined")
        self._record.write(JoinedLine(at=self.now, device=device, samples=self._session.samples(device)))
        self._backoff.joined(device, self.now)

    # Snapshots ----------------------------------------------------------------------------------------------------

    _SAVED = ("identity", "_pending", "_last_received", "_faults")
    snapshot_types = (PendingOrder, Progress, Merge)

    def snapshot(self) -> dict[str, Any]:
        """Everything that the future depends on, but for what devices are doing: a server that resumes cannot know."""
        return {name: getattr(self, name) for name in self._SAVED}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""
        for name in self._SAVED:
            setattr(self, name, saved[name])
