"""`offbeat local-cluster` as a user meets it: Ctrl-C in the middle of a run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

EXPERIMENT = """
[stop]
time = 100000.0
[data]
name = "digits"
[model]
name = "mlp"
[algorithm]
name = "fedavg"
cohort = 2
[evaluation]
every_versions = 1
"""


def test_ctrl_c_ends_everything_and_leaves_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(EXPERIMENT)
    heard = "import signal; signal.signal(2, signal.default_int_handler); "  # also below a shell that ignores Ctrl-C
    command = [sys.executable, "-c", heard + "from offbeat.cli import main; main()", "local-cluster", "small.toml"]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            [*command, "--nodes", "2", "--out", "run", "--logs", "logs"],
            cwd=tmp_path,
            stderr=said,
            env=os.environ | {"COLUMNS": "400"},
        )
    try:
        metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 180
        while not (metrics.is_file() and metrics.stat().st_size):
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "said").read_text()
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()  # if it has not ended by now; all that it started ends with it
        process.wait()
    assert "go on with --resume" in (tmp_path / "said").read_text()
    assert (tmp_path / "run" / "checkpoint" / "latest.safetensors").is_file()
    assert not (tmp_path / "run" / "summary.json").exists()
