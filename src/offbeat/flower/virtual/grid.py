"""A grid of Flower's in virtual time: what a ServerApp sends goes to the engine, and its waiting moves the clock.

It keeps the contract of `offbeat.flower.server.transport` (`now`, `wait`), so that a strategy of ours waits as long
as it must and no longer. An app that polls is helped along: asking twice in vain at one time lets a moment pass.
"""

import threading
import time
from collections.abc import Callable, Iterable
from logging import ERROR
from math import inf

from flwr.app import Message, Metadata, RecordDict
from flwr.app.error import Error
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore import log
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE
from flwr.supercore.run import Run

from offbeat.flower.virtual.engine import MessageEngine, RunEnded

POLL_SECONDS = 0.1
"""What passes when an app asks again and again without waiting: the interval of Flower's own grid in simulations."""
MOST_LOOKS = 1_000
"""How often an app may look for nodes at one time before that counts as waiting for them."""
MOST_WAITS = 100_000
"""How often in a row an app may wait with no message in flight, for nodes to come, before the run is ended."""
SETTLE_SECONDS = 0.02
"""Real time in which another thread of the app may send something before the clock moves on."""
REAL_SLEEP = time.sleep


class VirtualGrid(Grid):
    """Delivers messages to the devices of a simulated fleet, and their replies when they are there."""

    def __init__(self, engine: MessageEngine, run: Run) -> None:
        self._engine = engine
        self._run = run
        self._devices = {node: device for device, node in enumerate(engine.times.node_ids)}
        self._lock = threading.RLock()
        self._quiet = set(threading.enumerate())
        """Threads that send nothing: those from before, and those that had their chance to."""
        self._senders: set[threading.Thread] = set()
        """Threads that have sent something, or have asked for replies."""
        self._asked_at = -1.0
        self._looks = 0
        self._waits = 0
        self._settled = (-1, -1)
        """Messages and changes when other threads last had their chance to send something."""
        self.on_send: Callable[[list[Message]], None] = lambda messages: None
        """Called with messages before they leave."""
        self.on_receive: Callable[[list[Message]], None] = lambda replies: None
        """Called with the replies that the app is given."""

    # The clock -----------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self._engine.now

    def elapsed(self, real: float) -> float:
        """Virtual seconds since the run began, however long it took: the server's work takes no time."""
        return self._engine.now

    def wait(self, seconds: float) -> None:
        """Let so many seconds pass, or fewer if a reply lands, or a node comes or goes."""
        with self._lock:
            until, changes = self._engine.now + max(0.0, seconds), self._engine.changes
            while self._advance(until) and self._engine.changes == changes:
                pass

    def sleep(self, seconds: float) -> None:
        """Let so many seconds pass, whatever happens meanwhile."""
        with self._lock:
            until = self._engine.now + max(0.0, seconds)
            while self._advance(until):
                pass

    def _advance(self, until: float) -> bool:
        """Let the next thing happen, if that is by this time; else let the time pass."""
        engine, changes = self._engine, self._engine.changes
        if self._settled != (engine.counters.messages, changes) and self._others_may_send():
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
        """Whether there are other threads that have sent something before, or that are new and may do so."""
        alive = set(threading.enumerate())
        self._quiet &= alive
        return bool(alive - self._quiet - {threading.current_thread()})

    def _let_others_send(self) -> None:
        """An app with threads that wait each for a reply means them to wait at the same time.

        A thread that has let its chance pass (of a logger, of a progress bar) is not waited for again until it sends.
        """
        sent = -1
        while sent != self._engine.counters.messages:
            sent = self._engine.counters.messages
            self._lock.release()
            REAL_SLEEP(SETTLE_SECONDS)
            self._lock.acquire()
        self._settled = (sent, self._engine.changes)
        self._quiet |= set(threading.enumerate()) - self._senders - {threading.current_thread()}

    def _called_by_a_sender(self) -> None:
        thread = threading.current_thread()
        self._senders.add(thread)
        self._quiet.discard(thread)

    def _asked_in_vain(self) -> None:
        if self._engine.now == self._asked_at:
            self.sleep(POLL_SECONDS)
        self._asked_at = self._engine.now

    # As every grid ---------------------------------------------------------------------------------------------------

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
        """A new message, as apps made them before they called `Message` themselves."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are there now."""
        with self._lock:
            self._looks += 1
            if self._looks > MOST_LOOKS:
                self._looks = 0
                self.sleep(POLL_SECONDS)
            return self._engine.present()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages to their nodes; returns their ids."""
        with self._lock:
            self._called_by_a_sender()
            outgoing = list(messages)
            self._looks = 0
            self.on_send(outgoing)
            return [self._engine.send(device, each) for each in outgoing if (device := self._device(each)) is not None]

    def _device(self, message: Message) -> int | None:
        """Whom the message is for; None for nobody, which Flower logs and leaves out."""
        metadata = message.metadata
        if metadata.reply_to_message_id or metadata.ttl <= 0:
            raise ValueError(f"Invalid message: {message}")
        device = self._devices.get(metadata.dst_node_id)
        if device is None:
            log(ERROR, "Invalid destination node ID for Message: %s", metadata.dst_node_id)
        return device

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages that have landed, in the order in which they did."""
        with self._lock:
            self._called_by_a_sender()
            names = list(dict.fromkeys(message_ids))
            replies = self._pulled(names)
            if names and not replies:
                self._asked_in_vain()
                replies = self._pulled(names)
            return replies

    def _pulled(self, names: Iterable[str]) -> list[Message]:
        wanted, engine = set(names), self._engine
        replies = [engine.take(name) for name in list(engine.landed) if name in wanted]
        taken = {reply.metadata.reply_to_message_id for reply in replies}
        if replies:
            self.on_receive(replies)
        return replies + [self._unknown(name) for name in names if name not in taken and name not in engine.in_flight]

    def _unknown(self, name: str) -> Message:
        """What Flower answers to an id that it does not know, or whose reply was taken before."""
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
        return make_message(metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, "there is no message of this id"))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and wait for their replies, for so many virtual seconds at most."""
        with self._lock:
            waiting = dict.fromkeys(self.push_messages(messages))
            until = inf if timeout is None else self._engine.now + timeout
            replies: list[Message] = []
            while waiting:
                for name in [name for name in self._engine.landed if name in waiting]:
                    replies.append(self._engine.take(name))
                    del waiting[name]
                if not waiting or not self._advance(until):
                    break
            self._engine.abandon(waiting)
            if replies:
                self.on_receive(replies)
            return replies
