"""Runs one command and ends every process below it together with it.

Flower's processes start further processes in sessions of their own, which signals to a process group do not reach. So
each Flower process runs below a supervisor: this script, started by its path, with the standard library only. On Linux
the supervisor adopts orphans, so that all descendants of the command stay below it. On other systems, Flower's
processes watch their parents and end themselves.

The caller holds the other end of the supervisor's standard input: a byte asks the command to terminate; when the caller
closes it or ends, everything is killed at once.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from math import inf
from pathlib import Path

GRACE = 10.0
"""Seconds that the command has to terminate before it is killed."""
_PR_SET_CHILD_SUBREAPER = 36


def descendants(root: int) -> list[int]:
    """The descendants of a process, parents first, without zombies."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended in the meantime
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(entry.parent.name))
    found: list[int] = []
    level = children.get(root, [])
    while level:
        found += level
        level = [child for parent in level for child in children.get(parent, [])]
    return found


def command_line(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def supervise(command: list[str]) -> int:
    """Run a command until it ends or the caller ends it, kill its descendants, and return its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # only the caller ends this process, so that it can clean up
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    deadline = inf
    while child.poll() is None and time.monotonic() < deadline:
        if select.select([0], [], [], 0.1)[0]:
            if not os.read(0, 1):
                break
            child.terminate()
            deadline = time.monotonic() + GRACE
    child.kill()
    code = child.wait()
    while left := descendants(os.getpid()):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    with contextlib.suppress(ChildProcessError):
        while True:  # reap zombies: not every container has an init that does
            os.waitpid(-1, 0)
    return code


if __name__ == "__main__":
    sys.exit(abs(supervise(sys.argv[1:])))
