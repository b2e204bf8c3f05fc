"""A control group per run, where the node may make some: limits for all processes of a run together.

Without one, limits apply to each process (see `sandbox`). Version 2 of control groups has one folder per group;
version 1, which many edge devices still have, one per controller. systemd lets a service divide its own group with
`Delegate=yes`.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

from offbeat.flower.node.sandbox import AppLimits

CONTROLLERS = ("memory", "pids")


def delegated(mounts: str | None = None, own: str | None = None) -> list[Path] | None:
    """The folders in which this process can make groups with limits: one, or in version 1 one per controller."""
    try:
        table = Path("/proc/mounts").read_text() if mounts is None else mounts
        groups = Path("/proc/self/cgroup").read_text() if own is None else own
        mounted = [line.split() for line in table.splitlines()]
        path_of = {line.split(":")[1]: line.split(":", 2)[2].lstrip("/") for line in groups.splitlines()}
        found = _version_2(mounted, path_of) or _version_1(mounted, path_of)
    except (OSError, IndexError):
        return None
    for base in found or ():
        _remove_abandoned(base)
    return found


def _remove_abandoned(base: Path) -> None:
    """Remove groups of nodes that were killed; the kernel keeps those that still have processes."""
    for folder in base.glob("offbeat-*-*"):
        if not Path("/proc", folder.name.split("-")[1]).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _version_2(mounted: list[list[str]], path_of: dict[str, str]) -> list[Path] | None:
    """The own group. One with processes cannot limit those below it: this process, if alone, moves into one below."""
    root = next((Path(line[1]) for line in mounted if line[2] == "cgroup2"), None)
    if root is None or "" not in path_of:
        return None
    base = root / path_of[""]
    if not set(CONTROLLERS) <= set((base / "cgroup.controllers").read_text().split()):
        return None
    if not set(CONTROLLERS) <= set((base / "cgroup.subtree_control").read_text().split()):
        if base != root:
            if set((base / "cgroup.procs").read_text().split()) != {str(os.getpid())}:
                return None
            (base / "node").mkdir(exist_ok=True)
            (base / "node" / "cgroup.procs").write_text(str(os.getpid()))
        (base / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in CONTROLLERS))
    return [base]


def _version_1(mounted: list[list[str]], path_of: dict[str, str]) -> list[Path] | None:
    found = []
    for controller in CONTROLLERS:
        root = next((line[1] for line in mounted if line[2] == "cgroup" and controller in line[3].split(",")), None)
        path = next((path for names, path in path_of.items() if controller in names.split(",")), None)
        if root is None or path is None or not os.access(Path(root) / path, os.W_OK):
            return None
        found.append(Path(root) / path)
    return found


class Group:
    """The control group of one run."""

    def __init__(self, bases: list[Path], name: str, limits: AppLimits) -> None:
        self._folders = [base / name for base in bases]
        for folder in self._folders:
            folder.mkdir()
        if limits.memory_mb is not None and len(bases) == 1:
            self._set("memory.max", limits.memory_mb * 2**20)
            self._set("memory.swap.max", 0)
            self._set("memory.oom.group", 1)
        elif limits.memory_mb is not None:
            self._set("memory.limit_in_bytes", limits.memory_mb * 2**20)
            self._set("memory.memsw.limit_in_bytes", limits.memory_mb * 2**20)  # with swap
        if limits.processes is not None:
            self._set("pids.max", limits.processes)

    def _set(self, name: str, value: int) -> None:
        folder = self._folders[0] if name.startswith("memory") else self._folders[-1]
        with contextlib.suppress(FileNotFoundError, PermissionError):  # a kernel without swap has no limit for it
            (folder / name).write_text(str(value))

    def add(self, pid: int) -> None:
        """Move a process into the group; what it starts stays in it."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def end(self) -> None:
        """Kill all processes of the group, and remove it."""
        if len(self._folders) > 1:
            self._set("pids.max", 0)  # no fork escapes
        for _ in range(100):
            self._kill()
            for folder in self._folders:
                with contextlib.suppress(OSError):  # removed already, or its processes are still ending
                    folder.rmdir()
            if not any(folder.exists() for folder in self._folders):
                return
            time.sleep(0.01)

    def _kill(self) -> None:
        with contextlib.suppress(OSError):  # only version 2, from Linux 5.14 on, can kill a group as a whole
            (self._folders[0] / "cgroup.kill").write_text("1")
            return
        with contextlib.suppress(OSError):
            for pid in (self._folders[-1] / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
