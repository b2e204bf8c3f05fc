"""Whole runs on data that come from files: natural divisions, bytes, lazy devices, characters."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import offbeat


def write_leaf(folder: Path, users: dict[str, tuple[list[Any], list[Any]]]) -> None:
    table = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    for part in ("train", "test"):
        (folder / part).mkdir()
        (folder / part / "all.json").write_text(json.dumps(table))


def run(data: dict[str, Any], **others: Any) -> list[dict[str, float]]:
    experiment = offbeat.Experiment(
        data=data,
        stop={"versions": 3},
        evaluation={"every_versions": 1},
        local={"epochs": 1, "learning_rate": 0.5, "batch_size": 4},
        algorithm={"name": "fedavg", "cohort": 2},
        execution={"executor": "sequential"},
        **others,
    )
    return [{key: row[key] for key in ("time", "loss")} for row in offbeat.run(experiment).rows]


def test_femnist_as_bytes_trains_to_the_same_numbers_as_floats(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    users = {
        f"f{k}": ((random.integers(0, 256, (6 + k, 784)) / 255).tolist(), random.integers(0, 62, 6 + k).tolist())
        for k in range(3)
    }
    write_leaf(tmp_path, users)
    data = {"name": "femnist", "dir": str(tmp_path), "devices": 3}
    floats = run(data, model="logistic")
    assert floats[-1]["loss"] != floats[0]["loss"]
    assert run(data | {"as_bytes": True}, model="logistic") == floats


class NextCharacter(nn.Module):
    """Scores of the next character from the one before it."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.table = nn.Embedding(classes, classes)

    def forward(self, tokens: Any) -> Any:
        return self.table(tokens)


def test_every_next_character_of_shakespeare_is_learnt_as_a_sequence(tmp_path: Path) -> None:
    line = "so long lives this, and this gives life to thee, so long as men can breathe or eyes"
    write_leaf(tmp_path, {f"role{k}": ([line[k : k + 80]] * 5, [line[k + 80]] * 5) for k in range(2)})
    data = {"name": "shakespeare", "dir": str(tmp_path), "devices": 2, "predict": "every"}
    rows = run(data, model=NextCharacter, task="sequence")
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_a_lazy_table_trains_to_the_same_numbers_as_one_in_memory(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra offbeat[datasets] is not installed")
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 3))
    table = {"x": x.tolist(), "y": (x[:, 0] > 0).astype(int).tolist(), "who": random.integers(0, 4, 40).tolist()}
    for split in ("train", "test"):
        datasets.Dataset.from_dict(table).to_parquet(tmp_path / f"{split}.parquet")
    data = {"name": "huggingface", "source": str(tmp_path), "x": "x", "y": "y", "device": "who", "devices": 4}
    data["cache"] = str(tmp_path / "cache")
    whole = run(data, model="logistic")
    assert whole[-1]["loss"] < whole[0]["loss"]
    lazy = run(data | {"lazy": True}, model="logistic")
    np.testing.assert_allclose([row["loss"] for row in lazy], [row["loss"] for row in whole], rtol=1e-5)
