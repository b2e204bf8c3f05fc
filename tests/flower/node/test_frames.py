"""What node and child say to each other: it comes over as it was, and nothing else is taken for it."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.flower.node.frames import (
    MOST_HEAD,
    BrokenFrame,
    Deliver,
    FrameSocket,
    FromChild,
    Keep,
    Piece,
    Recall,
    Reply,
    ToChild,
)

Pair = tuple[FrameSocket[Any], FrameSocket[Any], socket.socket]


@contextmanager
def pair() -> Iterator[Pair]:
    """Two ends, and the socket of the first."""
    ours, theirs = socket.socketpair()
    ends = FrameSocket[Any](ours, ToChild), FrameSocket[Any](theirs, FromChild)
    yield (*ends, ours)
    for end in ends:
        end.close()


@given(st.text(), st.lists(st.binary(max_size=200_000), max_size=4))
def test_what_is_written_is_read(name: str, parts: list[bytes]) -> None:
    with pair() as (node, child, _):
        body = Reply(reply_to=name, pieces=[name, "b"], seconds=0.5)
        writer = Thread(target=node.write, args=(body, parts))
        writer.start()
        assert child.read() == (body, parts)
        writer.join()


def test_frames_follow_each_other_and_end_with_the_connection() -> None:
    with pair() as (node, child, _):
        node.write(Piece(identity="a"), [b"1"])
        node.write(Keep(name="b"), [memoryview(b"22")])
        node.write(Recall(name="c"))
        node.close()
        assert [child.read() for _ in range(4)] == [
            (Piece(identity="a"), [b"1"]),
            (Keep(name="b"), [b"22"]),
            (Recall(name="c"), []),
            None,
        ]


@pytest.mark.parametrize(
    "content",
    [
        struct.pack(">I", MOST_HEAD + 1),
        struct.pack(">I", 4) + b"nope",
        struct.pack(">I", 100) + b"too short",
        struct.pack(">I", 33) + b'{"body":{"type":"warm"},"sizes":[',
        struct.pack(">I", 36) + b'{"body":{"type":"warm"},"sizes":[-1]}'[:36],
        struct.pack(">I", 38) + b'{"body":{"type":"warm"},"sizes":[ 1 ]}',
        struct.pack(">I", 27) + b'{"body":{"type":"unknown"}}',
    ],
)
def test_what_is_no_frame_is_refused(content: bytes) -> None:
    with pair() as (_, child, raw):
        raw.sendall(content)
        raw.shutdown(socket.SHUT_WR)
        with pytest.raises(BrokenFrame):
            child.read()


def test_a_child_is_not_told_what_children_say() -> None:
    with pair() as (node, child, _):
        node.write(Deliver(message="a", pieces=[]))
        with pytest.raises(BrokenFrame):
            child.read()
