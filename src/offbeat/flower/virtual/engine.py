"""The virtual clock of an app's run: messages go out to devices, and what becomes of them happens at its time.

The clock moves only while the ServerApp waits. When a device's work is over its ClientApp is asked for the answer, so
what a device never finishes is never computed. What the server sees in the end is a reply from the device, or an error
as Flower gives it: the node is not available, the message has expired.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop
from logging import ERROR, WARNING
from math import inf

from flwr.app import Message
from flwr.app.error import Error
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from offbeat.flower.virtual.clients import ClientRuns, copied_message
from offbeat.flower.virtual.devices import Device, MessageInFlight, WorkTimes, size_of
from offbeat.flower.virtual.replies import examples_of, reply_mistake
from offbeat.results.rows import Span
from offbeat.running.accounts import Accounts
from offbeat.simulation.lifecycle import DeviceLifecycle, EventQueue

LATE = 1
"""At equal times what devices do comes before what expires."""


class RunEnded(BaseException):
    """A limit is reached, or nothing is left to happen. No app should catch it, so it is not an Exception."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(kw_only=True)
class MessageCounters:
    """What became of trainings, over the whole run."""

    messages: int = 0
    used: int = 0
    discarded: int = 0
    lost: int = 0
    faults: int = 0
    """Messages whose ClientApp raised, and replies that a strategy cannot use."""
    staleness_sum: int = 0
    staleness_max: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


