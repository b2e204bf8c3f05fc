"""The node's side of its children: a process that starts them, and one child for each run.

The first, the fork server, is started when the node is and imports what apps need; children are forked from it, so that
they are there at once and share the memory of what was imported. It is started by exec, so that nothing of the node,
and so no key, is in its memory.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from threading import Lock, Thread
from typing import Any

import msgspec

from offbeat.core.errors import OffbeatError
from offbeat.flower.node.fork_server import Ended, Fork, FromForkServer, Kill
from offbeat.flower.node.frames import BrokenFrame, FrameSocket, FromChild, OpenApp, ToChild
from offbeat.flower.node.sandbox import Limits

OnFrame = Callable[["Child", FromChild, list[bytes]], None]
WITHHELD = ("CREDENTIALS_DIRECTORY",)
"""Environment variables that children do not get: where systemd puts a service's secrets."""


class ForkServerGone(OffbeatError):
    """The process that starts children has ended."""


class ForkServer:
    """Starts children, ends them, and says how they ended. Starts anew by itself if it was ended."""

    def __init__(self, limits: Limits, environment: Mapping[str, str] | None = None) -> None:
        self._limits = limits
        self._environment = {name: value for name, value in (environment or os.environ).items() if name not in WITHHELD}
        self._lock = Lock()
        self._children: dict[int, Child] = {}
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Start it, so that it is warm when the first message comes."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "offbeat.flower.node.fork_server", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=self._environment
        )
        theirs.close()
        self._control = ours
        Thread(target=self._listen, args=(ours,), daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether the fork server runs."""
        return self._process is not None and self._process.poll() is None

    def child(self, opening: OpenApp, state: bytes | None, on_frame: OnFrame, on_end: "OnEnd") -> "Child":
        """A new child that loads an app."""
        with self._lock:
            if not self.alive:
                self.start()
            self._count += 1
            ours, theirs = socket.socketpair()
            child = Child(self._count, ours, self, on_frame, on_end)
            self._children[child.number] = child
            assert self._control is not None
            try:
                request = msgspec.json.encode(Fork(number=child.number, limits=self._limits))
                socket.send_fds(self._control, [request], [theirs.fileno()])
            except OSError as error:
                raise ForkServerGone(f"no process can be started for the app: {error}") from None
            finally:
                theirs.close()
        child.open(opening, state)
        return child

    def kill(self, child: "Child") -> None:
        """End a child at once."""
        with contextlib.suppress(OSError):  # gone, and its children with it
            if self._control is not None:
                self._control.send(msgspec.json.encode(Kill(number=child.number)))

    def _listen(self, control: socket.socket) -> None:
        """Hear how children end; if the fork server itself ends, so have they."""
        while packet := _packet(control):
            ended = msgspec.json.decode(packet, type=FromForkServer)
            if (child := self._children.pop(ended.number, None)) is not None:
                child.ended(ended)
        for number in list(self._children):
            if (child := self._children.pop(number, None)) is not None:
                child.ended(Ended(number=number, why="the process that had started it was ended"))

    def close(self) -> None:
        """End it and all children."""
        if self._control is not None:
            with contextlib.suppress(OSError):  # a thread waits on it: closing alone would not be heard
                self._control.shutdown(socket.SHUT_RDWR)
            self._control.close()
        if self._process is not None:
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class Child:
    """A process that runs the app of one run. Frames and the news of its end come from other threads."""

    def __init__(
        self, number: int, connection: socket.socket, fork_server: ForkServer, on_frame: OnFrame, on_end: "OnEnd"
    ) -> None:
        self.number = number
        self._fork_server = fork_server
        self._on_frame = on_frame
        self._on_end = on_end
        self._frames: FrameSocket[Any] = FrameSocket(connection, FromChild)

    def open(self, opening: OpenApp, state: bytes | None) -> None:
        """Have it load the app, and listen to it from now on."""
        Thread(target=self._read, daemon=True).start()
        self.tell(opening, *([] if state is None else [state]))

    def tell(self, body: ToChild, *parts: bytes) -> None:
        """Send it a frame."""
        with contextlib.suppress(OSError):  # that it has ended is heard elsewhere
            self._frames.write(body, parts)

    def _read(self) -> None:
        try:
            while (frame := self._frames.read()) is not None:
                self._on_frame(self, *frame)
        except (BrokenFrame, OSError, IndexError, ValueError):  # the last if we have closed the socket ourselves
            self.kill()  # an app that writes into our socket, leaves parts out, or ends in the midst of a frame

    def kill(self) -> None:
        """End it at once."""
        self._fork_server.kill(self)

    def ended(self, how: Ended) -> None:
        """Take note that the child has ended, as the fork server says."""
        self._on_end(self, how.why)
        self._frames.close()


OnEnd = Callable[[Child, str], None]


def _packet(control: socket.socket) -> bytes:
    try:
        return control.recv(2**16)
    except OSError:
        return b""
