"""Metrics per device and per group at the end of a run: in devices.csv, in the summary, and by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import offbeat
from offbeat.core.errors import InvalidInput
from offbeat.results.result import read_run


def written(folder: Path) -> Path:
    """Four sites; the label is the sign of x, except at site D, where it is the opposite."""
    random = np.random.default_rng(0)
    lines = ["site,x,y"]
    for row in range(160):
        x = random.normal()
        lines.append(f"{'ABCD'[row % 4]},{x:.4f},{'yes' if (x > 0) != (row % 4 == 3) else 'no'}")
    (folder / "sites.csv").write_text("\n".join(lines))
    return folder / "sites.csv"


def experiment(path: Path, **evaluation: Any) -> offbeat.Experiment:
    return offbeat.Experiment(
        data={"name": "csv", "path": str(path), "target": "y", "device": "site", "devices": 4, "test": 0.25},
        model="logistic",
        local={"learning_rate": 0.5, "epochs": 2},
        algorithm={"name": "fedavg", "cohort": 4},
        stop={"time": 40.0},
        evaluation={"per_device": True} | evaluation,
        execution={"executor": "sequential"},
    )


def test_every_device_and_group_has_its_own_metrics(tmp_path: Path) -> None:
    given = experiment(written(tmp_path), groups={"like the others": ["A", 1, "C"], "odd": ["D"]})
    result = offbeat.run(given, tmp_path / "out")
    rows = read_run(tmp_path / "out").devices
    accuracy = [row["accuracy"] for row in rows]
    # The model learns the sign; on site D, whose labels are the opposite, it is wrong.
    assert min(accuracy[:3]) >= 0.7 and accuracy[3] <= 0.3
    data, _ = given.load_data()
    assert data.test_devices is not None
    own = data.test_devices[3]
    weight = result.state_dict()
    (w,), (b,) = ([value for name, value in weight.items() if name.endswith(end)] for end in ("weight", "bias"))
    outputs = torch.as_tensor(data.test_x[own]) @ w.T + b
    assert accuracy[3] == pytest.approx(float((outputs.argmax(1).numpy() == data.test_y[own]).mean()))
    groups = result.summary["per_group"]
    assert groups["odd"]["accuracy"] == pytest.approx(accuracy[3]) and groups["like the others"]["devices"] == 3
    assert groups["like the others"]["accuracy"] == pytest.approx(float(np.mean(accuracy[:3])))  # 10 samples each
    assert {"fastest third", "middle third", "slowest third"} <= groups.keys()
    spread = result.summary["per_device"]
    assert spread["evaluated_on"] == "held-out samples" and spread["accuracy_worst"] == min(accuracy)


def test_thirds_by_label_mix_have_their_own_metrics(tmp_path: Path) -> None:
    # Sites A and B have both labels, site C more of one, site D only one.
    lines = ["site,x,y"]
    for row in range(240):
        site, number = "ABCD"[row % 4], row // 4
        yes = {"A": number % 2 == 0, "B": number % 2 == 0, "C": number % 4 > 0, "D": True}[site]
        lines.append(f"{site},{(number % 7 + 1) * (1 if yes else -1)},{'yes' if yes else 'no'}")
    (tmp_path / "sites.csv").write_text("\n".join(lines))
    given = experiment(tmp_path / "sites.csv")
    summary = offbeat.run(given, tmp_path / "out").summary
    rows = read_run(tmp_path / "out").devices
    groups = summary["per_group"]
    # All data have 69 % yes: A, B and D differ by 19, 19 and 31 points, C by 6.
    assert [groups[f"{name} labels"]["devices"] for name in ("most usual", "middle", "least usual")] == [2, 1, 1]
    assert groups["least usual labels"]["loss"] == pytest.approx(rows[3]["loss"], abs=1e-5)
    assert groups["middle labels"]["loss"] == pytest.approx(rows[1]["loss"], abs=1e-5)


def test_data_without_held_out_samples_of_a_device_use_its_own_and_the_default_writes_nothing(tmp_path: Path) -> None:
    tables: dict[str, Any] = {"data": {"name": "digits", "devices": 3}, "model": "logistic", "stop": {"time": 3.0}}
    tables["algorithm"] = {"name": "fedavg", "cohort": 3}
    found = offbeat.run(offbeat.Experiment(**tables, evaluation={"per_device": True}), tmp_path / "out")
    assert found.summary["per_device"]["evaluated_on"] == "training samples"
    plain = offbeat.Experiment(**tables)
    assert "per_device" not in plain.table()["evaluation"] and "groups" not in plain.table()["evaluation"]
    assert "per_group" not in offbeat.run(plain).summary


def test_a_group_of_a_device_that_is_not_there_is_refused_before_the_run(tmp_path: Path) -> None:
    wrong = experiment(written(tmp_path), groups={"north": ["E"]})
    with pytest.raises(InvalidInput, match=r"evaluation.groups.north: there is no device 'E': give one of 0 to 3 or A"):
        offbeat.run(wrong, tmp_path / "out")
    assert not (tmp_path / "out").exists()
