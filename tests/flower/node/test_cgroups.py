"""Control groups: which folder a node may use, what it writes there, and that a group ends as a whole."""

import os
import subprocess
from pathlib import Path

import pytest

from offbeat.flower.node.cgroups import Group, delegated
from offbeat.flower.node.sandbox import AppLimits


def hierarchy(folder: Path, group: str, *, processes: list[int], enabled: str = "") -> tuple[Path, Path | None]:
    """The files that a kernel shows of a group, as this process finds them."""
    base = folder / group
    base.mkdir(parents=True, exist_ok=True)
    (base / "cgroup.controllers").write_text("cpu memory pids\n")
    (base / "cgroup.subtree_control").write_text(enabled)
    (base / "cgroup.procs").write_text("\n".join(map(str, processes)))
    mounts = f"tmpfs /run tmpfs rw 0 0\ncgroup2 {folder} cgroup2 rw,nosuid 0 0\n"
    return base, delegated(mounts, f"1:name=systemd:/\n0::/{group}\n")


def test_a_node_that_is_alone_in_its_group_moves_down_and_enables_limits(tmp_path: Path) -> None:
    base, found = hierarchy(tmp_path, "node.service", processes=[os.getpid()])
    assert found == base
    assert (base / "node" / "cgroup.procs").read_text() == str(os.getpid())
    assert (base / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_a_group_that_is_shared_with_others_is_left_alone(tmp_path: Path) -> None:
    base, found = hierarchy(tmp_path, "session.scope", processes=[os.getpid(), os.getpid() + 1])
    assert found is None and not (base / "node").exists() and not (base / "cgroup.subtree_control").read_text()
    assert delegated("", "0::/") is None and delegated(f"cgroup2 {tmp_path} cgroup2 rw 0 0", "1:cpu:/") is None


def test_the_limits_of_a_run_are_those_of_its_group(tmp_path: Path) -> None:
    group = Group(tmp_path, "run", AppLimits(memory_mb=100, processes=20))
    written = {path.name: path.read_text() for path in (tmp_path / "run").iterdir()}
    assert written["memory.max"] == str(100 * 2**20) and written["pids.max"] == "20"
    assert (written["memory.swap.max"], written["memory.oom.group"]) == ("0", "1")
    group.add(7)
    assert (tmp_path / "run" / "cgroup.procs").read_text() == "7"


def real_hierarchy() -> Path | None:
    """The root of cgroup v2, if this process may make groups there."""
    for line in Path("/proc/mounts").read_text().splitlines() if Path("/proc/mounts").exists() else ():
        if line.split()[2] == "cgroup2" and os.access(line.split()[1], os.W_OK) and os.geteuid() == 0:
            return Path(line.split()[1])
    return None


def test_a_group_ends_with_all_its_processes() -> None:
    root, name = real_hierarchy(), f"offbeat-test-{os.getpid()}"
    if root is None:
        pytest.skip("no cgroup v2 here in which this user may make groups")
    try:
        group = Group(root, name, AppLimits())
    except OSError as error:
        pytest.skip(f"cgroup v2 is read-only here: {error}")
    with subprocess.Popen(["sleep", "600"]) as process:
        group.add(process.pid)
        group.end()
        assert process.wait(10.0) == -9
    assert not (root / name).exists()
