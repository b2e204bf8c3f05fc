"""`offbeat init` writes an experiment that runs at once, for every kind of data, and overwrites nothing."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offbeat import cli
from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.simulation.run import run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    return tmp_path


def init(*words: str) -> None:
    cli.app(["init", *words], standalone_mode=False)


def written_table(path: Path, *, numeric: bool = False) -> None:
    random = np.random.default_rng(0)
    lines = ["hospital,age,smoker,note,outcome"]
    for row in range(300):
        age = 20 + 60 * random.random()
        outcome = f"{3 * age + random.normal():.2f}" if numeric else ("ill" if age > 50 else "well")
        gap = "" if row == 7 else f"{age:.1f}"
        lines.append(f"H{row % 6:02},{gap},{'yes' if row % 3 else 'no'},text {row},{outcome}")
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("numeric", "words", "metrics"),
    [
        (False, ["--target", "outcome", "--device", "hospital", "--slow", "H01,H03"], ["accuracy", "auc", "loss"]),
        (True, ["--devices", "4", "--slow", "1", "--online", "30"], ["r2", "rmse", "mae", "loss"]),
    ],
    ids=["classes and a device column", "numbers without one"],
)
def test_an_own_table_runs_at_once(
    here: Path, numeric: bool, words: list[str], metrics: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "data").mkdir()
    written_table(here / "data" / "patients.csv", numeric=numeric)
    init("study", "--data", "data/patients.csv", *words)
    said = capsys.readouterr()
    assert "Column 'note' is left out" in said.out and "Next: offbeat run study/experiment.toml" in said.err
    text = (here / "study" / "experiment.toml").read_text()
    assert 'path = "../data/patients.csv"' in text and 'missing = "fill"' in text
    assert ('name = "iid"' in text) == numeric, "a column names the devices, or the rows are divided among them"
    experiment = Experiment.load("study/experiment.toml", ["stop.time=20.0"])
    assert experiment.notes == () and list(experiment.compared) == ["fedavg", "fedbuff", "mine"]
    for each in (experiment, experiment.for_algorithm("mine", 0)):
        result = run(each)
        assert result.metrics == metrics and result.rows[-1]["version"] > 0
    # It learns: the outcome is a function of the age.
    assert result.rows[-1][metrics[0]] > (0.3 if numeric else 0.7)


def test_the_slow_devices_of_fleet_csv_are_those_that_were_named(here: Path) -> None:
    written_table(here / "patients.csv")
    init("--data", "patients.csv", "--device", "hospital", "--slow", "H01,H03", "--slowness", "8")
    lines = (here / "fleet.csv").read_text().splitlines()
    slow = [line.partition(",")[0] for line in lines[1:] if line.split(",")[1] == "8"]
    assert slow == ["H01", "H03"] and len(lines) == 7


def test_an_embedded_data_set_and_questions_in_a_terminal(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {"Devices": 6.0, "Slow": "2", "Times": 5.0, "Seconds a": 40.0, "Seconds until": 7.0}
    answers["CSV or"] = "digits"

    def prompt(question: str, **_: Any) -> Any:
        return next(answer for start, answer in answers.items() if question.startswith(start))

    monkeypatch.setattr("typer.prompt", prompt)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    init()
    table = Experiment.load("experiment.toml").table()
    assert table["data"]["devices"] == 6 and table["availability"]["off_seconds"] == 7.0
    slow = [line.split(",")[0] for line in (here / "fleet.csv").read_text().splitlines() if ",5," in line]
    assert slow == ["4", "5"], "the last ones"
    with pytest.raises(InvalidInput, match=r"experiment.toml exists: `offbeat init` overwrites nothing"):
        init()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--data", "none.csv"], "data.path: the file none.csv does not exist"),
        (["--data", "digit"], "unknown file or data set 'digit': did you mean 'digits'?"),
        (["--data", "cifar10"], "data 'cifar10' needs data.dir"),
        (["--data", "digits", "--target", "y"], "--target = y: only a CSV or parquet file has columns"),
        (["--data", "patients.csv", "--device", "hospitl"], "unknown column in --device, 'hospitl'"),
        (["--data", "patients.csv", "--device", "hospital", "--slow", "H9"], "unknown device in --slow, 'H9'"),
        (["--data", "patients.csv", "--device", "hospital", "--slow", "9"], "there are only 6 devices"),
        (["--data", "patients.csv", "--device", "hospital", "--devices", "3"], "leave one of them out"),
    ],
)
def test_a_wrong_answer_is_one_sentence_and_nothing_is_written(here: Path, words: list[str], complaint: str) -> None:
    written_table(here / "patients.csv")
    with pytest.raises(InvalidInput) as refused:
        init(*words)
    assert complaint in str(refused.value)
    assert [path.name for path in here.iterdir()] == ["patients.csv"]
