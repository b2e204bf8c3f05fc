"""Scripts that begin Flower's simulation themselves, as notebooks and projects before `flwr run` do."""

from pathlib import Path

import flwr.simulation
import pytest

from offbeat.core.errors import InvalidInput
from offbeat.flower.virtual.run import AppFailed
from offbeat.flower.virtual.script import Script
from offbeat.flower.virtual.settings import AppSettings
from offbeat.results.result import Result

CLIENTS = """
import sys
import time
from time import sleep

import flwr as fl
import numpy as np


class Client(fl.client.NumPyClient):
    def __init__(self, goal):
        self.goal = float(goal)

    def fit(self, parameters, config):
        return [(parameters[0] + self.goal) / 2], 10, {}

    def evaluate(self, parameters, config):
        return (float(parameters[0][0]) - self.goal) ** 2, 10, {}


def make_strategy():
    return fl.server.strategy.FedAvg(initial_parameters=fl.common.ndarrays_to_parameters([np.zeros(3)]))


config = fl.server.ServerConfig(num_rounds=2)
"""
START = """
def client_fn(cid: str):
    return Client(cid).to_client()


if __name__ == "__main__":
    history = fl.simulation.start_simulation(
        client_fn=client_fn,
        num_clients=4,
        config=config,
        strategy=make_strategy(),
        client_resources={"num_cpus": 1, "num_gpus": 0.0},
    )
    print("losses", history.losses_distributed)
"""
RUN = """
from flwr.simulation import run_simulation

from shared import rounds


def client_fn(context):
    return Client(context.node_config["partition-id"]).to_client()


def server_fn(context):
    sleep(100)
    return fl.server.ServerAppComponents(strategy=make_strategy(), config=fl.server.ServerConfig(num_rounds=rounds))


for _ in range(int(sys.argv[1])):
    before = time.time()
    run_simulation(fl.server.ServerApp(server_fn=server_fn), fl.client.ClientApp(client_fn=client_fn), 4)
"""
LOSSES = [sum((mean - goal) ** 2 for goal in range(4)) / 4 for mean in (0.75, 1.125)]
"""Clients 0 to 3 move half of the way to their number, so the mean goes from 0 to 0.75 and 1.125."""


def run(folder: Path, text: str, *arguments: str, out: Path | None = None) -> list[Result]:
    (folder / "sim.py").write_text(CLIENTS + text)
    (folder / "shared.py").write_text("rounds = 2\n")
    settings = AppSettings.parse({"fleet": {"name": "ratio", "ratio": 1.0}})
    return Script(folder / "sim.py", settings, out).run(arguments)


def test_start_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = flwr.simulation.start_simulation
    (result,) = run(tmp_path, START)
    assert [row["loss"] for row in result.rows] == pytest.approx(LOSSES)
    assert (result.summary["label"], result.summary["messages"]) == ("fedavg", 16)
    # All train for a second, then evaluate for a tenth: on the way there are four times 0.05 s in each round.
    # The second version is made before its evaluation.
    assert result.rows[-1]["time"] == pytest.approx(2 * 1.1 + 0.2, abs=0.01)
    assert f"losses [(1, {LOSSES[0]}), (2, {LOSSES[1]})]" in capsys.readouterr().out
    assert flwr.simulation.start_simulation is before


def test_run_simulation_more_than_once(tmp_path: Path) -> None:
    first, second = run(tmp_path, RUN, "2", out=tmp_path / "out")
    assert [row["loss"] for row in first.rows] == pytest.approx(LOSSES)
    assert first.rows[0]["time"] == pytest.approx(100 + 1.1, abs=0.01)  # what a script sleeps is virtual
    assert second.rows == first.rows
    assert (first.directory, second.directory) == (tmp_path / "out", tmp_path / "out-2")
    assert (tmp_path / "out-2" / "summary.json").is_file()


def test_what_a_script_does_wrong_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="calls neither run_simulation nor start_simulation"):
        run(tmp_path, "")
    with pytest.raises(AppFailed, match=r"sim.py raised ValueError: plot"):
        run(tmp_path, START + "    raise ValueError('plot')\n")
    with pytest.raises(InvalidInput, match="no such file"):
        Script(tmp_path / "other.py", AppSettings())
    with pytest.raises(InvalidInput, match=r"clients\.workers = 2: must be 0"):
        Script(tmp_path / "sim.py", AppSettings.parse({"clients": {"workers": 2}}))
