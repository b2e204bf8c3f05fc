"""Runs one command and ends, with it, every process that it started, however deep and in whatever session.

Flower starts processes that start processes in sessions of their own; signals to a group do not reach them, and neither
does anything else once their parents are gone. So each Flower process runs below a supervisor, a small script (standard
library only, started by its path). On Linux the supervisor adopts orphans, so that all that came of the command stays
in the tree below it. Elsewhere the rest ends itself: Flower's processes watch their parents.

The caller holds the other end of the supervisor's standard input: a byte asks the command to end in good order; when
the caller closes it, or is gone for whatever reason, everything is killed at once.
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
"""Seconds that the command has to end in good order."""
_PR_SET_CHILD_SUBREAPER = 36


def descendants(root: int) -> list[int]:
    """The processes below one, parents first; zombies are not counted."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone in the meantime
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
    """The command of a process, or nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def supervise(command: list[str]) -> int:
    """Run a command below this process until it ends or is no longer wanted; returns its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # only the caller ends us: nobody else would clean up
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
        while True:  # not every container has an init that buries the dead
            os.waitpid(-1, 0)
    return code


if __name__ == "__main__":
    sys.exit(abs(supervise(sys.argv[1:])))
