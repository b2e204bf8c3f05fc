"""A control group (cgroup v2) per run, where the node may make some: limits for all processes of a run together.

Without one, limits apply to each process (see `sandbox`). systemd gives a service a group of its own to divide with
`Delegate=yes`.
"""

import contextlib
import os
import time
from pathlib import Path

from offbeat.flower.node.sandbox import AppLimits

CONTROLLERS = ("memory", "pids")


def delegated(mounts: str | None = None, own: str | None = None) -> Path | None:
    """The folder in which this process can make groups with limits; None: there is none.

    A group with processes of its own cannot limit groups below it. So this process, if alone, moves into one below.
    """
    try:
        table = Path("/proc/mounts").read_text() if mounts is None else mounts
        groups = Path("/proc/self/cgroup").read_text() if own is None else own
        root = next(line.split()[1] for line in table.splitlines() if line.split()[2] == "cgroup2")
        path = next(line[3:] for line in groups.splitlines() if line.startswith("0::"))
        base = Path(root) / path.lstrip("/")
        if not set(CONTROLLERS) <= set((base / "cgroup.controllers").read_text().split()):
            return None
        if not set(CONTROLLERS) <= set((base / "cgroup.subtree_control").read_text().split()):
            if path != "/":
                if set((base / "cgroup.procs").read_text().split()) != {str(os.getpid())}:
                    return None
                (base / "node").mkdir(exist_ok=True)
                (base / "node" / "cgroup.procs").write_text(str(os.getpid()))
            (base / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in CONTROLLERS))
    except (OSError, StopIteration, IndexError):
        return None
    return base


class Group:
    """The control group of one run."""

    def __init__(self, base: Path, name: str, limits: AppLimits) -> None:
        self._folder = base / name
        self._folder.mkdir()
        if limits.memory_mb is not None:
            self._set("memory.max", limits.memory_mb * 2**20)
            self._set("memory.swap.max", 0)
            self._set("memory.oom.group", 1)
        if limits.processes is not None:
            self._set("pids.max", limits.processes)

    def _set(self, name: str, value: int) -> None:
        with contextlib.suppress(FileNotFoundError):  # a kernel without swap has no limit for it
            (self._folder / name).write_text(str(value))

    def add(self, pid: int) -> None:
        """Move a process into the group; what it starts stays in it."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def end(self) -> None:
        """Kill all processes of the group, and remove it."""
        with contextlib.suppress(OSError):  # Linux before 5.14 cannot kill a group
            (self._folder / "cgroup.kill").write_text("1")
        for _ in range(100):
            try:
                self._folder.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.01)  # its processes are still ending
