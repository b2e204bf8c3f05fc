"""`offbeat local-cluster` and `deploy` as a user meets them: Ctrl-C, or the end of a job, in the middle of a run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from offbeat.flower.launch.local_cluster import Cluster

pytestmark = pytest.mark.processes

EXPERIMENT = """
[stop]
time = 100000.0
[data]
name = "digits"
devices = 2
[model]
name = "mlp"
[algorithm]
name = "fedavg"
cohort = 2
[evaluation]
every_versions = 1
"""
HEARD = "import signal; signal.signal(2, signal.default_int_handler); signal.signal(1, signal.SIG_DFL); "
"""Also below a shell that ignores Ctrl-C, and below `nohup`."""


def interrupted(folder: Path, number: signal.Signals, *arguments: str) -> str:
    """What a command says that is stopped by a signal when it has evaluated a version; it must not have ended well."""
    (folder / "small.toml").write_text(EXPERIMENT)
    command = [sys.executable, "-c", HEARD + "from offbeat.cli import main; main()", arguments[0], "small.toml"]
    metrics, said = folder / "run" / "metrics.jsonl", folder / f"said-{number}"
    before = metrics.stat().st_size if metrics.is_file() else 0
    with said.open("wb") as errors:
        process = subprocess.Popen(
            [*command, *arguments[1:], "--out", "run"],
            cwd=folder,
            stdout=errors,
            stderr=errors,
            env=os.environ | {"COLUMNS": "400"},
        )
    try:
        deadline = time.monotonic() + 180
        while not (metrics.is_file() and metrics.stat().st_size > before):
            assert process.poll() is None and time.monotonic() < deadline, said.read_text()
            time.sleep(0.2)
        process.send_signal(number)
        assert process.wait(180) == 128 + number, said.read_text()
    finally:
        process.kill()  # if it has not ended by now; all that it started ends with it
        process.wait()
    assert not (folder / "run" / "summary.json").exists()
    return said.read_text()


def wait_for_checkpoint(folder: Path, since: int = 0) -> int:
    """When it was written."""
    checkpoint, deadline = folder / "run" / "checkpoint" / "latest.safetensors", time.monotonic() + 60
    while not checkpoint.is_file() or checkpoint.stat().st_mtime_ns <= since:
        assert time.monotonic() < deadline, "no checkpoint"
        time.sleep(0.1)
    return checkpoint.stat().st_mtime_ns


def test_a_local_cluster_that_is_interrupted_ends_and_leaves_a_checkpoint_whatever_the_signal(tmp_path: Path) -> None:
    """Each time from where the last one stopped."""
    written, resume = 0, list[str]()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        said = interrupted(tmp_path, number, "local-cluster", "--nodes", "2", "--logs", "logs", *resume)
        assert said.splitlines()[-1].startswith("To continue: offbeat local-cluster")
        written, resume = wait_for_checkpoint(tmp_path, written), ["--resume"]


def test_a_deployed_run_is_stopped_and_leaves_a_checkpoint_whatever_the_signal(tmp_path: Path) -> None:
    written, resume = 0, list[str]()
    with Cluster(2, warm=True, logs=tmp_path / "logs") as cluster:
        link = ("--superlink", cluster.address.address, "--insecure")
        for number in (signal.SIGTERM, signal.SIGHUP):
            said = interrupted(tmp_path, number, "deploy", *link, *resume)
            assert "was stopped" in said
            assert said.splitlines()[-1].startswith("To continue: offbeat deploy small.toml --superlink")
            written, resume = wait_for_checkpoint(tmp_path, written), ["--resume"]
