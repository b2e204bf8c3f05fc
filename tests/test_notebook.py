"""The notebook in `examples`, and what only notebooks and scripts use of the Python interface."""

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import offbeat
from notebooks import execute
from offbeat.algorithms import FedBuff
from offbeat.algorithms.about import Range
from offbeat.comparison.scheduler import runs_stay_here
from offbeat.core.errors import InvalidInput
from offbeat.running import progress

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "first_steps.ipynb"


def test_the_notebook_runs_and_shows_what_it_showed() -> None:
    before, after = json.loads(NOTEBOOK.read_text()), execute(NOTEBOOK)
    kinds = [[sorted(output["data"]) for output in cell.get("outputs", [])] for cell in before["cells"]]
    assert kinds == [[sorted(output["data"]) for output in cell.get("outputs", [])] for cell in after["cells"]]
    pictures = [output["data"]["image/png"] for cell in after["cells"] for output in cell.get("outputs", [])
                if "image/png" in output["data"]]  # fmt: skip
    assert len(pictures) == 2 and all(base64.b64decode(each).startswith(b"\x89PNG") for each in pictures)
    assert "SmallBuffer" in "".join(after["cells"][6]["outputs"][0]["data"]["text/plain"])


@pytest.fixture
def experiment() -> offbeat.Experiment:
    return offbeat.Experiment(
        stop={"time": 30.0},
        data={"name": "digits", "devices": 6},
        model="logistic",
        algorithm={"name": "fedavg", "cohort": 2},
        evaluation={"every_seconds": 10.0},
    )


def test_a_policy_that_only_this_process_has_is_compared_and_tuned(
    experiment: offbeat.Experiment, tmp_path: Path
) -> None:
    class Mine(FedBuff):
        """FedBuff under another name."""

    assert not experiment.only_here and experiment.replace(algorithm=Mine).only_here
    offbeat.compare(experiment, ["fedavg", Mine], seeds=1, out=tmp_path / "compared")
    again: Any = offbeat.read_run(tmp_path / "compared")
    assert isinstance(again, offbeat.Comparison) and [each.algorithm for each in again] == ["Mine", "fedavg"]
    frame = again.frame("run")
    assert frame["algorithm"].tolist() == ["Mine", "fedavg"] and len(frame) == 2 < len(again.frame())
    assert (tmp_path / "compared" / "runs.csv").read_text().startswith("algorithm,seed,target,time_to_target,")
    assert (tmp_path / "compared" / "accuracy.pdf").read_bytes().startswith(b"%PDF")
    assert "<svg" in (tmp_path / "compared" / "accuracy.svg").read_text()
    space = {"local.learning_rate": Range(0.7, 0.8), "algorithm.nothing": Range(1, 2)}
    tuned = offbeat.tune(experiment, Mine, 2, seeds=[100], space=space).settings
    assert (
        "algorithm.buffer" in tuned and 0.7 <= tuned["local.learning_rate"] <= 0.8 and "algorithm.nothing" not in tuned
    )
    for path in ("local.nothing", "nothing.nothing"):
        with pytest.raises(InvalidInput, match="no such setting"):
            offbeat.tune(experiment, Mine, 2, seeds=[100], space={path: Range(1, 2)})
    assert isinstance(offbeat.read_run(tmp_path / "compared" / "Mine-seed0"), offbeat.Result)


def test_a_script_without_a_main_guard_runs_in_its_own_process(tmp_path: Path) -> None:
    """Worker processes would import the script, and so run it again: model, data and policy of `__main__` stay here."""
    script = tmp_path / "study.py"
    script.write_text(
        """
import numpy as np
import offbeat
from offbeat.algorithms import FedBuff
from torch import nn

def network(input_shape, outputs):
    return nn.Linear(*input_shape, outputs)

def data(seed):
    x = np.random.default_rng(seed).normal(size=(90, 4)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    return x[:60], y[:60], x[60:], y[60:]

class Mine(FedBuff):
    concurrency: int = 3

base = offbeat.Experiment(stop={"time": 9.0}, data={"name": data, "devices": 4}, model=network, algorithm=Mine)
print([each.algorithm for each in offbeat.compare(base, ["fedavg", Mine], seeds=1)])
print(len(offbeat.sweep(base, {"algorithm.buffer": [1, 2]}, seeds=1)))
print(offbeat.tune(base, Mine, 1, seeds=[9], jobs=2).trials)
"""
    )
    said = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert said.stdout.split("\n") == ["['fedavg', 'Mine']", "2", "1", ""]
    assert said.stderr.count('study.py has no `if __name__ == "__main__":`') == 3 and "Traceback" not in said.stderr


def test_a_note_says_why_no_workers_were_used(
    experiment: offbeat.Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    class Mine(FedBuff):
        """FedBuff under another name."""

    assert runs_stay_here([experiment.replace(algorithm=Mine)], 2) and not runs_stay_here([experiment], 2)
    assert "jobs = 2: Mine exists in this process only; the runs take place in this process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda e: offbeat.compare(e, algoritms="fedavg"), "did you mean 'algorithms'"),  # type: ignore[call-arg]
        (lambda e: offbeat.run(e, ot="x"), "did you mean 'out'"),  # type: ignore[call-arg]
        (lambda e: e.replace(algoritm="fedavg"), "did you mean 'algorithm'"),
        (lambda e: e.replace({"fleet.ratoi": 3.0}), "did you mean 'ratio'"),
    ],
)
def test_a_misspelt_argument_gets_a_suggestion(experiment: offbeat.Experiment, call: Any, hint: str) -> None:
    with pytest.raises(InvalidInput, match=hint):
        call(experiment)


def test_names_are_few_and_all_there() -> None:
    assert {"algorithms", "compare", "recommend", "report", "run", "sweep", "tune"} <= set(dir(offbeat))
    assert all(getattr(offbeat, name) is not None for name in dir(offbeat))
    assert not {"import_module", "Any", "TYPE_CHECKING"} & set(dir(offbeat))
    assert {"name": "fedbuff", "family": "buffered"}.items() <= offbeat.algorithms()[8].items()  # type: ignore[operator]


def test_a_notebook_shows_bars(experiment: offbeat.Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    monkeypatch.setattr(progress, "messages", Console(force_jupyter=True))
    drawn: list[str] = []
    monkeypatch.setattr("rich.jupyter.display", lambda segments, text: drawn.append(text))
    monkeypatch.setattr(progress, "find_spec", lambda name: None)  # without ipywidgets: lines
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    offbeat.run(experiment)
    assert any("fedavg: " in each and " %" in each for each in drawn)
