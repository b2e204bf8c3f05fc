"""What a run gives back: the same from memory and from its directory, finished or not."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from torch import nn

import offbeat
from offbeat.core.errors import InvalidInput
from offbeat.results.metric import TargetMetric, summarise
from offbeat.results.rows import COMMON_COLUMNS

TABLES = {
    "stop": {"versions": 3},
    "data": {"name": "digits", "devices": 4},
    "model": {"name": "mlp"},
    "algorithm": {"name": "fedavg", "cohort": 2},
    "evaluation": {"every_versions": 1},
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> offbeat.Result:
    return offbeat.run(TABLES, tmp_path_factory.mktemp("result") / "run")


def test_a_run_reads_as_it_was(ran: offbeat.Result) -> None:
    assert ran.directory is not None and ran.parameters is not None
    again = offbeat.read_run(str(ran.directory))
    assert again.parameters is not None and again.experiment is not None and ran.experiment is not None
    assert (again.rows, again.summary) == (ran.rows, ran.summary)
    assert again.parameters.tobytes() == ran.parameters.tobytes()
    assert again.experiment.table() == ran.experiment.table()
    assert repr(again) == repr(ran)


def test_the_state_dict_fits_the_model_that_was_trained(ran: offbeat.Result) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))
    network.load_state_dict(ran.state_dict())
    assert ran.parameters is not None
    assert np.array_equal(network.state_dict()["1.weight"].numpy().ravel(), ran.parameters[: 64 * 32])


def test_rows_become_a_frame_and_a_figure(ran: offbeat.Result) -> None:
    frame = ran.frame()
    assert frame["version"].tolist() == [0, 1, 2, 3] and frame["accuracy"].iloc[-1] == ran.rows[-1]["accuracy"]
    assert isinstance(ran.plot(), Figure)
    assert "<th>final_accuracy</th>" in ran._repr_html_()
    assert repr(ran).startswith("<Result of fedavg on digits, seed 0: accuracy 0.") and "3 versions" in repr(ran)


def test_a_frame_without_pandas_says_what_to_install(ran: offbeat.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidInput, match="pip install pandas"):
        ran.frame()


def test_a_run_that_is_not_finished_is_read_up_to_its_last_whole_line(ran: offbeat.Result, tmp_path: Path) -> None:
    assert ran.directory is not None
    (tmp_path / "config.toml").write_bytes((ran.directory / "config.toml").read_bytes())
    lines = (ran.directory / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(lines[:2]) + lines[2][:9])
    unfinished = offbeat.read_run(tmp_path)
    assert not unfinished.finished and ran.finished
    assert unfinished.rows == ran.rows[:2] and unfinished.summary["versions"] == 1
    assert unfinished.parameters is None and "not finished" in repr(unfinished)
    with pytest.raises(InvalidInput, match="has no final parameters"):
        unfinished.state_dict()


def test_a_run_that_is_not_finished_is_about_the_metric_of_its_task(tmp_path: Path) -> None:
    experiment = offbeat.Experiment.parse(TABLES | {"task": {"name": "regression"}})
    for name, metric in (("regression", TargetMetric("r2", "max")), ("gone_module:Task", TargetMetric("mae", "min"))):
        config = experiment.toml().replace('name = "regression"', f'name = "{name}"')
        (tmp_path / "config.toml").write_text(config)
        row = dict.fromkeys(COMMON_COLUMNS, 0.0) | {metric.name: 0.6, "in_flight": 1}
        (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(row)}\n")
        unfinished = offbeat.read_run(tmp_path)
        assert (unfinished.experiment is None) == ("gone" in name)
        assert TargetMetric.of(unfinished.summary) == metric
        assert unfinished.summary[f"time_to_{metric.name}"] == {}  # no targets of accuracy
        assert offbeat.Comparison([unfinished]).target is None  # it has not improved yet


def test_a_run_whose_own_modules_are_gone_is_read_without_its_experiment(ran: offbeat.Result, tmp_path: Path) -> None:
    assert ran.directory is not None
    for name in ("metrics.jsonl", "summary.json"):
        (tmp_path / name).write_bytes((ran.directory / name).read_bytes())
    config = (ran.directory / "config.toml").read_text().replace('name = "ratio"', 'name = "gone_module:Fleet"')
    (tmp_path / "config.toml").write_text(config)
    read = offbeat.read_run(tmp_path)
    assert read.experiment is None and read.rows == ran.rows and read.config == config


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no run"):
        offbeat.read_run(tmp_path)


def test_a_run_says_which_columns_are_metrics_wherever_they_stand() -> None:
    row = {"time": 1.0, "version": 1, "updates_used": 2, "in_flight": 0, "own_figure": 7.0, "r2": 0.5}
    summary = summarise(
        [row],
        algorithm="mine",
        seed=0,
        targets=[],
        reason="time",
        wall_seconds=0.0,
        metric=TargetMetric("r2"),
        metrics=["r2"],
    )
    assert summary["final_r2"] == 0.5 and summary["own_figure"] == 7.0 and "final_own_figure" not in summary
    assert offbeat.Result(rows=[row], summary=summary).metrics == ["r2"]
    earlier = {key: value for key, value in summary.items() if key != "metrics"}
    assert offbeat.Result(rows=[row], summary=earlier).metrics == ["r2"]


def test_the_figures_of_a_policy_are_no_metrics_in_a_finished_run_or_an_unfinished_one(tmp_path: Path) -> None:
    table = {
        "stop": {"time": 3.0},
        "data": {"name": "digits", "devices": 4},
        "model": "logistic",
        "fleet": {"name": "bernoulli", "iteration_seconds": 1.0, "mean_delay": 1.0},
        "local": {"epochs": 1, "batch_size": 0},
        "algorithm": {"name": "psurdg", "iteration_seconds": 1.0},
    }
    finished = offbeat.run(table, tmp_path / "run")
    assert "mean_delay" in finished.rows[-1]
    assert finished.metrics == offbeat.read_run(tmp_path / "run").metrics == ["accuracy", "loss"]
    (tmp_path / "run" / "summary.json").unlink()
    assert offbeat.read_run(tmp_path / "run").metrics == ["accuracy", "loss"]
