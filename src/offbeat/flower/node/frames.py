"""The protocol between a node and its children: frames over a socket, each a JSON record followed by raw bytes.

A frame is the length of its head, the head as JSON, and then the parts, whose sizes are in the head. Nothing is
unpickled, and parts are written and read without copies. A message is sent in pieces, one per frame, so that neither
side holds a large message twice.
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
"""Largest head, in bytes. Run configs may be long: an experiment is sent in one."""
MOST_PARTS = 2**31
"""Largest sum of a frame's parts, in bytes; Flower splits arrays into parts of 5 MB."""

STATE = "state"
"""The name under which the node stores an app's state for the next child of the run."""

T = TypeVar("T")


class BrokenFrame(Exception):
    """The bytes received are not a valid frame."""


# From the node to a child ---------------------------------------------------------------------------------------------


class OpenApp(Struct, frozen=True, kw_only=True, tag="open"):
    """Load this app. Its part, if any, is the state that an earlier child of the same run left."""

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
    """One object of a message that follows, as its part. Sent in both directions."""

    identity: str


class Deliver(Struct, frozen=True, kw_only=True, tag="deliver"):
    """A message for the app, whose pieces have been sent."""

    message: str
    pieces: list[str]


class Recalled(Struct, frozen=True, kw_only=True, tag="recalled"):
    """The bytes stored under a name, as its part; no part: there are none."""

    name: str


ToChild = OpenApp | Piece | Deliver | Recalled


# From a child to the node ---------------------------------------------------------------------------------------------


class Reply(Struct, frozen=True, kw_only=True, tag="reply"):
    """The app's reply, whose pieces have been sent. Its parts are the message without content and the object tree."""

    reply_to: str
    pieces: list[str]
    seconds: float
    """Duration of the app's call."""


class Keep(Struct, frozen=True, kw_only=True, tag="keep"):
    """Store the part under this name."""

    name: str


class Recall(Struct, frozen=True, kw_only=True, tag="recall"):
    """Request the bytes stored under this name."""

    name: str


class Warm(Struct, frozen=True, kw_only=True, tag="warm"):
    """The app is loaded."""


FromChild = Piece | Reply | Keep | Recall | Warm


class _Head(Struct, frozen=True, kw_only=True):
    body: msgspec.Raw
    sizes: list[int] = []


class FrameSocket(Generic[T]):
    """Writes frames from any thread, and reads frames of one type in one thread."""

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
        """The next frame; None at the end of the stream."""
        start = self._file.read(4)
        if len(start) < 4:
            return None
        (length,) = struct.unpack(">I", start)
        if length > MOST_HEAD:
            raise BrokenFrame(f"head of {length:,} bytes exceeds {MOST_HEAD:,}")
        try:
            head = msgspec.json.decode(self._exactly(length), type=_Head)
            body: T = self._incoming.decode(head.body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BrokenFrame(str(error)) from None
        if min(head.sizes, default=0) < 0 or sum(head.sizes) > MOST_PARTS:
            raise BrokenFrame(f"invalid sizes of parts: {head.sizes}")
        return body, [self._exactly(size) for size in head.sizes]

    def _exactly(self, size: int) -> bytes:
        content = self._file.read(size)
        if len(content) < size:
            raise BrokenFrame(f"expected {size:,} bytes, received {len(content):,}")
        return content

    def shutdown(self) -> None:
        """End the connection in both directions, also a `read` in another thread."""
        with suppress(OSError):  # the other side has closed it already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection and free the socket."""
        self.shutdown()
        self._file.close()
        self._socket.close()
