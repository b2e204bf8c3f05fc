"""The one user of Flower's Grid: its clock, messages sent, and the replies to them.

**The clock.** A driver reads the time and waits only through `grid_now` and `grid_wait`, so the same code runs in real
time on a SuperLink and in virtual time on a grid that simulates one. A grid has its own clock if it has both of these
methods (an attribute `now` that is a number does not count):

- `now() -> float`: seconds since any origin. It never decreases, and moves only during a wait.
- `wait(seconds: float) -> None`: let time pass until that many seconds (possibly infinitely many) are over, a reply
  can be pulled, or a node has connected or disconnected. It may return earlier, but only if time has moved or a reply
  can be pulled.

On such a grid `pull_messages(ids)` returns the replies that have arrived by `now()`, in order of arrival, for all
messages in one call; `get_node_ids()` returns the nodes connected at `now()`.

**Replies, one by one.** Flower's `pull_messages` fetches all replies, waits for those still being uploaded, and loses
all of them if one cannot be decoded. So on Flower's own grid `Incoming` makes the same calls reply by reply: one that
is incomplete is tried again at the next poll, and a broken one affects only its own device. A reply is downloaded only
up to the size of the largest message sent and an allowance; one to an order that was given up is not downloaded at all.
Second replies to a message, and replies to none, are dropped and counted.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from math import inf
from typing import Any, NamedTuple, Protocol

import httpx
from flwr.app import Message, RecordDict
from msgspec import Struct

from offbeat.core.errors import DeviceFault, Disconnected
from offbeat.core.parameters import Vector
from offbeat.flower.compat import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullAppMessagesRequest,
    PullObjectRequest,
    inflate_object_from_contents,
    iterate_object_tree,
)
from offbeat.flower.protocol.codec import fault_boundary, pack
from offbeat.flower.protocol.messages import MESSAGE_TYPE, Hello

LIFETIME_FACTOR = 2.0
"""The lifetime of a message in units of its reply timeout: the timeout must expire first."""
ALLOWANCE = 2**20
"""Bytes that a reply may have in addition to those of the largest message sent."""
HEADER_BYTES = 1024
"""Bytes of a response around the object in it."""
MOST_OBJECTS = 100_000
"""Most objects of which Flower may have made a reply."""
NOT_READ = "its order was given up before, so it was not read"
"""Stands for a reply that was dropped because its order was given up."""
NO_NODE = -1
"""The node of a message to a device that is not connected."""


def has_clock(grid: Any) -> bool:
    """Whether the grid has its own clock, so that a wait ends when something happens."""
    return callable(getattr(grid, "now", None)) and callable(getattr(grid, "wait", None))


def grid_now(grid: Any) -> float:
    """The time of the grid's clock, else of the monotonic clock, in seconds."""
    return float(grid.now()) if has_clock(grid) else time.monotonic()


def grid_wait(grid: Any, seconds: float) -> None:
    """Let time pass; a grid with its own clock may return early, as described above."""
    if has_clock(grid):
        grid.wait(seconds)
    else:
        time.sleep(seconds)


# Messages -------------------------------------------------------------------------------------------------------------


class Grid(Protocol):
    """The part of Flower's Grid that is used."""

    def get_node_ids(self) -> Iterable[int]:
        """The connected nodes."""
        ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, and return their ids."""
        ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages that have arrived."""
        ...


class SentMessage(Struct, kw_only=True, eq=False):
    """A message that waits for its reply."""

    node: int
    at: float
    deadline: float
    device: int = -1
    ticket: int = 0
    leg: int = 0
    """The leg that the reply must name; 0 for a greeting or a notice."""
    given_up: bool = False
    """Whether its order was given up. The reply is then awaited only to know when the node is free again."""
    notice: bool = False
    """Whether it is a notice to a device in training. Nothing waits for the reply."""
    identity: str = ""
    """The id that the grid has given it."""


class OutgoingMessage(NamedTuple):
    """A message to send, and what is noted about it until the reply comes."""

    sent: SentMessage
    body: Any
    vector: Vector | None = None


