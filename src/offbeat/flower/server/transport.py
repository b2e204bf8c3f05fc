"""Messages on their way: what was sent to which node and is not answered yet. The one user of Flower's Grid."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, Protocol

import httpx
from flwr.app import Message, RecordDict
from msgspec import Struct

from offbeat.core.errors import DeviceFault, Disconnected
from offbeat.core.parameters import Vector
from offbeat.flower.protocol.codec import pack
from offbeat.flower.protocol.messages import MESSAGE_TYPE, Hello
from offbeat.flower.server.incoming import Incoming

LIFETIME_FACTOR = 2.0
"""A message lives so many times as long as we wait for its answer: ours is the deadline that counts."""


class Grid(Protocol):
    """What is used of Flower's."""

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are connected."""
        ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, and return their ids."""
        ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers to these messages that have come so far."""
        ...


class SentMessage(Struct, kw_only=True, eq=False):
    """A message that waits for its answer."""

    node: int
    at: float
    deadline: float
    device: int = -1
    ticket: int = 0
    leg: int = 0
    """The number that the answer must have; of a greeting 0."""
    given_up: bool = False
    """Whether its order was given up, so that it is watched only to know when the node is free again."""
    notice: bool = False
    """Whether it is a notice to a device in training, whose answer nobody waits for."""


class ReceivedAnswer(Struct, frozen=True, kw_only=True, eq=False):
    """An answer: its content, or why there is none."""

    sent: SentMessage
    content: RecordDict | None
    error: str = ""


class Packing(Protocol):
    """What the driver's messages look like on the wire."""

    def packed(self, body: Any, vector: Vector | None) -> tuple[RecordDict, str]:
        """The content of a message and its type."""
        ...

    def unpacked(self, content: RecordDict) -> RecordDict:
        """The content of an answer as the driver knows it; DeviceFault if it cannot be."""
        ...

    def greeting(self) -> RecordDict | None:
        """What a new node is taken to have said, if nobody asks it."""
        ...


class OwnPacking:
    """Messages of offbeat's own: a JSON body, and a flat vector beside it."""

    def packed(self, body: Any, vector: Vector | None) -> tuple[RecordDict, str]:
        """The content of a message and its type."""
        return pack(body, vector), MESSAGE_TYPE

    def unpacked(self, content: RecordDict) -> RecordDict:
        """As it is."""
        return content

    def greeting(self) -> RecordDict | None:
        """None: nodes say themselves who they are."""
        return None


class Transport:
    """Sends messages to nodes, and collects answers without waiting for them.

    A node has one message of an order at a time, and perhaps notices beside it.
    """

    def __init__(self, grid: Grid, log: Callable[[str], None], packing: Packing | None = None) -> None:
        self.grid = grid
        self._packing = packing or OwnPacking()
        self._greetings: list[ReceivedAnswer] = []
        """Greetings of nodes that are not asked."""
        self.waiting: dict[str, SentMessage] = {}
        self._incoming = Incoming(grid)
        self._log = log

    def nodes(self) -> set[int]:
        """The nodes that are connected."""
        with _connection():
            return set(self.grid.get_node_ids())

    def send(self, sent: SentMessage, body: Any, vector: Vector | None = None) -> bool:
        """Send a message; returns whether it could be handed to the SuperLink."""
        if isinstance(body, Hello) and (greeting := self._packing.greeting()) is not None:
            self._greetings.append(ReceivedAnswer(sent=sent, content=greeting))
            return True
        lifetime = LIFETIME_FACTOR * (sent.deadline - sent.at) + 60.0
        content, kind = self._packing.packed(body, vector)
        message = Message(content, sent.node, kind, ttl=lifetime)
        with _connection():
            identities = list(self.grid.push_messages([message]))
        if not identities or not identities[0]:
            return False
        self.waiting[identities[0]] = sent
        return True

    def poll(self) -> list[ReceivedAnswer]:
        """The answers that have come in since this was last called."""
        found, self._greetings = self._greetings, []
        with _connection():
            arrived = self._incoming.fetch(list(self.waiting))
        for answered, message in arrived:
            sent = self.waiting.pop(answered, None)
            if sent is None:
                self._log(f"an answer to a message that was not sent, or was answered before{_source(message)}")
            elif isinstance(message, str):
                found.append(ReceivedAnswer(sent=sent, content=None, error=message))
            elif message.has_error():
                error = message.error
                found.append(
                    ReceivedAnswer(sent=sent, content=None, error=f"Flower error {error.code}: {error.reason}")
                )
            else:
                found.append(self._received(sent, message.content))
        return found

    def _received(self, sent: SentMessage, content: RecordDict) -> ReceivedAnswer:
        try:
            return ReceivedAnswer(sent=sent, content=self._packing.unpacked(content))
        except DeviceFault as fault:
            return ReceivedAnswer(sent=sent, content=None, error=str(fault))

    def count_from(self, origin: float) -> None:
        """Count times from this moment on."""
        for sent in self.waiting.values():
            sent.at, sent.deadline = sent.at - origin, sent.deadline - origin

    def drop(self, node: int) -> list[SentMessage]:
        """Stop waiting for a node that is gone; what it still had to answer."""
        lost = {identity: sent for identity, sent in self.waiting.items() if sent.node == node}
        for identity in lost:
            del self.waiting[identity]
        return [sent for sent in lost.values() if not sent.notice]

    def overdue(self, now: float) -> list[SentMessage]:
        """Messages whose answers should have come by now. Notices are dropped: nobody waits for an answer to them."""
        late = {each: sent for each, sent in self.waiting.items() if sent.deadline <= now and not sent.given_up}
        for identity, sent in late.items():
            if sent.notice:
                del self.waiting[identity]
        return [sent for sent in late.values() if not sent.notice]

    def next_deadline(self) -> float:
        """When the next answer is overdue that has not come yet."""
        return min((sent.deadline for sent in self.waiting.values() if not sent.given_up), default=inf)

    def busy(self, node: int) -> bool:
        """Whether the node has a message to answer; notices want no answer."""
        return any(sent.node == node and not sent.notice for sent in self.waiting.values())

    def silent(self, node: int) -> bool:
        """Whether it has not answered in time, and still has not."""
        return any(sent.node == node and sent.given_up and not sent.notice for sent in self.waiting.values())


@contextmanager
def _connection() -> Iterator[None]:
    """Flower itself tries again for a while; if it gives up, or the run was stopped, it is over here."""
    try:
        yield
    except httpx.HTTPError as error:
        raise Disconnected(f"the SuperLink does not answer, or has stopped the run ({error}): resume it") from None


def _source(message: Message | str) -> str:
    return "" if isinstance(message, str) else f", from node {message.metadata.src_node_id}"