class MessageEngine:
    """Owns the clock, the devices and the messages in flight."""

    def __init__(
        self, times: WorkTimes, clients: ClientRuns, *, stop_time: float = inf, most_messages: float = inf
    ) -> None:
        self.times = times
        self.now = 0.0
        self.version = 0
        """Versions of the model so far: whoever sees a new one counts it here."""
        self.weight: str | None = None
        """What the app's strategy weighs replies by: whoever sees that it has one says so here."""
        self.counters = MessageCounters()
        self.accounts = Accounts(len(times.node_ids))
        self.in_flight: dict[str, MessageInFlight] = {}
        self.in_flight_seconds = 0.0
        """Over all trainings together."""
        self.landed: dict[str, tuple[MessageInFlight, Message]] = {}
        """Replies that have arrived and that nobody has taken, in the order of their arrival."""
        self.changes = 0
        """How often a reply has landed, or a node has come or gone."""
        self.training = 0
        """Trainings in flight."""
        self._types: dict[str, str] = {}
        """The types of the arrays that were sent first."""
        self._clients = clients
        self._stop_time, self._most = stop_time, most_messages
        self._queue = EventQueue()
        self._devices = [Device() for _ in times.node_ids]
        self._lifecycle = DeviceLifecycle(times.fleet, self._queue)
        self._lifecycle.follow(len(times.node_ids))

    # What the grid asks for ----------------------------------------------------------------------------------------

    def present(self) -> list[int]:
        """The node ids of the devices that are there, as far as the server knows."""
        there = self.times.fleet.availability.present(self.now).tolist()
        nodes, vanished = self.times.node_ids, self._lifecycle.vanished
        return [node for device, node in enumerate(nodes) if there[device] and device not in vanished]

    def send(self, device: int, message: Message) -> str:
        """A message leaves the server now; returns its id."""
        if self.counters.messages >= self._most:
            raise RunEnded("messages")
        self.counters.messages += 1
        name = f"message-{self.counters.messages}"
        message.metadata.__dict__["_message_id"] = name
        size = size_of(message.content)
        if not self._types:
            records = message.content.array_records.values()
            self._types = {name: array.dtype for record in records for name, array in record.items()}
        flight = MessageInFlight(
            number=self.counters.messages,
            name=name,
            message=copied_message(message),
            device=device,
            base=self.version,
            sent=self.now,
            bytes_down=size,
        )
        self.in_flight[name] = flight
        self.training += flight.trains
        self.counters.bytes_down += size
        if self._is_there(device):
            self._plan(self.now + self.times.fleet.links.down_seconds(device, size, self.now), "arrival", flight)
        else:
            self._plan(self.now, "away", flight)
        self._plan(self.now + message.metadata.ttl, "expiry", flight, LATE)
        return name

    def take(self, name: str) -> Message:
        """The app takes a reply that has landed: an update, if it is one, is used."""
        flight, reply = self.landed.pop(name)
        if flight.trains and not reply.has_error():
            staleness = self.version - flight.base
            self.counters.used += 1
            self.counters.staleness_sum += staleness
            self.counters.staleness_max = max(self.counters.staleness_max, staleness)
            self.accounts.resolved((flight.number,), True, self.version + 1)
        return reply

    def abandon(self, names: Iterable[str]) -> None:
        """Nobody waits for these replies any more: what still comes is discarded."""
        for name in names:
            if name in self.landed:
                self._discard(name)
            elif name in self.in_flight:
                self.in_flight[name].abandoned = True

    def _discard(self, name: str) -> None:
        flight, reply = self.landed.pop(name)
        if flight.trains and not reply.has_error():
            self.counters.discarded += 1
            self.accounts.resolved((flight.number,), False, self.version)

    def finish(self) -> None:
        """The run is over: updates that nobody took are discarded."""
        for name in list(self.landed):
            self._discard(name)

    def open_spans(self) -> list[Span]:
        """Trainings in flight, as far as they have come."""
        flights = (flight for flight in self.in_flight.values() if flight.trains)
        return [flight.span(self.now, "in flight", epochs=0) for flight in flights]

    # The clock -----------------------------------------------------------------------------------------------------

    @property
    def next_time(self) -> float:
        """When the next thing happens; infinite if nothing will."""
        entries = self._queue.entries
        while entries and entries[0][3] == "expiry" and entries[0][5].closed:
            heappop(entries)
        return entries[0][0] if entries else inf

    def step(self, until: float) -> bool:
        """Let the next thing happen, if that is by this time; else only let the time pass."""
        upcoming = self.next_time
        if upcoming > until or upcoming == inf:
            if until == inf:
                raise RunEnded("nothing left to happen")
            self._move(until)
            return False
        self._move(upcoming)
        _, _, _, kind, subject, flight = heappop(self._queue.entries)
        self._happen(kind, subject, flight)
        return True

    def _move(self, at: float) -> None:
        reached = min(at, self._stop_time)
        self.in_flight_seconds += self.training * (reached - self.now)
        self.now = reached
        if at > reached:
            raise RunEnded("time")

    def _plan(self, at: float, kind: str, flight: MessageInFlight, priority: int = 0) -> None:
        self._queue.push(at, kind, flight.device, flight, priority)

    # What happens ----------------------------------------------------------------------------------------------------

    def _happen(self, kind: str, subject: int, flight: MessageInFlight) -> None:
        match kind:
            case "change":
                self.changes += self._lifecycle.changed(subject, self.now)
            case "return":
                self.changes += 1
                self._lifecycle.returned(subject, self.now)
            case "arrival":
                self._arrive(flight)
            case "computed":
                self._compute(flight)
            case "done":
                self._done(flight)
            case "upload":
                self._land(flight)
            case "vanished":
                self.changes += 1
                if flight.fate.returns > self.now:
                    self._lifecycle.lose(subject, flight.fate.returns)
                self._fail(flight, ErrorCode.NODE_UNAVAILABLE, "the device has vanished")
            case "away":
                self._fail(flight, ErrorCode.NODE_UNAVAILABLE, "the device is not there")
            case "upload lost":
                self._fail(flight, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, "the reply was lost on its way")
            case "expiry":
                self._fail(flight, ErrorCode.MESSAGE_UNAVAILABLE, "the message has expired")

    def _is_there(self, device: int) -> bool:
        fate = self._devices[device].fate
        return not fate.vanishes <= self.now < fate.returns and self._lifecycle.is_available(device, self.now)

    def _arrive(self, flight: MessageInFlight) -> None:
        device = self._devices[flight.device]
        if not self._is_there(flight.device):
            self._plan(self.now, "away", flight)
        elif self.now < device.fate.vanishes < inf:  # it will vanish before it has done what it is at
            self._plan(self._lifecycle.noticed(device.fate), "away", flight)
        elif device.current is None:
            self._begin(flight)
        else:
            device.waiting.append(flight)

    def _begin(self, flight: MessageInFlight) -> None:
        """The device takes up the message, and will have done what is known of it by then, unless it vanishes."""
        seconds = self.times.known(flight)
        flight.began = self.now
        flight.fate = self._lifecycle.fate(
            flight.device, flight.number if flight.trains else None, self.now, self.now, (seconds,)
        )
        self._devices[flight.device].current = flight
        if flight.fate.vanishes <= self.now + seconds:
            self._vanish(flight)
        else:
            self._clients.begin(flight.number, flight.device, flight.message)
            self._plan(self.now + seconds, "computed", flight)

    def _vanish(self, flight: MessageInFlight) -> None:
        """The device will vanish with this message and with those that wait on it."""
        device = self._devices[flight.device]
        device.fate, device.current = flight.fate, None
        flight.ended = min(flight.ended, flight.fate.vanishes)
        noticed = self._lifecycle.noticed(flight.fate)
        self._plan(noticed, "vanished", flight)
        while device.waiting:
            self._plan(noticed, "away", device.waiting.popleft())

    def _compute(self, flight: MessageInFlight) -> None:
        answer = flight.answer = self._clients.answer(flight.number)
        if answer.trouble:
            self._fault(flight, f"its ClientApp raised an exception\n{answer.trouble}", ERROR)
        ends = self.now + self.times.more(flight, answer)
        if ends >= flight.fate.vanishes:
            self._vanish(flight)
        elif ends > self.now:
            self._plan(ends, "done", flight)
        else:
            self._done(flight)

    def _done(self, flight: MessageInFlight) -> None:
        """The work is over: the reply is on its way, and the device free for what has reached it meanwhile."""
        device = self._devices[flight.device]
        flight.ended = self.now
        flight.bytes_up = 0 if flight.reply.has_error() else size_of(flight.reply.content)
        arrives = self.now + self.times.fleet.links.up_seconds(flight.device, flight.bytes_up, self.now)
        device.current = None
        kind, at = self._lifecycle.outcome(flight.fate, "upload", arrives)
        if kind == "vanished":
            self._vanish(flight)
        else:
            self._plan(at, kind, flight)
        if device.waiting:
            self._begin(device.waiting.popleft())

    # What the server sees --------------------------------------------------------------------------------------------

    def _land(self, flight: MessageInFlight) -> None:
        self.counters.bytes_up += flight.bytes_up
        if flight.closed:
            return
        reply = flight.reply
        self._close(flight, reply)
        if not reply.has_error() and (mistake := reply_mistake(flight.message, reply, self._types, self.weight)):
            self._fault(flight, mistake, WARNING)

    def _fail(self, flight: MessageInFlight, code: int, reason: str) -> None:
        """The server learns that there will be no reply, as it would from a SuperLink: by an error in its place."""
        if not flight.closed:
            self._close(flight, Message(Error(code=code, reason=reason), reply_to=flight.message))

    def _close(self, flight: MessageInFlight, reply: Message) -> None:
        flight.closed, lost = True, reply.has_error()
        del self.in_flight[flight.name]
        self.changes += 1
        self.training -= flight.trains
        reply.metadata.__dict__["_message_id"] = f"reply-{flight.number}"
        reply.metadata.__dict__["_reply_to_message_id"] = flight.name
        reply.metadata.created_at = flight.message.metadata.created_at + self.now - flight.sent
        if flight.trains:
            outcome = "lost" if lost else "uploaded"
            samples = 0 if lost else int(examples_of(reply) or 0)
            span = flight.span(self.now, outcome, epochs=self.times.epochs, samples=samples)
            self.counters.lost += lost
            (self.accounts.lost if lost else self.accounts.delivered)(span)
        self.landed[flight.name] = (flight, reply)
        if flight.abandoned:
            self._discard(flight.name)

    def _fault(self, flight: MessageInFlight, what: str, level: int) -> None:
        self.counters.faults += 1
        self.accounts.refused(flight.device)
        kind = flight.message.metadata.message_type
        log(level, "Device %d, message %d (%s), at %.6g s: %s", flight.device, flight.number, kind, self.now, what)
