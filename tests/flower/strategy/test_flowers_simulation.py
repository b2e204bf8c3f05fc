"""In a simulation of Flower's own, with its grid, its state and its workers; only Ray is left out, which is slow."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from app_grid import adding_app
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.server.superlink.fleet.vce.backend.backend import Backend
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result
from flwr.simulation import run_simulation

from offbeat.flower import Async, FedBuff


class InThisProcess(Backend):
    """Works on messages where Ray would."""

    num_workers = 1

    def build(self, app_fn: Callable[[], ClientApp]) -> None:
        self._app = app_fn()

    def is_worker_idle(self) -> bool:
        return True

    def terminate(self) -> None:
        pass

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        return self._app(message, context), context


def test_a_simulation_of_flowers_runs_with_the_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("raybackend")
    module.RayBackend = InThisProcess
    monkeypatch.setitem(sys.modules, "flwr.server.superlink.fleet.vce.backend.raybackend", module)
    results: list[Result] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        first = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
        results.append(Async(FedBuff(buffer=3)).start(grid, first, num_rounds=3))

    run_simulation(server, adding_app({}), 3, backend_name="in this process")
    (result,) = results
    assert list(result.train_metrics_clientapp) == [1, 2, 3]
    assert 3 in result.evaluate_metrics_clientapp
    assert 1.0 < float(result.arrays["w"].numpy()[0]) <= 3.0  # a version moves by 1, less what staleness takes off
