"""The node's handles for its fork server and for its children, one per run.

The fork server starts with the node and imports what apps need. Children are forked from it, so that they start at once
and share the memory of the imports. It is started by exec and confined before that, so that it holds no data of the
node, in particular not its key, and imports nothing that an app could have written.
"""

import contextlib
import dataclasses
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import msgspec

from offbeat.core.errors import OffbeatError
from offbeat.flower.node import sandbox
from offbeat.flower.node.cgroups import Group, delegated
from offbeat.flower.node.fork_server import Ended, Fork, Forked, FromForkServer
from offbeat.flower.node.frames import BrokenFrame, FrameSocket, FromChild, OpenApp, ToChild
from offbeat.flower.node.sandbox import AppLimits

OnFrame = Callable[["Child", FromChild, list[bytes]], None]
WITHHELD = ("CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR")
"""Environment variables that children do not inherit: ways to secrets and to services of the node's user."""
START = (
    "import socket, sys; sys.path[:] = sys.argv[3:]; from offbeat.flower.node import fork_server; "
    "fork_server.main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])"
)
"""The fork server's program. Python's option -I leaves the working directory and PYTHONPATH out."""
START_SECONDS = 120.0
"""Timeout until the fork server has imported everything and forks."""


class ForkServerGone(OffbeatError):
    """The fork server has ended."""


class ForkServer:
    """Starts children and reports how they ended. Restarts itself if its process was ended.

    `folder` is where each run gets a folder of its own, which its app may write to and which is deleted with it.
    """

    def __init__(self, limits: AppLimits, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._limits = dataclasses.replace(limits, readable=[*limits.readable, *sandbox.needed_by_python()])
        self._folder = folder
        self._environment = {name: value for name, value in (environment or os.environ).items() if name not in WITHHELD}
        self._lock = Lock()
        self._children: dict[int, Child] = {}
        self._count = 0
        self._groups = delegated() if limits.memory_mb or limits.processes else None
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Start the process, so that its imports are done when the first message arrives."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        whole = dataclasses.replace(self._limits, writable=[*self._limits.writable, str(self._folder)])
        own, of_runs = (msgspec.json.encode(limits).decode() for limits in (whole, self._limits))
        python = [sys.executable, "-I"]
        server = [*python, "-c", START, str(theirs.fileno()), of_runs, *sandbox.import_path()]
        self._process = subprocess.Popen(
            [*python, "-S", sandbox.__file__, own, *server],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=self._environment | {"HOME": str(self._folder), "TMPDIR": str(self._folder)},
            cwd="/",
        )
        theirs.close()
        self._control = ours
        self._children = {}  # those of an earlier process belong to its thread
        Thread(target=self._listen, args=(ours, self._children), daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether the fork server runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id; 0 before it was started."""
        return 0 if self._process is None else self._process.pid

    def child(self, opening: OpenApp, state: bytes | None, on_frame: OnFrame, on_end: "OnEnd") -> "Child":
        """Start a child that loads an app."""
        with self._lock:
            if not self.alive:
                self.start()
            self._count += 1
            ours, theirs = socket.socketpair()
            try:
                child = Child(self._count, ours, on_frame, on_end, self._new_folder(), self._new_group())
                self._children[child.number] = child
                order = Fork(number=child.number, folder=str(child.folder), directory=str(Path.cwd()))
                assert self._control is not None
                socket.send_fds(self._control, [msgspec.json.encode(order)], [theirs.fileno()])
            except OSError as error:
                self._children.pop(self._count, None)
                raise ForkServerGone(f"cannot start a process for the app: {error}") from None
            finally:
                theirs.close()
        if child.group is not None and not child.grouped.wait(START_SECONDS):
            child.kill()
            raise ForkServerGone(f"cannot start a process for the app within {START_SECONDS:g} s")
        child.open(opening, state)
        return child

    def _new_folder(self) -> Path:
        folder = self._folder / f"run-{self._count}"
        folder.mkdir(mode=0o700)
        if self._limits.user is not None:
            shutil.chown(folder, self._limits.user)
        return folder

    def _new_group(self) -> Group | None:
        if self._groups is None:
            return None
        return Group(self._groups, f"offbeat-{os.getpid()}-{self._count}", self._limits)

    def _listen(self, control: socket.socket, children: "dict[int, Child]") -> None:
        """Receive reports of the fork server. If it is killed, its children go on; they end with their connections."""
        while packet := _packet(control):
            match msgspec.json.decode(packet, type=FromForkServer):
                case Forked(number=number, pid=pid):
                    if (child := children.get(number)) is not None and child.group is not None:
                        with contextlib.suppress(OSError):  # it has ended already
                            child.group.add(pid)
                        child.grouped.set()
                case Ended(number=number) as ended:
                    if (child := children.pop(number, None)) is not None:
                        child.ended(ended)
        control.close()
        while children:
            _, child = children.popitem()
            child.grouped.set()
            child.outlive()

    def close(self) -> None:
        """End the fork server and all children."""
        for child in list(self._children.values()):
            child.kill()
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
        shutil.rmtree(self._folder, ignore_errors=True)


class Child:
    """A process that runs the app of one run. Its callbacks are called from other threads."""

    def __init__(
        self,
        number: int,
        connection: socket.socket,
        on_frame: OnFrame,
        on_end: "OnEnd",
        folder: Path | None = None,
        group: Group | None = None,
    ) -> None:
        self.number = number
        self.folder = folder
        self.group = group
        self.grouped = Event()
        """Set as soon as the child is in its control group."""
        self._orphaned = Event()
        self._closed = Event()
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
        self._closed.set()
        if self._orphaned.is_set():
            self.ended(Ended(number=self.number, why="its connection was closed"))

    def kill(self) -> None:
        """End the child and everything that it has started at once: its keeper sees that the connection is closed."""
        self._frames.shutdown()

    def outlive(self) -> None:
        """Watch the connection, since the fork server, which reports the end of children, has ended itself."""
        self._orphaned.set()
        if self._closed.is_set():
            self.ended(Ended(number=self.number, why="its connection was closed"))

    def ended(self, how: Ended) -> None:
        """Handle the end of the child; further calls have no effect."""
        if self.group is not None:
            self.group.end()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._on_end(self, how.why)
        self._frames.close()


OnEnd = Callable[[Child, str], None]


def _packet(control: socket.socket) -> bytes:
    try:
        return control.recv(2**16)
    except OSError:
        return b""
