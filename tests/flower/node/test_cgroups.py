"""Control groups: which folder a node may use, what it writes there, and that a group ends as a whole."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from offbeat.flower.node.cgroups import Group, delegated
from offbeat.flower.node.sandbox import AppLimits


def hierarchy(folder: Path, group: str, *, processes: list[int], enabled: str = "") -> tuple[Path, list[Path] | None]:
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
    assert found == [base]
    assert (base / "node" / "cgroup.procs").read_text() == str(os.getpid())
    assert (base / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_a_group_that_is_shared_with_others_is_left_alone(tmp_path: Path) -> None:
    base, found = hierarchy(tmp_path, "session.scope", processes=[os.getpid(), os.getpid() + 1])
    assert found is None and not (base / "node").exists() and not (base / "cgroup.subtree_control").read_text()
    assert (
        delegated("", "0::/") is None
        and delegated("cgroup", "0") is None
        and delegated(f"cgroup2 {tmp_path} cgroup2 rw 0 0", "1:cpu:/") is None
    )


def test_the_limits_of_a_run_are_those_of_its_group(tmp_path: Path) -> None:
    group = Group([tmp_path], "run", AppLimits(memory_mb=100, processes=20))
    written = {path.name: path.read_text() for path in (tmp_path / "run").iterdir()}
    assert written["memory.max"] == str(100 * 2**20) and written["pids.max"] == "20"
    assert (written["memory.swap.max"], written["memory.oom.group"]) == ("0", "1")
    group.add(7)
    assert (tmp_path / "run" / "cgroup.procs").read_text() == "7"


def test_version_1_has_a_folder_for_each_controller(tmp_path: Path) -> None:
    for folder in ("memory/a", "pids/b"):
        (tmp_path / folder).mkdir(parents=True)
    mounts = [f"cgroup {tmp_path}/{each} cgroup rw,{each} 0 0" for each in ("memory", "pids")]
    v2 = f"cgroup2 {tmp_path} cgroup2 rw 0 0"
    (tmp_path / "cgroup.controllers").write_text("hugetlb")
    found = delegated("\n".join([v2, *mounts]), "4:memory:/a\n8:cpu,pids:/b\n0::/")
    assert found == [tmp_path / "memory" / "a", tmp_path / "pids" / "b"]
    assert delegated("\n".join([v2, mounts[0]]), "4:memory:/a\n8:pids:/b\n0::/") is None, "one is not mounted"
    Group(found, "run", AppLimits(memory_mb=100, processes=20)).add(7)
    written = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.glob("*/*/run/*")}
    limits = {"memory.limit_in_bytes": "104857600", "memory.memsw.limit_in_bytes": "104857600", "cgroup.procs": "7"}
    assert written == {f"memory/a/run/{name}": text for name, text in limits.items()} | {
        "pids/b/run/pids.max": "20",
        "pids/b/run/cgroup.procs": "7",
    }


# With the kernel ------------------------------------------------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[Group]:
    """A real group for 64 MB and 4 processes."""
    bases, name = delegated(), f"offbeat-{os.getpid()}-test"
    if bases is None:
        pytest.skip("no control groups with limits: that takes root, or a service with Delegate=yes")
    made = Group(bases, name, AppLimits(memory_mb=64, processes=4))
    yield made
    made.end()
    assert not any((base / name).exists() for base in bases)


def inside(group: Group, code: str) -> "subprocess.Popen[str]":
    """A Python process that runs this code once it is in the group."""
    process = subprocess.Popen([sys.executable, "-ISc", f"input()\n{code}"], stdin=-1, stdout=-1, stderr=-3, text=True)
    group.add(process.pid)
    assert process.stdin is not None
    print(file=process.stdin, flush=True)
    return process


FORK = """
import os, time
for number in range(9):
    try:
        if os.fork() == 0:
            time.sleep(600)
    except BlockingIOError:
        print(number, flush=True)
        time.sleep(600)
"""


def test_a_group_ends_with_all_its_processes_and_there_are_no_more_than_allowed(group: Group) -> None:
    with inside(group, FORK) as process:
        assert process.stdout is not None and process.stdout.readline() == "3\n", "and the first one"
        group.end()
        assert process.wait(10.0) == -9 and process.stdout.read() == "", "all who could write to it are gone"


def test_groups_of_nodes_that_were_killed_are_removed(group: Group) -> None:
    bases = delegated() or []
    Group(bases, f"offbeat-{2**22 + 1}-1", AppLimits())  # no process has this number
    assert delegated() == bases
    names = {path.name for base in bases for path in base.glob("offbeat-*")}
    assert f"offbeat-{2**22 + 1}-1" not in names and f"offbeat-{os.getpid()}-test" in names


@pytest.mark.parametrize("megabytes", [16, 200])
def test_the_memory_of_a_group_counts_what_is_shared(group: Group, megabytes: int) -> None:
    """Which RLIMIT_DATA does not."""
    fill = f"import mmap; m = mmap.mmap(-1, {megabytes} << 20); [m.write(bytes(1 << 20)) for _ in range({megabytes})]"
    with inside(group, fill + "; print('fits')") as process:
        assert (process.communicate()[0], process.returncode) == (("fits\n", 0) if megabytes < 64 else ("", -9))
