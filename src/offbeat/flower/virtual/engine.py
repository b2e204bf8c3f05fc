"""The discrete-event engine for messages of a Flower app.

The clock advances only while the ServerApp waits. A ClientApp runs when its device would finish, so work that a device
never finishes is never computed. The server gets a reply, or one of Flower's errors: node not available, message
expired.
"""

from collections import Counter
from dataclasses import dataclass
from heapq import heappop
from logging import ERROR, WARNING
from math import inf

from flwr.app import Error, Message

from offbeat.core.state import Counters, moment_after
from offbeat.flower.compat import ErrorCode, log
from offbeat.flower.virtual.app import place_of
from offbeat.flower.virtual.clients import ClientRuns, copied_message
from offbeat.flower.virtual.devices import Device, MessageInFlight, WorkTimes, size_of
from offbeat.flower.virtual.replies import examples_of, reply_mistake
from offbeat.results.rows import Span
from offbeat.running.accounts import Accounts
from offbeat.simulation.lifecycle import DeviceLifecycle, EventQueue

LATE = 1
"""Priority of expiry: at equal times, events of devices come first."""


class RunEnded(BaseException):
    """A limit is reached, or no event is left. Not an `Exception`, so that no app catches it by accident."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(kw_only=True, slots=True)
class MessageCounters(Counters):
    """Totals of the run so far; an update is a reply."""

    messages: int = 0
    faults: int = 0
    """Messages whose ClientApp raised, and replies that Flower's strategies cannot use."""