class ReceivedReply(Struct, frozen=True, kw_only=True, eq=False):
    """A reply: its content, or why there is none."""

    sent: SentMessage
    content: RecordDict | None
    error: str = ""


class Packing(Protocol):
    """How messages are represented on the wire."""

    def packed(self, body: Any, vector: Vector | None) -> tuple[RecordDict, str]:
        """The content of a message and its type."""
        ...

    def unpacked(self, content: RecordDict) -> RecordDict:
        """The content of a reply in the form that the driver reads; DeviceFault if it has no such form."""
        ...

    def greeting(self) -> RecordDict | None:
        """The greeting of every new node, if nodes are not asked for theirs."""
        ...


class OwnPacking:
    """Messages for offbeat's client app: a JSON body with an optional flat vector."""

    def packed(self, body: Any, vector: Vector | None) -> tuple[RecordDict, str]:
        """The content of a message and its type."""
        return pack(body, vector), MESSAGE_TYPE

    def unpacked(self, content: RecordDict) -> RecordDict:
        """Return the content unchanged."""
        return content

    def greeting(self) -> RecordDict | None:
        """None: each node is asked for its greeting."""
        return None


class Transport:
    """Sends messages to nodes, and collects replies without blocking.

    A node has at most one message of an order at a time, and possibly notices as well.
    """

    __slots__ = ("_greetings", "_incoming", "_largest", "_log", "_packing", "grid", "ignored", "waiting")

    def __init__(self, grid: Grid, log: Callable[[str], None], packing: Packing | None = None) -> None:
        self.grid = grid
        self.waiting: dict[str, SentMessage] = {}
        """Messages without a reply, by id."""
        self._packing = packing or OwnPacking()
        self._greetings: list[ReceivedReply] = []
        """Greetings of nodes that are not asked."""
        self.ignored: Counter[int] = Counter()
        """Replies of each node that were dropped: to no message, or to one that was answered before."""
        self._incoming = Incoming(grid)
        self._largest = 0
        """Bytes of the arrays in the largest message sent so far."""
        self._log = log

    def nodes(self) -> set[int]:
        """The connected nodes."""
        with _connection():
            return set(self.grid.get_node_ids())

    def send(self, sent: SentMessage, body: Any, vector: Vector | None = None) -> bool:
        """Send a message; return whether the SuperLink has accepted it."""
        if sent.node == NO_NODE:
            return False
        if isinstance(body, Hello) and (greeting := self._packing.greeting()) is not None:
            self._greetings.append(ReceivedReply(sent=sent, content=greeting))
            return True
        lifetime = LIFETIME_FACTOR * (sent.deadline - sent.at) + 60.0
        content, kind = self._packing.packed(body, vector)
        if vector is not None:
            records = content.array_records.values()
            self._largest = max(self._largest, sum(len(each.data) for record in records for each in record.values()))
        message = Message(content, sent.node, kind, ttl=lifetime)
        with _connection():
            identities = list(self.grid.push_messages([message]))
        if not identities or not identities[0]:
            return False
        sent.identity = identities[0]
        self.waiting[sent.identity] = sent
        return True

    def poll(self) -> list[ReceivedReply]:
        """The replies that have arrived since the last call."""
        found, self._greetings = self._greetings, []
        with _connection():
            most = int(1.1 * self._largest) + ALLOWANCE
            unread = {each for each, sent in self.waiting.items() if sent.given_up and sent.device >= 0}
            arrived = self._incoming.fetch({each: 0 if each in unread else most for each in self.waiting})
        for identity, message in arrived:
            sent = self.waiting.pop(identity, None)
            if sent is None:
                self._ignore(-1 if isinstance(message, str) else message.metadata.src_node_id)
            else:
                found.append(self._received(sent, message))
        while self._incoming.surplus:
            self._ignore(self._incoming.surplus.pop())
        return found

    def _ignore(self, node: int) -> None:
        """Count a reply that belongs to nothing. The 1st, 10th, 100th ... of a node is logged."""
        self.ignored[node] += 1
        count = self.ignored[node]
        if count == 10 ** (len(str(count)) - 1):
            noun = "reply" if count == 1 else "replies"
            self._log(f"node {node}: ignored {count} {noun} to unknown or already answered messages")

    def _received(self, sent: SentMessage, message: Message | str) -> ReceivedReply:
        if isinstance(message, str):
            return ReceivedReply(sent=sent, content=None, error=message)
        if message.has_error():
            error = f"Flower error {message.error.code}: {message.error.reason}"
            return ReceivedReply(sent=sent, content=None, error=error)
        try:
            with fault_boundary():
                return ReceivedReply(sent=sent, content=self._packing.unpacked(message.content))
        except DeviceFault as fault:
            return ReceivedReply(sent=sent, content=None, error=str(fault))

    def count_from(self, origin: float) -> None:
        """Count times from this moment on."""
        for sent in self.waiting.values():
            sent.at, sent.deadline = sent.at - origin, sent.deadline - origin

    def drop(self, node: int) -> list[SentMessage]:
        """Stop waiting for a node that has disconnected; return the messages without a reply, except notices."""
        lost = {identity: sent for identity, sent in self.waiting.items() if sent.node == node}
        for identity in lost:
            del self.waiting[identity]
        return [sent for sent in lost.values() if not sent.notice]

    def give_up_overdue(self, now: float) -> list[SentMessage]:
        """Give up messages whose deadline has passed, and return them. Notices are forgotten without a word."""
        late = {each: sent for each, sent in self.waiting.items() if sent.deadline <= now and not sent.given_up}
        for identity, sent in late.items():
            sent.given_up = True
            if sent.notice:
                del self.waiting[identity]
        return [sent for sent in late.values() if not sent.notice]

    def next_deadline(self) -> float:
        """The earliest deadline of a message that is not given up; infinite if there is none."""
        return min((sent.deadline for sent in self.waiting.values() if not sent.given_up), default=inf)

    def busy(self, node: int) -> bool:
        """Whether the node has a message to reply to, other than a notice."""
        return any(sent.node == node and not sent.notice for sent in self.waiting.values())

    def silent(self, node: int) -> bool:
        """Whether the node has missed a deadline and has not replied since."""
        return any(sent.node == node and sent.given_up and not sent.notice for sent in self.waiting.values())


