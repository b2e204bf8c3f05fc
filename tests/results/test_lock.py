"""One writer per directory, shown with processes that really compete for one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from offbeat.cli import main
from offbeat.core.errors import InvalidInput
from offbeat.results.lock import LOCK_FILE, DirectoryLock, check_unlocked
from offbeat.training.processes import process_context

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


@pytest.mark.parametrize("command", [["run"], ["compare", "--algorithms", "fedbuff", "--seeds", "1"]], ids=str)
def test_a_second_process_is_refused_whatever_it_asks_for(
    tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.toml").write_text(EXPERIMENT.format(time=1e6))
    words = [command[0], "e.toml", *command[1:], "--out", "out"]
    first = subprocess.Popen([*OFFBEAT, *words], stdout=-3, stderr=-3, start_new_session=True)
    try:
        while first.poll() is None and not list(Path("out").rglob("latest.safetensors")):
            time.sleep(0.02)
        os.killpg(first.pid, signal.SIGSTOP)  # it need not compute while it holds the directory
        config = Path("out", "config.toml").read_bytes()
        for how in ("--overwrite", "--resume"):
            monkeypatch.setattr(sys, "argv", ["offbeat", *words, how, "--set", "seed=0"])
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == 2  # and the sentence is about the directory, not only about a run in it
            assert "another process is writing to out: " in " ".join(capsys.readouterr().err.split())
        assert Path("out", "config.toml").read_bytes() == config
        assert first.poll() is None
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()


def test_of_two_processes_that_begin_together_one_writes_and_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.toml").write_text(EXPERIMENT.format(time=300.0))
    both = []
    for seed in (0, 1):  # processes of the fork server begin with our directory and our arguments, within milliseconds
        monkeypatch.setattr(sys, "argv", ["offbeat", "run", "e.toml", "--out", "out", "--set", f"seed={seed}"])
        both.append(process_context("offbeat.cli").Process(target=main))
        both[-1].start()
    for process in both:
        process.join()
    assert sorted(process.exitcode or 0 for process in both) == [0, 2]
    winner = [process.exitcode for process in both].index(0)
    assert f"seed = {winner}" in Path("out", "config.toml").read_text()
    assert f'"seed": {winner}' in Path("out", "summary.json").read_text()


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
