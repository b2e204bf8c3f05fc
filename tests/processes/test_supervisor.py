"""The supervisor: nothing that a command started outlives it, however well it hides."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from offbeat.flower.launch import supervisor

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="adopting orphans is Linux's"),
]

FAMILY = """
import os, subprocess, sys, time
from pathlib import Path
child = "import subprocess, sys, time; subprocess.Popen(['sleep', '600']); time.sleep({})"
subprocess.Popen([sys.executable, "-c", child.format(600)], start_new_session=True)
subprocess.Popen([sys.executable, "-c", child.format(0)], start_new_session=True).wait()  # leaves an orphan
Path(sys.argv[1]).touch()
while not Path(sys.argv[2]).exists():
    time.sleep(0.05)
"""


def start(tmp_path: Path) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    """A supervisor over a command with a child, a grandchild and an orphan, all in sessions of their own.

    The command ends when there is a file `end`.
    """
    ready = tmp_path / "ready"
    command = [sys.executable, "-I", supervisor.__file__, sys.executable, "-c", FAMILY, str(ready)]
    command.append(str(tmp_path / "end"))
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    wait_for(ready)
    return process, family_of(process, 4)


def family_of(process: subprocess.Popen[bytes], count: int) -> list[psutil.Process]:
    """All below a process, as soon as there are so many: the last of them may still be starting."""
    family: list[psutil.Process] = []
    deadline = time.monotonic() + 30.0
    while len(family) != count:
        assert time.monotonic() < deadline, f"{len(family)} processes in place of {count}"
        time.sleep(0.02)
        family = psutil.Process(process.pid).children(recursive=True)
    return family


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30.0
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.02)


def gone(family: list[psutil.Process]) -> bool:
    return not any(process.is_running() for process in family)


def test_all_are_killed_when_the_caller_lets_go(tmp_path: Path) -> None:
    process, family = start(tmp_path)
    assert process.stdin is not None
    process.stdin.close()
    process.wait(10)
    assert gone(family)


def test_all_are_killed_when_the_caller_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    command = [sys.executable, "-I", supervisor.__file__, sys.executable, "-c", FAMILY, str(ready)]
    command.append(str(tmp_path / "end"))
    script = f"import subprocess; subprocess.Popen({command!r}, stdin=subprocess.PIPE).wait()"
    caller = subprocess.Popen([sys.executable, "-c", script])
    wait_for(ready)
    family = family_of(caller, 5)
    caller.kill()
    caller.wait()
    psutil.wait_procs(family, timeout=10)
    assert gone(family)


def test_the_rest_ends_with_the_command(tmp_path: Path) -> None:
    process, family = start(tmp_path)
    (tmp_path / "end").touch()
    assert process.stdin is not None
    assert process.wait(10) == 0
    process.stdin.close()
    assert gone(family)


def test_a_byte_asks_for_an_end_in_good_order() -> None:
    polite = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('up', flush=True); time.sleep(99)"
    )
    command = [sys.executable, "-I", supervisor.__file__, sys.executable, "-c", polite]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.stdin.write(b"x")
    process.stdin.flush()
    assert process.wait(10) == 7
    process.stdin.close()
    process.stdout.close()