@contextmanager
def _connection() -> Iterator[None]:
    """Turn connection errors, after Flower's own retries, into Disconnected."""
    try:
        yield
    except httpx.HTTPError as error:
        raise Disconnected(f"the SuperLink does not respond, or has stopped the run ({error}): resume it") from None


# Replies, one by one --------------------------------------------------------------------------------------------------

Arrived = tuple[str, Message | str]
"""The id of a message, and the reply to it, or why there is none."""


class PartialReply(Struct, kw_only=True, eq=False):
    """A reply that a node is still uploading."""

    identity: str
    missing: list[str]
    contents: dict[str, bytes] = {}
    bytes: int = 0
    """Bytes of the contents."""


class Incoming:
    """Fetches replies without blocking."""

    __slots__ = ("_grid", "_hooked", "_most", "_partial", "surplus")

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._partial: dict[str, PartialReply] = {}
        """Incomplete replies, by the id of the message that they reply to."""
        self.surplus: list[int] = []
        """The nodes of replies that were dropped unread: second ones, and those to other messages."""
        self._hooked: Any = None
        """The HTTP client whose responses are limited."""
        self._most = inf
        """Most bytes that the next response may have."""

    def fetch(self, most_bytes: Mapping[str, int]) -> list[Arrived]:
        """The replies to these messages that are complete, each with at most this many bytes; 0: it is not read."""
        identities = list(most_bytes)
        if not identities:
            return []
        if has_clock(self._grid):  # a simulated grid, whose replies come from this process
            return [(each.metadata.reply_to_message_id, each) for each in self._grid.pull_messages(identities)]
        client = getattr(self._grid, "_runtime_client", None)
        if client is None:  # a grid without a SuperLink
            return [each for identity in identities for each in self._whole(identity)]
        return self._apart(client, most_bytes)

    def _whole(self, identity: str) -> list[Arrived]:
        try:
            return [(message.metadata.reply_to_message_id, message) for message in self._grid.pull_messages([identity])]
        except httpx.HTTPError:  # a failure of the SuperLink, not of the device
            raise
        except Exception as error:  # untrusted bytes can make Flower raise anything
            return [(identity, _why(error))]

    def _apart(self, client: Any, most_bytes: Mapping[str, int]) -> list[Arrived]:
        asked = [identity for identity in most_bytes if identity not in self._partial]
        found: list[Arrived] = []
        if asked:
            response = client.PullMessages(PullAppMessagesRequest(message_ids=asked))
            for head, tree in zip(response.messages_list, response.message_object_trees, strict=True):
                identity = head.metadata.reply_to_message_id
                if identity in self._partial or identity not in most_bytes:
                    self.surplus.append(head.metadata.src_node_id)
                    self._confirm(client, tree.object_id)
                else:
                    self._partial[identity] = PartialReply(identity=tree.object_id, missing=[])
                    try:
                        self._partial[identity].missing += _objects(tree)
                    except Exception as error:
                        found.append((identity, _why(error)))
                        del self._partial[identity]
        for identity in list(self._partial):
            if identity not in most_bytes:  # its node has disconnected
                del self._partial[identity]
                continue
            reply, most = self._partial[identity], most_bytes[identity]
            try:
                if most:
                    message: Message | str | None = self._complete(client, reply, most)
                else:
                    self._confirm(client, reply.identity)
                    message = NOT_READ
            except httpx.HTTPError:
                raise
            except Exception as error:
                message = _why(error)
            if message is not None:
                found.append((identity, message))
                del self._partial[identity]
        return found

    def _complete(self, client: Any, reply: PartialReply, most: int) -> Message | None:
        """The reply, if all of its objects have arrived; DeviceFault if they have more than `most` bytes."""
        grid: Any = self._grid
        while reply.missing:
            request = PullObjectRequest(node=grid.node, run_id=grid.run.run_id, object_id=reply.missing[-1])
            try:
                with self._limited(client, most - reply.bytes):
                    response = client.PullObject(request)
                reply.bytes += len(response.object_content)
                if reply.bytes > most:
                    raise _TooLarge
            except _TooLarge:
                self._confirm(client, reply.identity)
                raise DeviceFault(f"it has more than {most:,} bytes") from None
            if not response.object_found:
                raise ValueError("an object is missing")
            if not response.object_available:
                return None
            reply.contents[reply.missing.pop()] = response.object_content
        self._confirm(client, reply.identity)
        message = inflate_object_from_contents(reply.identity, reply.contents)
        if not isinstance(message, Message):
            raise ValueError("it is not a message")
        message.metadata.__dict__["_message_id"] = reply.identity
        return message

    def _confirm(self, client: Any, identity: str) -> None:
        """Let the SuperLink forget a reply."""
        grid: Any = self._grid
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=grid.node, run_id=grid.run.run_id, message_object_id=identity)
        )

    @contextmanager
    def _limited(self, client: Any, most: int) -> Iterator[None]:
        """Refuse a response above this many bytes by its header, before its body is read."""
        http = getattr(client, "_client", None)
        if isinstance(http, httpx.Client) and http is not self._hooked:
            http.event_hooks["response"].append(self._check_length)
            self._hooked = http
        self._most = most + HEADER_BYTES
        try:
            yield
        finally:
            self._most = inf

    def _check_length(self, response: httpx.Response) -> None:
        length = response.headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._most:
            raise _TooLarge


class _TooLarge(Exception):
    """A response has more bytes than the reply may have."""


def _objects(tree: ObjectTree) -> list[str]:
    objects = dict.fromkeys(each.object_id for each in islice(iterate_object_tree(tree), MOST_OBJECTS + 1))
    if len(objects) > MOST_OBJECTS:
        raise DeviceFault(f"it has more than {MOST_OBJECTS:,} objects")
    return list(objects)


def _why(error: Exception) -> str:
    kind = "" if isinstance(error, DeviceFault) else f"{type(error).__name__}: "
    return f"its reply cannot be decoded: {kind}{error}"
