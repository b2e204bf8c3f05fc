"""Processes of our own are not started by a script that one of them has just imported."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import offbeat

experiment = offbeat.Experiment(data={"name": "synthetic", "devices": 12}, model="mlp", stop={"versions": 1})
offbeat.run(experiment.replace(execution={"workers": 2}))
"""


def test_a_script_without_a_guard_whose_run_needs_workers_is_told_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 1
    guard = '`if __name__ == "__main__":`'
    assert f"and would start more: put its code under {guard}" in ended.stderr
    last = ended.stderr.strip().rpartition("\n")[2]
    assert "lack of memory" not in ended.stdout + ended.stderr
    assert last.endswith(f"check that there is enough memory, and that your script runs under {guard}")
