"""What devices carry over, data of every kind, transforms and buffers, through whole runs."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import offbeat
from offbeat.core.errors import Interrupted, InvalidInput
from offbeat.data import Dataset
from offbeat.data.samples import LazyDevices, Ragged
from offbeat.running.assembly import ExperimentParts

BASE: dict[str, Any] = {
    "stop": {"updates": 12},
    "data": {"name": "own_training:load", "devices": 4},
    "model": {"name": "own_training:network"},
    "local": {"epochs": 2, "batch_size": 8, "learning_rate": 0.05},
    "algorithm": {"name": "fedbuff", "buffer": 2, "concurrency": 3},
    "evaluation": {"every_versions": 2},
    "execution": {"executor": "sequential"},
}


def arrays(seed: int) -> Any:
    random = np.random.default_rng(7)
    x = random.normal(size=(120, 6)).astype(np.float32)
    y = (x[:, 0] > x[:, 1]).astype(np.int64)
    return x[:80], y[:80], x[80:], y[80:]


def images(seed: int) -> Dataset:
    x, y, test_x, test_y = arrays(seed)
    x, test_x = (part.repeat(6, axis=1).reshape(-1, 1, 6, 6) for part in (x, test_x))
    return Dataset(train_x=x, train_y=y, test_x=test_x, test_y=test_y)


def lazily(seed: int) -> Dataset:
    x, y, test_x, test_y = arrays(seed)

    def load(device: int) -> Any:
        loads.append(device)
        return x[device * 20 : device * 20 + 20], y[device * 20 : device * 20 + 20]

    return Dataset(train_x=LazyDevices(np.full(4, 20), load), test_x=test_x, test_y=test_y, classes=2)


def divided(seed: int) -> Dataset:
    x, y, test_x, test_y = arrays(seed)
    devices = tuple(np.arange(k * 20, k * 20 + 20) for k in range(4))
    return Dataset(train_x=x, train_y=y, test_x=test_x, test_y=test_y, devices=devices)


def pairs(seed: int) -> Dataset:
    """Numbers and tokens of any length together, as a mapping."""
    x, y, test_x, test_y = arrays(seed)

    def both(part: Any) -> Any:
        return {"numbers": part, "tokens": Ragged.of([np.arange(1, 2 + k % 3) for k in range(len(part))])}

    return Dataset(train_x=both(x), train_y=y, test_x=both(test_x), test_y=test_y)


class Two(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 3)
        self.head = nn.Linear(9, classes)

    def forward(self, numbers: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.cat([numbers, self.words(tokens).mean(1)], dim=1))
        return out


class NeedsClosure(torch.optim.SGD):
    """An optimiser that wants to call the loss itself, as LBFGS does."""

    def step(self, closure: Any) -> None:  # type: ignore[override]
        closure()


loads: list[int] = []


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    own = ModuleType("own_training")
    made: dict[str, Any] = {
        "load": arrays,
        "images": images,
        "lazily": lazily,
        "divided": divided,
        "pairs": pairs,
        "network": lambda shape, classes: nn.Sequential(
            nn.Flatten(), nn.Linear(int(np.prod(shape)), 8), nn.Tanh(), nn.Linear(8, classes)
        ),
        "NeedsClosure": NeedsClosure,
        "two": lambda shape, classes: Two(classes),
        "normalised": lambda shape, classes: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, classes)),
    }
    for name, thing in made.items():
        setattr(own, name, thing)
    monkeypatch.setitem(sys.modules, "own_training", own)
    loads.clear()
    yield


def experiment(**changes: Any) -> offbeat.Experiment:
    from offbeat.experiment.tables import merge

    return offbeat.Experiment.parse(merge(BASE, changes))


def final(**changes: Any) -> bytes:
    parameters = offbeat.run(experiment(**changes)).parameters
    assert parameters is not None
    return parameters.tobytes()


CARRIED: dict[str, dict[str, Any]] = {
    "adam": {"local": {"optimiser": "adam", "keep_optimiser_state": True}},
    "momentum": {"local": {"momentum": 0.9, "keep_optimiser_state": True}},
    "feddyn": {"local": {"terms": [{"name": "linear-quadratic", "alpha": 0.1}]}},
    "moon": {"local": {"terms": [{"name": "contrastive"}]}},
    "buffers": {"model": {"name": "own_training:normalised", "buffers": "local"}},
}


@pytest.mark.parametrize("name", CARRIED)
def test_a_run_that_was_interrupted_ends_with_the_same_numbers(name: str, tmp_path: Path) -> None:
    changed = experiment(**CARRIED[name])
    whole = offbeat.run(changed, tmp_path / "whole")

    class After:
        """A flag that is set after it was read a number of times."""

        looks = 0

        def is_set(self) -> bool:
            self.looks += 1
            return self.looks > 12

    with pytest.raises(Interrupted):
        offbeat.run(changed, tmp_path / "cut", interrupted=After())
    resumed = offbeat.run(changed, tmp_path / "cut", resume=True)
    assert resumed.rows == whole.rows
    assert (tmp_path / "cut" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"local": {"optimiser": "adam", "keep_optimiser_state": True}},
        {"local": {"momentum": 0.9, "keep_optimiser_state": True}},
        {"local": {"terms": [{"name": "linear-quadratic", "alpha": 0.1}]}},
        {"local": {"terms": [{"name": "contrastive"}]}},
    ],
)
def test_what_is_carried_over_makes_a_difference_only_from_the_second_training_on(changes: dict[str, Any]) -> None:
    without = {"local": {key: value for key, value in changes["local"].items() if key != "keep_optimiser_state"}}
    if "terms" in without["local"]:
        quadratic = changes["local"]["terms"][0].get("alpha")
        without = {"local": {"prox": quadratic} if quadratic else {}}
    once = {"stop": {"updates": 4}, "algorithm": {"name": "fedavg", "cohort": 4}}
    twice = {"stop": {"updates": 8}, "algorithm": {"name": "fedavg", "cohort": 4}}
    assert final(**changes, **once) == final(**without, **once)
    assert final(**changes, **twice) != final(**without, **twice)


def test_data_that_are_loaded_device_by_device_train_to_the_same_bits() -> None:
    assert final(data={"name": "own_training:lazily"}) == final(data={"name": "own_training:divided"})
    assert set(loads) <= {0, 1, 2, 3} and len(loads) < 12


def test_a_folder_of_mapped_files_trains_to_the_same_bits(tmp_path: Path) -> None:
    for name, array in zip(("train_x", "train_y", "test_x", "test_y"), arrays(0), strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    np.save(tmp_path / "owner.npy", np.repeat(np.arange(4), 20))
    assert final(data={"name": "folder", "dir": str(tmp_path)}) == final(data={"name": "own_training:divided"})
    (tmp_path / "test_y.npy").unlink()
    with pytest.raises(InvalidInput, match=r"has no file test_y\.npy"):
        final(data={"name": "folder", "dir": str(tmp_path)})


def test_inputs_of_several_parts_reach_the_model_by_name() -> None:
    result = offbeat.run(
        experiment(data={"name": "own_training:pairs"}, model={"name": "own_training:two"}, stop={"updates": 40})
    )
    assert result.summary["best_accuracy"] > 0.7


def test_transforms_change_training_and_nothing_else_and_are_repeatable() -> None:
    data = {"name": "own_training:images"}
    transforms = [{"name": "crop", "padding": 1}, {"name": "flip"}, {"name": "cutout", "size": 2}]
    plain, one, again = (final(data=data | extra) for extra in ({}, *[{"transforms": transforms}] * 2))
    assert one == again != plain
    first = [offbeat.run(experiment(data=data | extra)).rows[0] for extra in ({}, {"transforms": transforms})]
    assert first[0] == first[1]  # the same evaluation of the same first model
    with pytest.raises(InvalidInput, match="transforms need images"):
        final(data={"transforms": transforms})


@pytest.mark.parametrize("rule", ["average", "local", "ignore"])
def test_running_statistics_follow_their_rule(rule: str) -> None:
    changed = experiment(model={"name": "own_training:normalised", "buffers": rule})
    result, parts = offbeat.run(changed), ExperimentParts.of(changed)
    trained = parts.layout.trained_size
    assert result.parameters is not None
    moved = not np.array_equal(result.parameters[trained:], parts.parameters[trained:])
    assert moved == (rule == "average")
    assert result.summary["final_loss"] < result.rows[0]["loss"]


@pytest.mark.parametrize(
    "changes",
    [
        {"local": {"optimiser": "adam", "terms": [{"name": "distillation"}]}},
        {
            "algorithm": {"name": "seafl2", "buffer": 2, "concurrency": 3},
            "local": {"optimiser": "adamw", "clip_norm": 1.0},
        },
        {"algorithm": {"name": "fedasmu", "cohort": 2, "period": 5.0}, "local": {"optimiser": "polyak", "epochs": 4}},
        {
            "algorithm": {"name": "salf", "rounds": 6},
            "stop": {"time": 60.0},
            "local": {"optimiser": "adam", "terms": [{"name": "distillation"}]},
        },
        {"algorithm": {"name": "heterofl", "rounds": 6}, "stop": {"time": 60.0}, "local": {"optimiser": "polyak"}},
        {"local": {"schedule": "cosine", "decay_every": 20.5, "schedule_over": "time", "warmup": 3.0}},
    ],
)
def test_every_kind_of_policy_trains_with_them_the_same_twice(changes: dict[str, Any]) -> None:
    first, second = (offbeat.run(experiment(**changes)) for _ in range(2))
    assert first.rows == second.rows
    assert first.rows[-1]["version"] > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": {"name": "regression"}}, "regression needs floating-point numbers"),
        ({"task": {"name": "sequence"}}, "needs a row of integer tokens"),
        ({"evaluation": {"target_metric": "f1"}}, "unknown metric of the task 'classification', 'f1'"),
        ({"stop": {"accuracy": 0.5}, "task": {"name": "regression"}}, "unknown metric of the task 'regression'"),
        ({"algorithm": {"name": "psurdg"}, "local": {"optimiser": "adam"}}, "needs SGD or polyak"),
        ({"algorithm": {"name": "audg"}, "local": {"clip_norm": 1.0}}, r"clip_norm = 1.0: algorithm 'audg'"),
        (
            {"algorithm": {"name": "adel", "rounds": 5}, "stop": {"time": 60.0}, "local": {"schedule_over": "time"}},
            "plans",
        ),
        ({"local": {"optimiser": "own_training:network"}}, "must be a subclass of torch.optim.Optimizer"),
        ({"local": {"optimiser": "torch.optim:LBFGS"}}, "'torch.optim:LBFGS' cannot be created"),
        ({"local": {"optimiser": "own_training:NeedsClosure"}}, "cannot take a step: TypeError"),
        ({"local": {"terms": [{"name": "proximal"}]}}, r"local\.terms\[0\]\.mu is missing"),
        ({"local": {"terms": [{"name": "proximal", "mu": "a"}]}}, r"local\.terms\[0\]\.mu = 'a': must be a number"),
        ({"local": {"terms": [{"name": "own_training:network"}]}}, "cannot be created"),
        ({"local": {"momentum": 0.9, "optimiser": "adam"}}, "has its own moments"),
        ({"local": {"schedule": "step"}}, "set local.milestones to the points"),
        ({"execution": {"workers": 10_000}}, "execution.workers = 10000 exceeds the"),
        ({"execution": {"device": "tpu"}}, "execution.device = 'tpu': must be auto, cpu, mps"),
        ({"partition": {"name": "dirichlet"}, "data": {"name": "own_training:numbers"}}, "divides by label"),
    ],
)
def test_what_cannot_be_is_one_sentence_before_anything_is_written(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    def numbers(seed: int) -> Any:
        x, _, test_x, _ = arrays(seed)
        return x, x[:, 0], test_x, test_x[:, 0]

    sys.modules["own_training"].numbers = numbers  # type: ignore[attr-defined]
    with pytest.raises(InvalidInput, match=words) as refused:
        offbeat.run(experiment(**changes), tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_half_precision_trains_about_as_well() -> None:
    whole, half = (
        offbeat.run(experiment(stop={"updates": 30}, execution={"precision": precision})).summary["final_loss"]
        for precision in ("float32", "bfloat16")
    )
    assert half == pytest.approx(whole, rel=0.1)
    assert half != whole


def test_worker_processes_train_a_task_to_the_same_bits() -> None:
    tables: dict[str, Any] = {
        "stop": {"updates": 6},
        "data": {"name": "digits", "devices": 6},
        "model": {"name": "mlp"},
        "task": {"name": "classification", "class_weights": [1.0] * 9 + [2.0], "label_smoothing": 0.1},
        "local": {"epochs": 1, "optimiser": "adam", "learning_rate": 0.01, "terms": [{"name": "distillation"}]},
        "algorithm": {"name": "fedavg", "cohort": 3},
    }
    here = offbeat.run(offbeat.Experiment.parse(tables | {"execution": {"executor": "sequential"}}))
    there = offbeat.run(offbeat.Experiment.parse(tables | {"execution": {"executor": "processes", "workers": 1}}))
    assert there.rows == here.rows
