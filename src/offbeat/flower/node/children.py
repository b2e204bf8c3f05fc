"""The node's handles for its fork server and for its children, one per run.

The fork server starts with the node and imports what apps need. Children are forked from it, so that they start at once
and share the memory of the imports. It is started by exec, so that its memory holds no data
of the node, in particular not its key.
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
"""Environment variables that children do not inherit: systemd's directory of a service's secrets."""


class ForkServerGone(OffbeatError):
    """The fork server has ended."""


class ForkServer:
    """Starts and ends children and reports how they ended. Restarts itself if its process was ended."""

    def __init__(self, limits: Limits, environment: Mapping[str, str] | None = None) -> None:
        self._limits = limits
        self._environment = {name: value for name, value in (environment or os.environ).items() if name not in WITHHELD}
        self._lock = Lock()
        self._children: dict[int, Child] = {}
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Start the process, so that its imports are done when the first message arrives."""
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
        """Start a child that loads an app."""
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
                raise ForkServerGone(f"cannot start a process for the app: {error}") from None
            finally:
                theirs.close()
        child.open(opening, state)
        return child

    def kill(self, child: "Child") -> None:
        """End a child at once."""
        with contextlib.suppress(OSError):  # the fork server has ended, and its children with it
            if self._control is not None:
                self._control.send(msgspec.json.encode(Kill(number=child.number)))

    def _listen(self, control: socket.socket) -> None:
        """Receive reports of ended children; if the fork server itself ends, all children have ended."""
        while packet := _packet(control):
            ended = msgspec.json.decode(packet, type=FromForkServer)
            if (child := self._children.pop(ended.number, None)) is not None:
                child.ended(ended)
        for number in list(self._children):
            if (child := self._children.pop(number, None)) is not None:
                child.ended(Ended(number=number, why="its fork server has ended"))

    def close(self) -> None:
        """End the fork server and all children."""
        if self._control is not None:
            with contextlib.suppress(OSError):  # closing alone would not wake the thread that reads from it
                self._control.shutdown(socket.SHUT_RDWR)
            self._control.close()
        if self._process is not None:
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class Child:
    """A process that runs the app of one run. Its callbacks are called from other threads."""

    def __init__(
        self, number: int, connection: socket.socket, fork_server: ForkServer, on_frame: OnFrame, on_end: "OnEnd"
    ) -> None:
        self.number = number
        self._fork_server = fork_server
        self._on_frame = on_frame
        self._on_end = on_end
        self._frames: FrameSocket[Any] = FrameSocket(connection, FromChild)

    def open(self, opening: OpenApp, state: bytes | None) -> None:
        """Make the child load the app, and start to read its frames."""
        Thread(target=self._read, daemon=True).start()
        self.tell(opening, *([] if state is None else [state]))

    def tell(self, body: ToChild, *parts: bytes) -> None:
        """Send a frame to the child."""
        with contextlib.suppress(OSError):  # that it has ended is reported by the fork server
            self._frames.write(body, parts)

    def _read(self) -> None:
        try:
            while (frame := self._frames.read()) is not None:
                self._on_frame(self, *frame)
        except (BrokenFrame, OSError, IndexError, ValueError):  # ValueError: we have closed the socket
            self.kill()  # the app writes to our socket, omits parts, or ended within a frame

    def kill(self) -> None:
        """End the child at once."""
        self._fork_server.kill(self)

    def ended(self, how: Ended) -> None:
        """Handle the fork server's report that the child has ended."""
        self._on_end(self, how.why)
        self._frames.close()


OnEnd = Callable[[Child, str], None]


def _packet(control: socket.socket) -> bytes:
    try:
        return control.recv(2**16)
    except OSError:
        return b""
