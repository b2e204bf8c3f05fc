"""The fork server: imports what apps need once, forks a child per run, and computes nothing itself.

It has one thread, so that forking is safe, and no secrets. When its node ends, it kills its children and ends.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
from typing import Any

import msgspec
from msgspec import Struct

from offbeat.flower.node import sandbox
from offbeat.flower.node.sandbox import Limits


class Fork(Struct, frozen=True, kw_only=True, tag="fork"):
    """Start a child on the socket that is sent along."""

    number: int
    limits: Limits


class Kill(Struct, frozen=True, kw_only=True, tag="kill"):
    """End a child at once."""

    number: int


class Ended(Struct, frozen=True, kw_only=True, tag="ended"):
    """A child has ended."""

    number: int
    why: str


ToForkServer = Fork | Kill
FromForkServer = Ended


def main(control: socket.socket) -> None:
    """Serve the node at the other end of this socket until it closes it."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # only the node ends this process: it may still wait for replies
    wake, woken = os.pipe()
    for end in (wake, woken):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    _preload()
    children: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control.fileno(), wake], [], [])
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
            _report_ended(children, control)
        if control.fileno() in ready:
            packet, descriptors, _, _ = socket.recv_fds(control, 2**16, 1)
            if not packet:
                break
            match msgspec.json.decode(packet, type=ToForkServer):
                case Fork(number=number, limits=limits):
                    pid = os.fork()
                    if pid == 0:
                        os.close(wake)
                        os.close(woken)
                        control.close()
                        _become_child(socket.socket(fileno=descriptors[0]), limits)
                    os.close(descriptors[0])
                    children[pid] = number
                case Kill(number=number):
                    for pid in [pid for pid, each in children.items() if each == number]:
                        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _preload() -> None:
    """Import what nearly every app needs. Compute nothing: torch would start threads, which a fork loses."""
    import torch  # noqa: F401

    import offbeat.flower.device.app
    import offbeat.flower.node.child  # noqa: F401

    gc.collect()
    gc.freeze()  # so that garbage collection in a child leaves these pages shared


def _report_ended(children: dict[int, int], control: socket.socket) -> None:
    """Report children that have ended, and how."""
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            break
        number = children.pop(pid, None)
        if number is not None:
            with contextlib.suppress(OSError):
                control.send(msgspec.json.encode(Ended(number=number, why=_how(status))))


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}"


def _become_child(connection: socket.socket, limits: Limits) -> Any:
    """Run an app until the node closes the connection; never returns."""
    from offbeat.flower.node import child

    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        sandbox.apply(limits)
        code = child.main(connection)
    except SystemExit as ended:  # `exit()` in the app
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException as error:
        print(f"offbeat node: the app's process ends: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
