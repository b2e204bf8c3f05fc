"""What a node and a child that runs an app say to each other over a socket: plain records with bytes behind them.

A frame is the length of its head, the head as JSON, and then the parts whose sizes the head says. Nothing is ever
unpickled, and a part is written from where it lies and read into one place in memory. A message travels in pieces,
one frame each, so that neither side holds a large one twice.
"""

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

MOST_HEAD = 2**24
"""Bytes of a head that are read: run configs may be long, for an experiment travels in one."""
MOST_PARTS = 2**31
"""Bytes of a frame's parts that are read; Flower cuts arrays into parts of 5 MB."""

STATE = "state"
"""The name under which the node keeps an app's state for the next child of the run."""

T = TypeVar("T")


class BrokenFrame(Exception):
    """What came over the socket is no frame."""


# From the node to a child -------------------------------------------------------------------------------------------


class OpenApp(Struct, frozen=True, kw_only=True, tag="open"):
    """Load this app. The state of an earlier child of the same run is the one part, if there is any."""

    run_id: int
    node_id: int
    series_id: int
    node_config: dict[str, bool | float | int | str]
    run_config: dict[str, bool | float | int | str]
    app_id: str
    app_version: str
    app_hash: str
    directory: str


class Piece(Struct, frozen=True, kw_only=True, tag="piece"):
    """The one part is an object of a message that comes soon, as the SuperLink has it. Goes both ways."""

    identity: str


class Deliver(Struct, frozen=True, kw_only=True, tag="deliver"):
    """A message for the app, whose pieces have come."""

    message: str
    pieces: list[str]


class Recalled(Struct, frozen=True, kw_only=True, tag="recalled"):
    """What was kept under a name: the one part, if there is any."""

    name: str


ToChild = OpenApp | Piece | Deliver | Recalled


# From a child to the node -------------------------------------------------------------------------------------------


class Reply(Struct, frozen=True, kw_only=True, tag="reply"):
    """The app's answer, whose pieces have come. Its parts are the message without content and its tree of objects."""

    reply_to: str
    pieces: list[str]
    seconds: float
    """What the app took."""


class Keep(Struct, frozen=True, kw_only=True, tag="keep"):
    """Keep the one part under this name."""

    name: str


class Recall(Struct, frozen=True, kw_only=True, tag="recall"):
    """What is kept under this name?"""

    name: str


class Warm(Struct, frozen=True, kw_only=True, tag="warm"):
    """The app is loaded."""


FromChild = Piece | Reply | Keep | Recall | Warm


class _Head(Struct, frozen=True, kw_only=True):
    body: msgspec.Raw
    sizes: list[int] = []


class FrameSocket(Generic[T]):
    """Writes frames from any thread, and reads those of one kind in one thread."""

    def __init__(self, connection: socket.socket, incoming: Any) -> None:
        self._socket = connection
        self._file = connection.makefile("rb")
        self._incoming: Any = msgspec.json.Decoder(incoming)
        self._lock = Lock()

    def write(self, body: Struct, parts: Sequence[bytes | memoryview] = ()) -> None:
        """Send a frame."""
        sizes = [len(part) for part in parts]
        head = msgspec.json.encode(_Head(body=msgspec.Raw(msgspec.json.encode(body)), sizes=sizes))
        with self._lock:
            self._socket.sendall(struct.pack(">I", len(head)) + head)
            for part in parts:
                self._socket.sendall(part)

    def read(self) -> tuple[T, list[bytes]] | None:
        """The next frame, or None if there will be no more."""
        start = self._file.read(4)
        if len(start) < 4:
            return None
        (length,) = struct.unpack(">I", start)
        if length > MOST_HEAD:
            raise BrokenFrame(f"a head of {length:,} bytes")
        try:
            head = msgspec.json.decode(self._exactly(length), type=_Head)
            body: T = self._incoming.decode(head.body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BrokenFrame(str(error)) from None
        if min(head.sizes, default=0) < 0 or sum(head.sizes) > MOST_PARTS:
            raise BrokenFrame(f"parts of {head.sizes} bytes")
        return body, [self._exactly(size) for size in head.sizes]

    def _exactly(self, size: int) -> bytes:
        content = self._file.read(size)
        if len(content) < size:
            raise BrokenFrame(f"{len(content):,} bytes where {size:,} were to come")
        return content

    def close(self) -> None:
        """Close the socket, which also ends a `read` that another thread is in."""
        with suppress(OSError):  # the other side was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self._socket.close()