class MessageEngine:
    """Owns the clock, the devices and the messages in flight."""

    def __init__(
        self, times: WorkTimes, clients: ClientRuns, *, stop_time: float = inf, most_messages: float = inf
    ) -> None:
        self.times = times
        self.now = 0.0
        self.version = 0
        """Version of the app's model, counted by `Observation`."""
        self.weight: str | None = None
        """The metric that the app's strategy weights replies by, set by `Observation`; None: no strategy seen."""
        self.counters = MessageCounters()
        self.accounts = Accounts(len(times.node_ids), times.fleet.names)
        self.in_flight: dict[str, MessageInFlight] = {}
        self.in_flight_seconds = 0.0
        """Time in flight, summed over all training messages."""
        self.landed: dict[str, tuple[MessageInFlight, Message]] = {}
        """Replies that have arrived and that the app has not taken, in the order of arrival."""
        self.taken: dict[str, MessageInFlight] = {}
        """Training messages whose updates the app has taken, and which are not resolved yet."""
        self.calls = 0
        """How many times a ClientApp was called."""
        self.raised: Counter[str] = Counter()
        """How many times each exception was raised by ClientApps."""
        self.changes = 0
        """Counts replies that arrived and nodes that came or went."""
        self.training = 0
        """Training messages in flight."""
        self._types: dict[str, str] = {}
        """Data types of the arrays in the first message, by name."""
        self._clients = clients
        self._stop_time, self._most = stop_time, most_messages
        self._queue = EventQueue()
        self._devices = [Device() for _ in times.node_ids]
        self._lifecycle = DeviceLifecycle(times.fleet, self._queue)
        self._lifecycle.follow(len(times.node_ids))

    # Called by the grid -----------------------------------------------------------------------------------------------

    def present(self) -> list[int]:
        """Node ids of the devices that are available, as far as the server knows."""
        there = self.times.fleet.availability.present(self.now).tolist()
        nodes, vanished = self.times.node_ids, self._lifecycle.vanished
        return [node for device, node in enumerate(nodes) if there[device] and device not in vanished]

    def send(self, device: int, message: Message) -> str:
        """Send a message to a device; returns its id."""
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
        """Hand a reply that has arrived to the app."""
        flight, reply = self.landed.pop(name)
        if flight.trains and not reply.has_error():
            self.taken[name] = flight
        return reply

    def resolve(self, name: str, used: bool, version: int) -> None:
        """An update that the app has taken was used for this version, or discarded; others are ignored."""
        flight = self.taken.pop(name, None)
        if flight is None:
            return
        if used:
            staleness = version - 1 - flight.base
            self.counters.used += 1
            self.counters.staleness_sum += staleness
            self.counters.staleness_max = max(self.counters.staleness_max, staleness)
        else:
            self.counters.discarded += 1
        self.accounts.resolved((flight.number,), used, version)

    def forget(self, name: str) -> None:
        """Discard the reply to this message, also if it has not arrived yet: the app cannot ask for it any more."""
        if name in self.landed:
            self.take(name)
            self.resolve(name, False, self.version)
        elif name in self.in_flight:
            self.in_flight[name].forgotten = True

    def finish(self) -> None:
        """End the run: discard updates that the app has not taken."""
        for name in list(self.landed):
            self.forget(name)

    def open_spans(self) -> list[Span]:
        """The spans of the training messages in flight, up to now."""
        flights = (flight for flight in self.in_flight.values() if flight.trains)
        return [flight.span(self.now, "in flight", epochs=0) for flight in flights]

    # The clock --------------------------------------------------------------------------------------------------------

    @property
    def next_time(self) -> float:
        """Time of the next event; inf if there is none."""
        entries = self._queue.entries
        while entries and entries[0][3] == "expiry" and entries[0][5].closed:
            heappop(entries)
        return entries[0][0] if entries else inf

    def step(self, until: float) -> bool:
        """Process the next event if it is due by `until`, else advance the clock to `until`; whether there was one."""
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
        reached = max(self.now, min(moment_after(at), self._stop_time))  # another thread may have waited for longer
        self.in_flight_seconds += self.training * (reached - self.now)
        self.now = reached
        if at > reached:
            raise RunEnded("time")

    def _plan(self, at: float, kind: str, flight: MessageInFlight, priority: int = 0) -> None:
        self._queue.push(at, kind, flight.device, flight, priority)

    # Events -----------------------------------------------------------------------------------------------------------

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
                self._fail(flight, ErrorCode.NODE_UNAVAILABLE, "the device is not available")
            case "upload lost":
                self._fail(flight, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, "the reply was lost")
            case "expiry":
                self._fail(flight, ErrorCode.MESSAGE_UNAVAILABLE, "the message has expired")

    def _is_there(self, device: int) -> bool:
        fate = self._devices[device].fate
        return not fate.vanishes <= self.now < fate.returns and self._lifecycle.is_available(device, self.now)

    def _arrive(self, flight: MessageInFlight) -> None:
        device = self._devices[flight.device]
        if not self._is_there(flight.device):
            self._plan(self.now, "away", flight)
        elif self.now < device.fate.vanishes < inf:  # it will vanish before it finishes its current message
            self._plan(self._lifecycle.noticed(device.fate), "away", flight)
        elif device.current is None:
            self._begin(flight)
        else:
            device.waiting.append(flight)

    def _begin(self, flight: MessageInFlight) -> None:
        """Start a message on its device and schedule the end of the work that is known, or the device's vanishing."""
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
        """Schedule the loss of this message, and of those that wait on the same device."""
        device = self._devices[flight.device]
        device.fate, device.current = flight.fate, None
        flight.ended = min(flight.ended, flight.fate.vanishes)
        noticed = self._lifecycle.noticed(flight.fate)
        self._plan(noticed, "vanished", flight)
        while device.waiting:
            self._plan(noticed, "away", device.waiting.popleft())

    def _compute(self, flight: MessageInFlight) -> None:
        answer = flight.answer = self._clients.answer(flight.number)
        self.calls += 1
        if answer.trouble:
            exception = answer.trouble.strip().rpartition("\n")[2] + place_of(answer.trouble)
            self.raised[exception] += 1
            told = self.raised[exception] > 1  # its traceback is in the log already
            self._fault(flight, f"its ClientApp raised an exception\n{answer.trouble}", None if told else ERROR)
        ends = self.now + self.times.more(flight, answer)
        if ends >= flight.fate.vanishes:
            self._vanish(flight)
        elif ends > self.now:
            self._plan(ends, "done", flight)
        else:
            self._done(flight)

    def _done(self, flight: MessageInFlight) -> None:
        """Send the reply, and start the next message that waits on the device."""
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

    # What the server sees ---------------------------------------------------------------------------------------------

    def _land(self, flight: MessageInFlight) -> None:
        self.counters.bytes_up += flight.bytes_up
        if flight.closed:
            return
        reply = flight.reply
        self._close(flight, reply)
        if not reply.has_error() and (mistake := reply_mistake(flight.message, reply, self._types, self.weight)):
            self._fault(flight, mistake, WARNING)

    def _fail(self, flight: MessageInFlight, code: int, reason: str) -> None:
        """Give the server an error in place of the reply, as a SuperLink does."""
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
        if flight.forgotten:
            self.forget(flight.name)

    def _fault(self, flight: MessageInFlight, what: str, level: int | None) -> None:
        self.counters.faults += 1
        self.accounts.refused(flight.device)
        if level is None:
            return
        kind = flight.message.metadata.message_type
        log(level, "Device %d, message %d (%s), at %.6g s: %s", flight.device, flight.number, kind, self.now, what)
