"""Private runs on nodes: what a crash may reveal, what is refused, and the strategy."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_grid import AppGrid, adding_app
from flwr.app import Array, ArrayRecord
from loopback import LoopbackGrid, deploy, run_config

from offbeat.core.errors import InvalidInput
from offbeat.core.parameters import Vector
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import merge
from offbeat.flower import Async, FedAsync, FedBuff
from offbeat.flower.protocol.messages import Begin
from offbeat.flower.server.transport import SentMessage, Transport
from offbeat.simulation.replay import replay

TABLES: dict[str, Any] = {
    "stop": {"versions": 4, "time": 300.0},
    "data": {"name": "digits", "devices": 3},
    "model": {"name": "mlp"},
    "local": {"epochs": 1, "learning_rate": 0.1},
    "algorithm": {"name": "fedbuff", "buffer": 2, "concurrency": 3},
    "privacy": {"noise_multiplier": 1.0, "clip": 0.1, "most_updates": 4},
    "evaluation": {"every_versions": 2},
    "execution": {"checkpoint_seconds": 1e9},  # none but those that privacy demands
}
DELAYS = {100: 0.3, 101: 0.7, 102: 1.1}


class Killed(BaseException):
    """As by SIGKILL."""


class Released:
    """All models that were sent to devices, and a server that dies before it sends the `dies_at`-th."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dies_at: int) -> None:
        self.models: dict[int, set[str]] = {}
        self.orders: dict[int, int] = {}
        original, count = Transport.send, 0

        def send(transport: Transport, sent: SentMessage, body: Any, vector: Vector | None = None) -> bool:
            nonlocal count
            if isinstance(body, Begin):
                count += 1
                if count == dies_at:
                    raise Killed
                assert vector is not None
                self.models.setdefault(body.base, set()).add(sha256(vector.tobytes()).hexdigest())
                self.orders[body.device] = self.orders.get(body.device, 0) + 1
            return original(transport, sent, body, vector)

        monkeypatch.setattr(Transport, "send", send)


def run(tables: dict[str, Any], out: Path, *, resume: bool = False) -> None:
    experiment = Experiment.parse(merge(TABLES, tables))
    deploy(experiment, LoopbackGrid(DELAYS, run_config(experiment)), out, resume=resume)


@pytest.mark.parametrize("dies_at", [4, 5, 6, 8])
def test_no_version_is_released_twice_with_different_noise(
    dies_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = Released(monkeypatch, dies_at)
    with pytest.raises(Killed):
        run({}, tmp_path)
    run({}, tmp_path, resume=True)
    assert set(released.models) >= {0, 1, 2, 3}
    assert all(len(models) == 1 for models in released.models.values())
    summary = json.loads((tmp_path / "summary.json").read_text())
    counts = {int(number): devices for number, devices in summary["privacy"]["devices_by_contributions"].items()}
    assert summary["versions"] == 4 and sum(number * devices for number, devices in counts.items()) == 8
    assert max(counts) <= 4
    with pytest.raises(InvalidInput, match="the noise of a private run is secret"):
        replay(tmp_path)


def test_the_noise_of_a_real_run_does_not_come_from_its_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = Released(monkeypatch, -1)
    for name in ("one", "other"):
        run({"stop": {"versions": 2}}, tmp_path / name)
    assert (len(released.models[0]), len(released.models[1])) == (1, 2)


def test_every_order_of_example_level_privacy_is_counted_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = Released(monkeypatch, 6)
    tables = {"privacy": {"level": "example", "most_updates": 4}, "stop": {"versions": 3}}
    with pytest.raises(Killed):
        run(tables, tmp_path)
    run(tables, tmp_path, resume=True)
    summary = json.loads((tmp_path / "summary.json").read_text())
    counted = [int(number) for number in summary["privacy"]["devices_by_contributions"]]
    assert max(counted) >= max(released.orders.values()) and max(released.orders.values()) <= 4


# The strategy ---------------------------------------------------------------------------------------------------------

STEPS = {0: 1.0, 1: float("inf"), 2: 1e30}


def model(**more: Array) -> ArrayRecord:
    return ArrayRecord({"weight": Array(np.zeros((2, 3), np.float32)), **more})


def test_the_strategy_bounds_what_any_node_can_do() -> None:
    # Moves of [1, ...], infinity and 1e30: clipped to norm 1, zero, and clipped to norm 1; noise of 1e-4.
    strategy = Async(
        FedBuff(buffer=3, concurrency=3),
        privacy={"noise_multiplier": 1e-4, "clip": 1.0, "most_updates": 2},
        min_available_nodes=3,
        fraction_evaluate=0.0,
    )
    grid = AppGrid({0: 1.0, 1: 2.0, 2: 3.0}, adding_app(STEPS, {0: 1.0, 1: 1e6, 2: 10.0}))
    result = strategy.start(grid, model(), num_rounds=1)  # type: ignore[arg-type]
    moved = result.arrays["weight"].numpy()
    assert np.linalg.norm(moved) == pytest.approx(2 / 3, abs=1e-2)
    assert not np.array_equal(moved, np.full((2, 3), moved[0, 0]))  # there is noise


def test_the_strategy_refuses_what_cannot_be_private() -> None:
    privacy = {"noise_multiplier": 1.0}
    with pytest.raises(InvalidInput, match="'FedAsync' has no private form"):
        Async(FedAsync(), privacy=privacy)
    with pytest.raises(InvalidInput, match="a stock client app trains by itself"):
        Async(FedBuff(), privacy=privacy | {"level": "example"})
    with pytest.raises(InvalidInput, match="the run is not private"):
        Async(FedBuff(), epsilon=1.0)
    grid = AppGrid({0: 1.0, 1: 2.0}, adding_app(STEPS, {0: 1.0, 1: 1.0}))
    strategy = Async(FedBuff(buffer=2, concurrency=2), privacy=privacy)
    with pytest.raises(InvalidInput, match="the array 'steps' is not of floats"):
        strategy.start(grid, model(steps=Array(np.array([3]))), num_rounds=1)  # type: ignore[arg-type]
