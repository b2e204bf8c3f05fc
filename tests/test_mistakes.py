"""Mistakes that could end in a crash, a hang or lost results are refused in a sentence, before anything is written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import offbeat
from offbeat.core.errors import InvalidInput, OffbeatError, PolicyError
from offbeat.core.messages import Started
from offbeat.policy import Policy, SetTimer, TimerFired
from offbeat.results.criterion import Criterion

SMALL: dict[str, Any] = {
    "data": {"name": "synthetic", "devices": 6},
    "model": "logistic",
    "stop": {"time": 5.0},
    "execution": {"executor": "sequential"},
}


def small(**tables: Any) -> offbeat.Experiment:
    return offbeat.Experiment(**{**SMALL, **tables})


def numbers(seed: int) -> Any:
    random = np.random.default_rng(seed)
    x = random.normal(size=(60, 3)).astype(np.float32)
    return x[:40], x[:40, 0], x[40:], x[40:, 0]


def refused(words: str, call: Any) -> None:
    with pytest.raises(InvalidInput, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def test_heterofl_on_regression() -> None:
    tables: dict[str, Any] = {"data": {"name": numbers, "devices": 4}, "task": "regression"}
    words = "masked_loss = true masks classes, but task.name = 'regression'"
    refused(words, lambda: small(**tables, algorithm="heterofl"))
    settings = {"name": "heterofl", "masked_loss": False, "rounds": 2}
    assert offbeat.run(small(**tables, algorithm=settings)).rows[-1]["version"] > 0


def test_a_run_does_not_replace_a_comparison(tmp_path: Path) -> None:
    offbeat.compare(small(), ["fedavg"], 1, tmp_path / "out", jobs=1)
    before = sorted(path.name for path in (tmp_path / "out").iterdir())
    refused("holds several runs", lambda: offbeat.run(small(), tmp_path / "out", overwrite=True))
    refused("holds several runs", lambda: offbeat.run(small(), tmp_path / "out", resume=True))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == before
    assert offbeat.compare(small(), ["fedavg"], 1, tmp_path / "out", jobs=1, resume=True).entries


def test_a_target_that_cannot_be_reached() -> None:
    refused("target = 3: must be above 0 and at most 1 for accuracy", lambda: Criterion.of(small(), target=3))
    refused("stop.target = 3", lambda: small(stop={"target": 3.0}))


def test_values_and_algorithms_of_the_wrong_type() -> None:
    algorithms: Any = ["fedavg", 3]
    refused("algorithms: 3 must be a name, a policy or a policy class", lambda: offbeat.compare(small(), algorithms))
    over: Any = {"algorithm.buffer": 3}
    refused("sweep: algorithm.buffer = 3: must be a list of values", lambda: offbeat.sweep(small(), over))
    twice = {"algorithm.buffer": [0, 1, 0]}
    refused("sweep: algorithm.buffer has the value 0 twice", lambda: offbeat.sweep(small(), twice))
    data: Any = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4))
    refused(r"data is a TensorDataset: give \(train_x", lambda: small(data=data))


def test_an_absurd_speed() -> None:
    slow = small(fleet={"name": "ratio", "ratio": 1e308})
    refused(r"fleet: an epoch takes .*e\+30. s on device \d: it must be at most 1e\+12 s", lambda: offbeat.run(slow))


@dataclass
class Nothing:
    """No state."""


class Silent(Policy):
    State = Nothing


class Restless(Policy):
    State = Nothing

    def react(self, event: Any, state: Any, view: Any) -> Any:
        if isinstance(event, Started | TimerFired):
            yield SetTimer(name="now", after=0.0)


def test_a_policy_without_react_and_one_whose_timers_stop_the_clock() -> None:
    refused("must define react", lambda: small(algorithm=Silent))
    with pytest.raises(PolicyError, match="'now' was set to 0 s more than 1000 times at 0 s"):
        offbeat.run(small(algorithm=Restless))
    assert issubclass(PolicyError, OffbeatError)
