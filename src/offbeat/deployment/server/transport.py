"""Messages on their way: what was sent to which node and is not answered yet. The one user of Flower's Grid."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import httpx
from flwr.app import Message, RecordDict
from msgspec import Struct

from offbeat.core.errors import Disconnected
from offbeat.core.parameters import Vector
from offbeat.deployment.protocol.codec import pack
from offbeat.deployment.protocol.messages import MESSAGE_TYPE

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
    """Its order was given up; it is watched only to know when the node is free again."""


class ReceivedAnswer(Struct, frozen=True, kw_only=True, eq=False):
    """An answer: its content, or why there is none."""

    sent: SentMessage
    content: RecordDict | None
    error: str = ""


class Transport:
    """Sends one message at a time to a node, and collects answers without waiting for them."""

    def __init__(self, grid: Grid, log: Callable[[str], None]) -> None:
        self.grid = grid
        self.waiting: dict[str, SentMessage] = {}
        self._log = log

    def nodes(self) -> set[int]:
        """The nodes that are connected."""
        with _connection():
            return set(self.grid.get_node_ids())

    def send(self, sent: SentMessage, body: Any, vector: Vector | None = None) -> bool:
        """Whether it could be handed to the SuperLink."""
        lifetime = LIFETIME_FACTOR * (sent.deadline - sent.at) + 60.0
        message = Message(pack(body, vector), sent.node, MESSAGE_TYPE, ttl=lifetime)
        with _connection():
            identities = list(self.grid.push_messages([message]))
        if not identities or not identities[0]:
            return False
        self.waiting[identities[0]] = sent
        return True

    def poll(self) -> list[ReceivedAnswer]:
        """What has come in since."""
        found: list[ReceivedAnswer] = []
        with _connection():
            messages = self._pull(list(self.waiting), found)
        for message in messages:
            sent = self.waiting.pop(message.metadata.reply_to_message_id, None)
            if sent is None:
                self._log(f"an answer to a message that was not sent, or was answered before, from {_source(message)}")
            elif message.has_error():
                error = message.error
                found.append(
                    ReceivedAnswer(sent=sent, content=None, error=f"Flower error {error.code}: {error.reason}")
                )
            else:
                found.append(ReceivedAnswer(sent=sent, content=message.content))
        return found

    def _pull(self, identities: list[str], broken: list[ReceivedAnswer]) -> list[Message]:
        """All that is there.

        If one message cannot even be taken apart, it is looked for one by one. Flower hands a message out once: answers
        that it had taken together with the broken one are gone, and their orders are given up at their deadlines.
        """
        if not identities:
            return []
        try:
            return list(self.grid.pull_messages(identities))
        except httpx.HTTPError:  # the SuperLink's trouble, not a device's
            raise
        except Exception as error:  # what Flower makes of a stranger's bytes may be any error there is
            if len(identities) > 1:
                return [message for each in identities for message in self._pull([each], broken)]
            why = f"its answer cannot be taken apart: {type(error).__name__}: {error}"
            broken.append(ReceivedAnswer(sent=self.waiting.pop(identities[0]), content=None, error=why))
            return []

    def count_from(self, origin: float) -> None:
        """From now on times are counted from here."""
        for sent in self.waiting.values():
            sent.at, sent.deadline = sent.at - origin, sent.deadline - origin

    def drop(self, node: int) -> list[SentMessage]:
        """Stop waiting for a node that is gone; what it still had to answer."""
        lost = {identity: sent for identity, sent in self.waiting.items() if sent.node == node}
        for identity in lost:
            del self.waiting[identity]
        return list(lost.values())

    def busy(self, node: int) -> bool:
        """Whether the node has a message that it has not answered yet."""
        return any(sent.node == node for sent in self.waiting.values())

    def silent(self, node: int) -> bool:
        """Whether it has not answered in time, and still has not."""
        return any(sent.node == node and sent.given_up for sent in self.waiting.values())


@contextmanager
def _connection() -> Iterator[None]:
    """Flower itself tries again for a while; if it gives up, or the run was stopped, it is over here."""
    try:
        yield
    except httpx.HTTPError as error:
        raise Disconnected(f"the SuperLink does not answer, or has stopped the run ({error}): resume it") from None


def _source(message: Message) -> str:
    return f"node {message.metadata.src_node_id}"
