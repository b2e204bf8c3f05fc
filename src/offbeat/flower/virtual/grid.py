"""Flower's grid in virtual time: messages go to the engine, and the app's waiting advances the clock.

It has the clock of `offbeat.flower.server.transport` (`now`, `wait`), on which our strategies wait for the next event
instead of polling. For apps that poll, the second empty poll at the same time advances the clock by 0.1 s.
"""

import threading
import time
from collections.abc import Callable, Iterable
from logging import ERROR
from math import inf
from weakref import finalize

from flwr.app import Error, Message, Metadata, RecordDict
from flwr.serverapp import Grid

from offbeat.flower.compat import SUPERLINK_NODE_ID, SYSTEM_MESSAGE_TYPE, ErrorCode, Run, log, make_message
from offbeat.flower.virtual.engine import MessageEngine, RunEnded

POLL_SECONDS = 0.1
"""Virtual seconds that pass when an app polls without waiting: the polling interval of Flower's simulation."""
MOST_LOOKS = 1_000
"""Calls of `get_node_ids` at one time before they count as waiting for nodes."""
MOST_WAITS = 100_000
"""Consecutive waits without a message in flight before the run is ended."""
THREAD_SECONDS = 0.02
"""Real seconds in which other threads of the app may send something before the clock advances."""
REAL_SLEEP = time.sleep


class VirtualGrid(Grid):
    """Delivers messages to the devices of a simulated fleet, and replies when they arrive."""

    def __init__(self, engine: MessageEngine, run: Run) -> None:
        self._engine = engine
        self._run = run
        self._devices = {node: device for device, node in enumerate(engine.times.node_ids)}
        self._lock = threading.RLock()
        self._quiet = set(threading.enumerate())
        """Threads that are not waited for: those from before the run, and those that sent nothing when waited for."""
        self._senders: set[threading.Thread] = set()
        """Threads that have sent messages or polled for replies."""
        self._asked_at = -1.0
        self._looks = 0
        self._waits = 0
        self._waited_at = (-1, -1)
        """Counts of messages and changes when other threads were last waited for."""
        self.on_send: Callable[[list[Message]], None] = lambda messages: None
        """Called with messages before they are sent."""
        self.on_receive: Callable[[list[Message]], None] = lambda replies: None
        """Called with the replies that the app gets."""

    # The clock --------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self._engine.now

    def elapsed(self, real: float) -> float:
        """Virtual seconds since the run began: the server's own work takes no virtual time."""
        return self._engine.now

    def wait(self, seconds: float) -> None:
        """Advance the clock by `seconds`, or less if a reply arrives or a node comes or goes."""
        with self._lock:
            until, changes = self._engine.now + max(0.0, seconds), self._engine.changes
            while self._advance(until) and self._engine.changes == changes:
                pass

    def sleep(self, seconds: float) -> None:
        """Advance the clock by `seconds`."""
        with self._lock:
            until = self._engine.now + max(0.0, seconds)
            while self._advance(until):
                pass

    def _advance(self, until: float) -> bool:
        """Process the next event if it is due by `until`, else advance the clock to `until`."""
        engine, changes = self._engine, self._engine.changes
        if self._waited_at != (engine.counters.messages, changes) and self._others_may_send():
            self._let_others_send()
            if engine.changes != changes:
                return True
        if engine.in_flight:
            self._waits = 0
        else:
            self._waits += 1 if engine.next_time < inf else MOST_WAITS // 1_000
            if self._waits > MOST_WAITS:
                raise RunEnded("nothing left to happen")
        return engine.step(until)

    def _others_may_send(self) -> bool:
        """Whether there are other threads that have sent something, or that are new and may do so."""
        alive = set(threading.enumerate())
        self._quiet &= alive
        return bool(alive - self._quiet - {threading.current_thread()})

    def _let_others_send(self) -> None:
        """Give other threads real time to send, so that threads that each wait for a reply wait at the same time.

        A thread that sends nothing (a logger's, a progress bar's) is not waited for again until it does.
        """
        sent = -1
        while sent != self._engine.counters.messages:
            sent = self._engine.counters.messages
            self._lock.release()
            REAL_SLEEP(THREAD_SECONDS)
            self._lock.acquire()
        self._waited_at = (sent, self._engine.changes)
        self._quiet |= set(threading.enumerate()) - self._senders - {threading.current_thread()}

    def _note_sender(self) -> None:
        thread = threading.current_thread()
        self._senders.add(thread)
        self._quiet.discard(thread)

    def _note_empty_poll(self) -> None:
        if self._engine.now == self._asked_at:
            self.sleep(POLL_SECONDS)
        self._asked_at = self._engine.now

    # Flower's interface -----------------------------------------------------------------------------------------------

    def set_run(self, run: Run) -> None:
        """Set the run that messages belong to."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that this grid is for."""
        return Run(**vars(self._run))

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Create a message, for apps from before `Message` was public."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are available now."""
        with self._lock:
            self._looks += 1
            if self._looks > MOST_LOOKS:
                self._looks = 0
                self.sleep(POLL_SECONDS)
            return self._engine.present()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages to their nodes; returns their ids."""
        with self._lock:
            self._note_sender()
            outgoing = list(messages)
            self._looks = 0
            self.on_send(outgoing)
            return [self._engine.send(device, each) for each in outgoing if (device := self._device(each)) is not None]

    def _device(self, message: Message) -> int | None:
        """The device that the message is for; None if there is none, which Flower logs and skips."""
        metadata = message.metadata
        if metadata.reply_to_message_id or metadata.ttl <= 0:
            raise ValueError(f"Invalid message: {message}")
        device = self._devices.get(metadata.dst_node_id)
        if device is None:
            log(ERROR, "Invalid destination node ID for Message: %s", metadata.dst_node_id)
        return device

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages that have arrived, in the order of arrival."""
        with self._lock:
            self._note_sender()
            names = list(dict.fromkeys(message_ids))
            replies = self._pulled(names)
            if names and not replies:
                self._note_empty_poll()
                replies = self._pulled(names)
            return replies

    def _pulled(self, names: Iterable[str]) -> list[Message]:
        wanted, engine = set(names), self._engine
        replies = [engine.take(name) for name in list(engine.landed) if name in wanted]
        taken = {reply.metadata.reply_to_message_id for reply in replies}
        if replies:
            self.on_receive(replies)
        return replies + [self._unknown(name) for name in names if name not in taken and name not in engine.in_flight]

    def _forget(self, name: str) -> None:
        with self._lock:
            self._engine.forget(name)

    def _unknown(self, name: str) -> Message:
        """The error that Flower returns for an unknown id, or for a reply that was taken before."""
        metadata = Metadata(
            run_id=self._run.run_id,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=SUPERLINK_NODE_ID,
            reply_to_message_id=name,
            group_id="",
            message_type=SYSTEM_MESSAGE_TYPE,
            created_at=time.time(),
            ttl=0,
        )
        return make_message(metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, "there is no message with this id"))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and wait for their replies, for at most `timeout` virtual seconds."""
        with self._lock:
            messages = list(messages)
            waiting = dict.fromkeys(self.push_messages(messages))
            until = inf if timeout is None else self._engine.now + timeout
            replies: list[Message] = []
            while waiting:
                for name in [name for name in self._engine.landed if name in waiting]:
                    replies.append(self._engine.take(name))
                    del waiting[name]
                if not waiting or not self._advance(until):
                    break
            for message in messages:  # the app can still ask for a late reply by the id in its message
                if message.metadata.message_id in waiting:
                    finalize(message, self._forget, message.metadata.message_id).atexit = False
            if replies:
                self.on_receive(replies)
            return replies
