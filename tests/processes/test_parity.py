"""What real processes did on the wall clock, the simulator does again from their record, bit by bit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from recorded import recorded

from offbeat.simulation.replay import replay

pytestmark = pytest.mark.processes

EXPERIMENT = """
seed = 5
[stop]
versions = 8
time = 400.0
[data]
name = "digits"
partition = "dirichlet"
alpha = 0.5
[model]
name = "cnn"  # 20,074 parameters
[local]
epochs = 2
momentum = 0.5
[fleet]
name = "trace"
path = "fleet.csv"
[deployment]
paced = true
[algorithm]
name = "fedasmu"
cohort = 3
max_in_flight = 3
period = 1.0
slot = "first"
while_asking = "train"
"""
FLEET = "device,epoch_seconds\n0,0.1\n1,3.0\n2,3.5\n"
"""When the slow devices ask, after an epoch, the fast one has uploaded; that reaches them in their second epoch."""
OFFBEAT = [sys.executable, "-c", "from offbeat.cli import main; main()"]


def test_a_run_of_real_processes_with_fresh_models_in_mid_epoch_is_replayed_to_the_same_bits(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.csv"
    fleet.write_text(FLEET)
    (tmp_path / "small.toml").write_text(EXPERIMENT.replace("fleet.csv", str(fleet)))
    run = [*OFFBEAT, "local-cluster", "small.toml", "--nodes", "3", "--out", "run", "--logs", "logs"]
    subprocess.run(run, cwd=tmp_path, check=True, timeout=600)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    record = recorded(tmp_path / "run")
    assert summary["stopped_by"] == "versions"
    assert any(line["step"] for line in record if line["what"] == "heard"), "no fresh model came in mid-epoch"
    assert any(line["remembered"] for line in record if line["what"] == "Uploaded"), "no device had learned anything"

    threads = torch.get_num_threads()
    try:
        for number in (1, 2):  # the versions do not depend on it
            torch.set_num_threads(number)
            assert replay(tmp_path / "run").summary["replayed_versions"] == 8
    finally:
        torch.set_num_threads(threads)
