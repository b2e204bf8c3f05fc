"""One writer per directory, shown with processes that really compete for one."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from offbeat.core.errors import InvalidInput
from offbeat.results.lock import LOCK_FILE, DirectoryLock, check_unlocked

EXPERIMENT = """
[stop]
time = {time}
[data]
name = "digits"
devices = 6
[model]
name = "logistic"
[algorithm]
name = "fedbuff"
buffer = 2
concurrency = 3
[execution]
checkpoint_seconds = 0.2
"""
OFFBEAT = [sys.executable, "-c", "import sys; from offbeat.cli import main; sys.argv[0] = 'offbeat'; main()"]


def begin(folder: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*OFFBEAT, *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def complaint(process: "subprocess.Popen[str]") -> str:
    return " ".join(process.communicate()[1].split())


@pytest.mark.parametrize("command", [["run"], ["compare", "--algorithms", "fedbuff", "--seeds", "1"]], ids=str)
def test_a_second_process_is_refused_whatever_it_asks_for(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "e.toml").write_text(EXPERIMENT.format(time=1e6))
    first = begin(tmp_path, command[0], "e.toml", *command[1:], "--out", "out")
    try:
        while first.poll() is None and not list((tmp_path / "out").rglob("latest.safetensors")):
            time.sleep(0.02)
        config = (tmp_path / "out" / "config.toml").read_bytes()
        for how in ("--overwrite", "--resume"):
            second = begin(tmp_path, command[0], "e.toml", *command[1:], "--out", "out", how, "--set", "seed=0")
            assert "another process is writing to out: " in complaint(second)  # not only to a run in it
            assert second.returncode == 2
        assert (tmp_path / "out" / "config.toml").read_bytes() == config
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate()


def test_of_two_processes_that_begin_together_one_writes_and_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(EXPERIMENT.format(time=2000.0))
    both = [begin(tmp_path, "run", "e.toml", "--out", "out", "--set", f"seed={seed}") for seed in (0, 1)]
    said = [complaint(process) for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], said
    winner = [process.returncode for process in both].index(0)
    assert f"seed = {winner}" in (tmp_path / "out" / "config.toml").read_text()
    assert f'"seed": {winner}' in (tmp_path / "out" / "summary.json").read_text()


def test_a_lock_ends_with_its_owner_however_that_ends(tmp_path: Path) -> None:
    take = (
        "from pathlib import Path; from offbeat.results.lock import DirectoryLock; "
        "DirectoryLock(Path('.')).take(); print(flush=True); input()"
    )
    owner = subprocess.Popen([sys.executable, "-c", take], stdin=-1, stdout=-1, cwd=tmp_path)
    assert owner.stdout is not None
    owner.stdout.readline()
    with pytest.raises(InvalidInput, match="another process is writing"):
        check_unlocked(tmp_path)
    owner.kill()
    owner.communicate()
    check_unlocked(tmp_path)
    with DirectoryLock(tmp_path), pytest.raises(InvalidInput, match="another process is writing"):
        DirectoryLock(tmp_path).take()
    assert not (tmp_path / LOCK_FILE).exists()


def test_a_lock_on_a_file_that_its_last_owner_removed_does_not_count(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path), DirectoryLock(tmp_path)
    first.take()
    (tmp_path / LOCK_FILE).unlink()  # as its owner does at its end
    second.take()
    assert second._is_current(second._file or 0)
    assert not first._is_current(first._file or 0)
