"""Flower's own strategies on a virtual clock, and strategies as its users write them."""

from pathlib import Path
from shutil import copytree

import pytest

from offbeat.flower.virtual.run import simulate
from offbeat.flower.virtual.settings import AppSettings
from offbeat.results.result import Result

APP = Path(__file__).parents[2] / "flower_apps" / "named-actions"
SERVER = """
import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp, strategy as flower
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


def evaluate_model(number, arrays):
    return MetricRecord({"accuracy": float(arrays["w"].numpy()[0])})
"""
MAIN = """

@app.main()
def main(grid, context):
    first = ArrayRecord({"w": Array(np.zeros(3))})
    STRATEGY.start(grid, first, num_rounds=2, evaluate_fn=evaluate_model)
"""


def run(folder: Path, server: str) -> Result:
    """An app whose clients add 1 to every weight, with another server."""
    app = copytree(APP, folder / "app")
    (app / "named_actions" / "server_app.py").write_text(SERVER + server)
    return simulate(app, AppSettings.parse({"nodes": 7, "fleet": {"name": "ratio", "ratio": 110.0}}))


@pytest.mark.parametrize(
    ("strategy", "weight"),
    [
        ("flower.FedAvg(fraction_train=0.5, min_available_nodes=3)", 2.0),
        ("flower.FedProx(proximal_mu=0.1)", 2.0),
        ("flower.FedAvgM()", 2.0),
        ("flower.FedMedian()", 2.0),
        ("flower.FedTrimmedAvg(beta=0.2)", 2.0),
        ("flower.Krum(num_malicious_nodes=1)", 2.0),
        ("flower.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=3)", 2.0),
        ("flower.Bulyan(num_malicious_nodes=1)", 2.0),
        ("flower.FedAdagrad()", None),
        ("flower.FedAdam()", None),
        ("flower.FedYogi()", None),
        ("flower.QFedAvg(client_learning_rate=0.1, train_loss_key='loss')", None),
        ("flower.DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 9.0, 7)", 2.0),
        ("flower.DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 0.0, 7)", None),
    ],
)
def test_every_strategy_of_flowers_trains(tmp_path: Path, strategy: str, weight: float | None) -> None:
    result = run(tmp_path, MAIN.replace("STRATEGY", strategy))
    assert result.summary["label"] == strategy.removeprefix("flower.").partition("(")[0].lower()
    assert (result.summary["stopped_by"], result.summary["faults"]) == ("the app", 0)
    assert [row["version"] for row in result.rows] == [0, 1, 2]
    if weight is None:
        assert result.rows[2]["accuracy"] > result.rows[1]["accuracy"] > 0.0
    else:
        assert result.rows[2]["accuracy"] == pytest.approx(weight)


def test_a_strategy_that_calls_another_start_is_seen_as_well(tmp_path: Path) -> None:
    own = """

class Own(FedAvg):
    def start(self, grid, **settings):
        first = ArrayRecord({"w": Array(np.zeros(3))})
        return super().start(grid, first, evaluate_fn=evaluate_model, **settings)


@app.main()
def main(grid, context):
    Own(fraction_evaluate=0.0).start(grid, num_rounds=2)
"""
    assert [row["accuracy"] for row in run(tmp_path, own).rows] == pytest.approx([0.0, 1.0, 2.0])


def test_a_second_start_has_rounds_of_its_own(tmp_path: Path) -> None:
    twice = """

@app.main()
def main(grid, context):
    arrays = ArrayRecord({"w": Array(np.zeros(3))})
    for _ in range(2):
        arrays = FedAvg().start(grid, arrays, num_rounds=1).arrays
"""
    # Clients measure a tenth of the first weight.
    assert [row["accuracy"] for row in run(tmp_path, twice).rows] == pytest.approx([0.1, 0.2])
