"""Orders in flight as messages: replies become events, effects become messages.

An `Exchange` has no IO and no clock. Its methods are given the time and return what follows, in order: events for the
session, messages to send and lines of the record. It reads the session and never changes it.

No device can stall the run or reach the model unchecked: every message has a deadline, and the order of a reply that is
late, unexpected or malformed is given up.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf
from secrets import token_hex
from typing import Any, Literal, get_args

from flwr.app import RecordDict

from offbeat.core.combining import RunningMedian
from offbeat.core.coverage import bytes_down, submodel
from offbeat.core.errors import DeviceFault
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
from offbeat.flower.protocol.codec import fault_boundary, one_line, unpack
from offbeat.flower.protocol.messages import (
    Begin,
    Continue,
    FreshRequest,
    FreshResponse,
    FromDevice,
    Merge,
    Notice,
    NoticeReceived,
    Refusal,
    UpdateReply,
)
from offbeat.flower.server.membership import Membership
from offbeat.flower.server.reply_checks import Expected, NormLimits, PendingOrder, Translator, in_time
from offbeat.flower.server.transport import NO_NODE, NOT_READ, OutgoingMessage, ReceivedReply, SentMessage
from offbeat.results.rows import Span

Output = Event | OutgoingMessage | FaultLine | HeardLine | JoinedLine
"""What an exchange returns: an event for the session, a message to send, or a line of the record."""
Fault = Literal["unsent", "unanswered", "node_error", "node_gone", "not_admitted", "refused"]
"""The kinds of faults: a message could not be sent; no reply in time; a reply with an error of the node or its app; a
node that disconnected; a node that was not admitted; a reply that failed a check."""
LONGEST_REST = 64
"""The longest rest, in units of the first one."""
MOST_FAILURES = 8
"""Failures in a row of every connected device, after which the run stops."""


class Exchange:
    """The orders in flight, the devices that rest after a failure, and the faults so far."""

    __slots__ = (
        "_backoff",
        "_faults",
        "_identity",
        "_last_fault",
        "_membership",
        "_norms",
        "_pending",
        "_received",
        "_seed",
        "_session",
        "_settings",
        "_translator",
    )

    def __init__(
        self,
        session: Session,
        membership: Membership,
        translator: Translator,
        *,
        seed: int,
        settings: DeploymentTable,
    ) -> None:
        self._session = session
        self._membership = membership
        self._translator = translator
        self._seed = seed
        self._settings = settings
        self._identity = token_hex(16)
        """The name under which nodes keep a device's memory. A resumed run keeps it, but has a new run id in Flower."""
        self._pending: dict[int, PendingOrder] = {}
        self._received: dict[int, int] = {}
        """The last ticket received from each device."""
        self._backoff = Backoff(settings.rest_seconds)
        self._last_fault = ""
        self._norms = RunningMedian()
        self._faults: dict[str, int] = dict.fromkeys(get_args(Fault), 0)

    def figures(self) -> dict[str, float]:
        """The number of connected devices and of faults of each kind, for a row of metrics."""
        faults = {f"faults_{fault}": count for fault, count in self._faults.items() if fault != "refused"}
        return {"updates_refused": self._session.counters.refused, "devices": len(self._membership.node_of), **faults}

    def pending(self, ticket: int) -> PendingOrder | None:
        """What the server knows of an order in flight."""
        return self._pending.get(ticket)

    def open_spans(self, now: float) -> list[Span]:
        """Orders in flight, as far as the server has seen."""
        return [pending.span(now, "in flight") for pending in self._pending.values()]

    @property
    def common_failure(self) -> str | None:
        """The last fault, if every connected device keeps failing."""
        return self._last_fault if self._backoff.all_fail(self._membership.node_of) else None

    # Replies ------------------------------------------------------------------------------------------------------

    def received(self, reply: ReceivedReply, now: float) -> list[Output]:
        """What follows from a reply; DeviceFault if it fails a check."""
        sent, content = reply.sent, reply.content
        if sent.device < 0:
            return self._admit(reply, now)
        if sent.notice:
            return self._acknowledged(sent, content, now)
        if content is not None or reply.error == NOT_READ:
            in_time(sent)
        if content is None:
            return self.failed(sent.device, sent.ticket, "node_error", reply.error, now)
        return self._read(sent, content, now)

    def _read(self, sent: SentMessage, content: RecordDict, now: float) -> list[Output]:
        pending, in_flight = self._pending[sent.ticket], self._session.in_flight[sent.ticket]
        expected = Expected(
            sent=sent,
            pending=pending,
            in_flight=in_flight,
            samples=self._session.held_samples(sent.device),
            layout=self._session.layout,
            limits=self._norm_limits(),
            now=now,
        )
        with fault_boundary():
            body = self._translator.reply(content, expected)
        if isinstance(body, Refusal):
            return self.failed(sent.device, sent.ticket, "node_error", f"the device says: {body.reason}", now)
        seconds = min(body.seconds, now - pending.sent)  # no device can have trained since before its order
        pending.progress = Progress(slices=body.slices, steps=body.steps, seconds=seconds)
        pending.remembered = body.remembered
        if isinstance(body, UpdateReply):
            pending.merges = body.merges
            with fault_boundary():
                update = self._translator.update(body, content, expected)
            return [Uploaded(device=sent.device, ticket=sent.ticket, update=update)]
        if isinstance(body, FreshRequest):
            return [FreshRequested(device=sent.device, ticket=sent.ticket, progress=pending.progress)]
        go_on = Continue(ticket=sent.ticket, leg=sent.leg, stop=in_flight.notified)
        return [self._next_message(pending, go_on, None, now)]

    def _norm_limits(self) -> NormLimits:
        """How far an update may be from its base: any distance in a private run, where a refusal would reveal norms."""
        if self._session.private_sums:
            return NormLimits(norm_bound=None, norm_factor=inf, norms=self._norms, finite=False)
        return NormLimits(
            norm_bound=self._settings.norm_bound, norm_factor=self._settings.norm_factor, norms=self._norms
        )

    def _acknowledged(self, sent: SentMessage, content: RecordDict | None, now: float) -> list[Output]:
        """Where a device was when a notice reached it; without an acknowledgement its order ends as if none had."""
        try:
            receipt = None if content is None else unpack(content, FromDevice)
        except DeviceFault:
            return []
        if not isinstance(receipt, NoticeReceived) or not receipt.working:
            return []
        if receipt.ticket != sent.ticket or sent.ticket not in self._pending:
            return []
        return [HeardLine(at=now, device=sent.device, ticket=sent.ticket, slices=receipt.slices, step=receipt.step)]

    def _admit(self, reply: ReceivedReply, now: float) -> list[Output]:
        try:
            with fault_boundary():
                device = self._membership.admit(reply, now)
        except DeviceFault as fault:
            return [self._fault(-1, "not_admitted", one_line(str(fault)), now, reply.sent.node)]
        self._backoff.joined(device, now)
        return [JoinedLine(at=now, device=device, samples=self._session.held_samples(device))]

    # Failures -----------------------------------------------------------------------------------------------------

    def failed(
        self, device: int, ticket: int, fault: Fault, why: str, now: float, node: int | None = None
    ) -> list[Output]:
        """Give up the order; its device may get another one after a rest."""
        why = one_line(why)
        line, pending = self._fault(device, fault, why, now, node), self._pending.get(ticket)
        if pending is None or pending.given_up:
            return [line]
        pending.given_up = True
        if device in self._membership.node_of:
            self._backoff.failed(device, now)
        return [line, Lost(device=device, ticket=ticket, reason=why)]

    def overdue(self, sent: SentMessage, now: float) -> list[Output]:
        """Give up an order whose reply did not come in time, and tell its device."""
        why = f"no reply within {now - sent.at:.0f} s"
        outputs = self.failed(sent.device, sent.ticket, "unanswered", why, now, sent.node)
        return outputs + self._notice(sent.device, sent.ticket, now, give_up=True)

    def node_gone(self, node: int, unanswered: Iterable[SentMessage], now: float) -> list[Output]:
        """Give up what a node that has disconnected was to reply to."""
        outputs, device = list[Output](), self._membership.leave(node)
        self._backoff.left(device)
        for ticket in [sent.ticket for sent in unanswered] or [0]:
            outputs += self.failed(device, ticket, "node_gone", "its node is gone", now)
        if self._session.is_idle(device):
            outputs.append(Left(device=device))
        return outputs

    def _fault(self, device: int, fault: Fault, why: str, now: float, node: int | None = None) -> FaultLine:
        self._faults[fault] += 1
        self._last_fault = why = why if device >= 0 else f"node {node}: {why}"
        return FaultLine(at=now, device=device, why=why, node=self._membership.node_of.get(device, node))

    # Devices that may get an order --------------------------------------------------------------------------------

    def rested(self, busy: Callable[[int], bool], now: float) -> list[Output]:
        """The devices whose rest is over, unless their node still has a message to reply to."""
        rested = [
            device
            for device in self._backoff.over(now)
            if self._session.is_away(device) and not busy(self._membership.node_of[device])
        ]
        for device in rested:
            self._backoff.ended(device)
        return [Ready(device=device) for device in rested]

    def next_rest_end(self, now: float) -> float:
        """When the next rest ends."""
        return self._backoff.next_end(now)

    def resumed(self) -> list[Output]:
        """What a session that was restored must know: the devices that are here, and that orders in flight are lost."""
        joined, session = self._membership.node_of, self._session
        outputs: list[Output] = []
        for device in range(session.devices):
            if device in joined and session.is_away(device):
                outputs.append(Ready(device=device))
            elif device not in joined and session.is_idle(device):
                outputs.append(Left(device=device))
        for ticket, order in session.in_flight.items():  # last: policies dispatch once nothing is in flight
            outputs.append(Lost(device=order.device, ticket=ticket, reason="the server was restarted"))
            if order.device in joined:
                outputs.append(Ready(device=order.device))
        return outputs

    # Orders -------------------------------------------------------------------------------------------------------

    def accepted(self, event: Event) -> PendingOrder | None:
        """The order of an event that the session has accepted. An order that was uploaded or lost ends."""
        match event:
            case Uploaded(ticket=ticket, update=update):
                pending = self._pending.pop(ticket)
                pending.samples = update.samples
                self._received[pending.device] = ticket
                self._backoff.delivered_again(pending.device)
                return pending
            case Lost(ticket=ticket):
                return self._pending.pop(ticket)
            case FreshRequested(ticket=ticket):
                return self._pending[ticket]
        return None

    def messages(self, effects: Iterable[Effect], now: float) -> list[Output]:
        """The messages that carry out effects: first models, then notices.

        A device that cannot be interrupted gets no notice: it is told when it checks in.
        """
        outputs: list[Output] = []
        notices: list[Output] = []
        for effect in effects:
            match effect:
                case Assignment():
                    outputs.append(self._order(effect, now))
                case FreshModel():
                    outputs.append(self._fresh_model(effect, now))
                case StopNotice(device=device, ticket=ticket):
                    if (pending := self._pending.get(ticket)) is not None:
                        pending.noticed = now
                    notices += self._notice(device, ticket, now)
        return outputs + notices

    def _order(self, assignment: Assignment, now: float) -> OutgoingMessage:
        device, ticket, order, layout = assignment.device, assignment.ticket, assignment.order, self._session.layout
        received = self._received.get(device, 0)
        self._pending[ticket] = pending = PendingOrder(
            device=device,
            ticket=ticket,
            base=assignment.base,
            sent=now,
            samples=self._session.held_samples(device),
            bytes_down=bytes_down(order, layout),
            received=received,
        )
        checks_in = self._session.policy.notifies and device not in self._membership.interruptible
        body = Begin(
            device=device,
            ticket=ticket,
            order=order,
            base=assignment.base,
            seed=self._seed,
            received=received,
            leg_seconds=self._settings.leg_seconds if checks_in else None,
            experiment=self._identity,
        )
        model = assignment.parameters
        whole = order.width == 1.0
        return self._next_message(pending, body, model if whole else model[submodel(layout, order.width).chosen], now)

    def _fresh_model(self, fresh: FreshModel, now: float) -> OutgoingMessage:
        pending, newer = self._pending[fresh.ticket], fresh.parameters is not None
        if newer:
            pending.bytes_down += self._session.layout.bytes
            pending.fresh = [*pending.fresh, fresh.version]
        stop = self._session.in_flight[fresh.ticket].notified
        body = FreshResponse(ticket=fresh.ticket, leg=pending.leg, version=fresh.version, newer=newer, stop=stop)
        return self._next_message(pending, body, fresh.parameters, now)

    def _next_message(
        self, pending: PendingOrder, body: Begin | Continue | FreshResponse, model: Vector | None, now: float
    ) -> OutgoingMessage:
        pending.leg += 1
        sent = SentMessage(
            node=self._membership.node_of.get(pending.device, NO_NODE),
            device=pending.device,
            ticket=pending.ticket,
            leg=pending.leg,
            at=now,
            deadline=now + self._settings.answer_seconds,
        )
        return OutgoingMessage(sent, body, model)

    def _notice(self, device: int, ticket: int, now: float, *, give_up: bool = False) -> list[Output]:
        """Tell a device to stop while it trains, if it can be told."""
        node = self._membership.node_of.get(device)
        if node is None or device not in self._membership.interruptible:
            return []
        deadline = now + self._settings.answer_seconds
        sent = SentMessage(node=node, device=device, ticket=ticket, at=now, deadline=deadline, notice=True)
        return [OutgoingMessage(sent, Notice(ticket=ticket, give_up=give_up))]

    # Snapshots ----------------------------------------------------------------------------------------------------

    snapshot_types = (PendingOrder, Progress, Merge)

    def snapshot(self) -> dict[str, Any]:
        """Everything that the future depends on, except what the devices are doing: a resumed server cannot know it."""
        return {
            "identity": self._identity,
            "pending": self._pending,
            "received": self._received,
            "faults": self._faults,
            "norms": self._norms.last,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""
        self._identity, self._pending = saved["identity"], saved["pending"]
        self._received, self._faults = saved["received"], saved["faults"]
        self._norms = RunningMedian(saved["norms"])


class Backoff:
    """Connected devices that get no order yet. A rest doubles with every failure in a row."""

    __slots__ = ("_failures", "_rest_seconds", "_until")

    def __init__(self, rest_seconds: float) -> None:
        self._rest_seconds = rest_seconds
        self._until: dict[int, float] = {}
        self._failures: dict[int, int] = {}

    def joined(self, device: int, now: float) -> None:
        """The device may get an order at once."""
        self._until[device] = now

    def left(self, device: int) -> None:
        """Forget the rest of a device that has disconnected."""
        self._until.pop(device, None)

    def failed(self, device: int, now: float) -> None:
        """Begin a rest, twice as long after each failure in a row."""
        failures = self._failures[device] = self._failures.get(device, 0) + 1
        self._until[device] = now + self._rest_seconds * min(2 ** (failures - 1), LONGEST_REST)

    def delivered_again(self, device: int) -> None:
        """Forget the failures of a device that has uploaded."""
        self._failures.pop(device, None)

    def over(self, now: float) -> list[int]:
        """Devices whose rest is over."""
        return [device for device, until in self._until.items() if until <= now]

    def next_end(self, now: float) -> float:
        """When the next rest ends that has not ended by now."""
        return min((until for until in self._until.values() if until > now), default=inf)

    def ended(self, device: int) -> None:
        """The device may get an order again."""
        del self._until[device]

    def all_fail(self, devices: Collection[int]) -> bool:
        """Whether each of these devices has failed `MOST_FAILURES` times in a row."""
        return bool(devices) and all(self._failures.get(device, 0) >= MOST_FAILURES for device in devices)
