"""The fork server: imports what apps need once, forks a keeper and its app per run, and computes nothing itself.

It has one thread, so that forking is safe, and no secrets. It is started confined (see `sandbox`).

The keeper of a run waits for its app and ends every process of the run, when the app ends or the node closes the
connection. It depends on nobody else: a run goes on if the fork server is killed, and ends if the node is.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import Struct

from offbeat.flower.launch.supervisor import descendants
from offbeat.flower.node import sandbox
from offbeat.flower.node.sandbox import AppLimits

SWEEP_SECONDS = 10.0
"""How long to hunt for processes that start others faster than they are killed."""


class Fork(Struct, frozen=True, kw_only=True, tag="fork"):
    """Start the keeper of a run on the socket that is sent along."""

    number: int
    folder: str
    """Folder of the run, which it may write to."""
    directory: str
    """Working directory of the app."""


class Forked(Struct, frozen=True, kw_only=True, tag="forked"):
    """A keeper runs; it starts the app when the node has sent something."""

    number: int
    pid: int


class Ended(Struct, frozen=True, kw_only=True, tag="ended"):
    """All processes of a run have ended."""

    number: int
    why: str


ToForkServer = Fork
FromForkServer = Forked | Ended


def main(control: socket.socket, limits: str) -> None:
    """Serve the node at the other end of this socket until it closes it; `limits` are those of runs, as JSON."""
    of_runs = msgspec.json.decode(limits, type=AppLimits)
    wake = _wake_on_children()
    sandbox.adopt_orphans()
    _preload()
    keepers: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control.fileno(), wake], [], [])
        if wake in ready:
            _drain(wake)
            _report_ended(keepers, control)
        if control.fileno() in ready:
            packet, descriptors, _, _ = socket.recv_fds(control, 2**16, 1)
            if not packet:
                break
            order = msgspec.json.decode(packet, type=ToForkServer)
            pid = os.fork()
            if pid == 0:
                control.close()
                os.close(wake)
                _keep(socket.socket(fileno=descriptors[0]), order, of_runs)
            os.close(descriptors[0])
            keepers[pid] = order.number
            with contextlib.suppress(OSError):
                control.send(msgspec.json.encode(Forked(number=order.number, pid=pid)))


def _wake_on_children() -> int:
    """A file descriptor that becomes readable when a child ends. Other signals are ignored: the node ends us."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    wake, woken = os.pipe()
    for end in (wake, woken):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    return wake


def _drain(wake: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(wake, 4096)


def _preload() -> None:
    """Import what nearly every app needs. Compute nothing: torch would start threads, which a fork loses."""
    import flwr.clientapp  # noqa: F401
    import torch  # noqa: F401

    import offbeat.flower.device.app
    import offbeat.flower.node.child  # noqa: F401

    gc.collect()
    gc.freeze()  # so that garbage collection in a child leaves these pages shared


def _report_ended(keepers: dict[int, int], control: socket.socket) -> None:
    """Report runs that have ended, and how."""
    for pid, status in _reaped():
        number = keepers.pop(pid, None)
        if number is not None:
            _end_all_but(keepers)  # nothing, unless the keeper itself was killed
            with contextlib.suppress(OSError):
                control.send(msgspec.json.encode(Ended(number=number, why=_how(status))))


def _reaped() -> list[tuple[int, int]]:
    """Children that have ended, with their status."""
    found = []
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(ended)
    return found


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}"


# The keeper of a run --------------------------------------------------------------------------------------------------


def _keep(connection: socket.socket, order: Fork, limits: AppLimits) -> Any:
    """Start the app, wait for it or for the node, end all processes of the run; never returns."""
    code, scoped = 1, False
    try:
        wake = _wake_on_children()
        os.setsid()
        sandbox.confine_keeper(limits, order.folder)
        scoped = _signals_are_scoped()
        select.select([connection.fileno()], [], [])  # the node may first put us into a control group
        app = os.fork()
        if app == 0:
            os.close(wake)
            _become_app(connection, order, limits)
        code = _watch(app, connection, wake)
    except BaseException as error:
        _say(f"the keeper of an app ends: {type(error).__name__}: {error}")
    finally:
        if scoped:
            with contextlib.suppress(OSError):
                os.kill(-1, signal.SIGKILL)  # reaches only this keeper's Landlock domain, and no fork escapes it
        _end_all_but(())
        if code < 0:  # end as the app did, so that the fork server sees it
            with contextlib.suppress(OSError, ValueError):
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)


def _signals_are_scoped() -> bool:
    """Whether the kernel keeps our signals inside: it must refuse one to the fork server, a process of our own user."""
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return sandbox.landlock_version() >= sandbox.SCOPED
    except ProcessLookupError:
        pass
    return False


def _watch(app: int, connection: socket.socket, wake: int) -> int:
    """Wait until the app has ended, or kill it when the node has closed the connection; returns its exit code."""
    events = select.poll()
    events.register(connection.fileno(), 0)  # only POLLHUP: what the node sends is for the app
    events.register(wake, select.POLLIN)
    closed = False
    while True:
        if connection.fileno() in dict(events.poll()):
            events.unregister(connection.fileno())
            closed = True
            os.kill(app, signal.SIGKILL)
        _drain(wake)
        for pid, status in _reaped():
            if pid == app:
                closed = closed or connection.fileno() in dict(events.poll(0))
                return -signal.SIGKILL if closed else os.waitstatus_to_exitcode(status)


def _end_all_but(keepers: Collection[int]) -> None:
    """Kill all processes below this one but these and what is below them."""
    deadline = time.monotonic() + SWEEP_SECONDS
    while time.monotonic() < deadline:
        kept = {*keepers, *(pid for keeper in keepers for pid in descendants(keeper))}
        strays = [pid for pid in descendants(os.getpid()) if pid not in kept]
        if not strays:
            return
        for pid in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    _say(f"processes of an app could not be ended within {SWEEP_SECONDS:g} s")


def _become_app(connection: socket.socket, order: Fork, limits: AppLimits) -> Any:
    """Run an app until the node closes the connection; never returns."""
    from offbeat.flower.node import child

    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        sandbox.confine_app(limits, order.folder)
        with contextlib.suppress(OSError):  # another user may have no access
            os.chdir(order.directory)
        code = child.main(connection)
    except SystemExit as ended:  # `exit()` in the app
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException as error:
        _say(f"the app's process ends: {type(error).__name__}: {error}")
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _say(what: str) -> None:
    print(f"offbeat node: {what}", file=sys.stderr, flush=True)
