"""Flower projects whose servers have one line of offbeat's, on a real SuperLink with warm nodes and stock ones."""

import json
from pathlib import Path

import numpy as np
import pytest
from one_line import with_the_one_line
from safetensors.numpy import load_file
from user_project import follow, user_project

from offbeat.flower.launch.local_cluster import Cluster
from offbeat.flower.launch.superlink import submit

pytestmark = pytest.mark.processes

SERVER = """
import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp

from offbeat.flower import Async, FedBuff

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = Async(FedBuff(buffer=2), min_available_nodes=3, out=context.run_config["out"])
    first = ArrayRecord({"w": Array(np.zeros(4)), "seen": Array(np.array(0))})
    result = strategy.start(
        grid, first, num_rounds=4, evaluate_fn=lambda version, arrays: MetricRecord({"accuracy": 0.1 * version})
    )
    print("seen", int(result.arrays["seen"].numpy()), "evaluated", sorted(result.evaluate_metrics_clientapp))
"""
CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    if context.node_config["partition-id"] == 2:
        raise ValueError("no data here")
    arrays = message.content["arrays"]
    new = {"w": Array(arrays["w"].numpy() + 1.0), "seen": Array(np.asarray(arrays["seen"].numpy() + 1))}
    metrics = MetricRecord({"num-examples": 5, "round": message.content["config"]["server-round"]})
    return Message(RecordDict({"arrays": ArrayRecord(new), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    metrics = MetricRecord({"num-examples": 5, "mean": float(message.content["arrays"]["w"].numpy().mean())})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
"""


def test_one_line_makes_flower_projects_asynchronous(tmp_path: Path) -> None:
    """A project of three nodes of which one always fails, then apps of users, at last with a stock node as well."""
    with Cluster(3, warm=True, logs=tmp_path / "logs") as cluster:
        project = user_project(tmp_path, SERVER.strip(), CLIENT.strip())
        _check_project(follow(submit(project, cluster.address)), tmp_path / "out")
        for name in ("quickstart-pytorch", "personal-state"):  # all apps: tests/flower/virtual/test_one_line.py
            _check(follow(submit(with_the_one_line(name, tmp_path), cluster.address)), "FedBuff(buffer=2)")
        cluster.add_node(3, warm=False)
        everybody = (
            "ServerAppComponents(strategy=strategy",
            "ServerAppComponents(server=AsyncServer(flower.FedAvg(), strategy)",
        )
        app = with_the_one_line("before-messages", tmp_path, everybody)
        settings = (app / "pyproject.toml").read_text()
        (app / "pyproject.toml").write_text(settings.replace("num-server-rounds = 2", "num-server-rounds = 1"))
        _check(follow(submit(app, cluster.address)), "4 of 4 devices")


def _check_project(log: str, out: Path) -> None:
    summary = json.loads((out / "summary.json").read_text())
    assert summary["stopped_by"] == "versions" and summary["versions"] == 4 and summary["updates_used"] == 8
    assert "evaluated [" in log and "4]" in log
    assert "ValueError" in log and "no data here" in log
    moved = load_file(out / "model.safetensors")["w"]
    assert np.all(moved == moved[0]) and 2.0 < moved[0] <= 4.0  # each version moves by 1, less what staleness takes off


def _check(log: str, said: str) -> None:
    assert said in log
    assert "stopped by versions at version" in log
    assert "Error" not in log
