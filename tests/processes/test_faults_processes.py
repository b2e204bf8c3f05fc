"""Faults of real processes: whatever is killed or talks nonsense, the run ends as it should and the model is sound.

What must be true of every run is checked by `faulty.outcome`, as for the many faults that `tests/deployment` tries
without processes. Few runs that see several faults each, because a message costs some seconds of a core.
"""

import csv
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty import outcome
from user_project import follow, user_project

from offbeat.deployment.bundle import write_bundle
from offbeat.deployment.launch import Launched, RunFailed, submit
from offbeat.deployment.local_cluster.cluster import Cluster
from offbeat.settings.schema import Experiment

pytestmark = pytest.mark.processes


# A project with a model and data of its own, some of whose devices are mischievous -----------------------------------

SERVER = """
from mine.task import network, test_data
from offbeat.deployment import server_app

EXPERIMENT = {
    "stop": {"updates": 18},
    "data": {"devices": 6},
    "algorithm": {"name": "fedasync", "concurrency": 6},
    "evaluation": {"every_versions": 1},
    "deployment": {"start_with": 5, "answer_seconds": 240.0, "rest_seconds": 0.1},
}
app = server_app(EXPERIMENT, model=network, test_data=test_data)
"""
CLIENT = """
import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from mine.task import network, own_data
from offbeat.deployment import client_app

honest = client_app(model=network, data=own_data)
app = ClientApp()


@app.train("offbeat")
def answer(message, context):
    folder, device = Path(context.run_config["folder"]), int(context.node_config["partition-id"])
    order = bool(message.content.array_records)
    if order and device == 4:
        (folder / "training").touch()
        time.sleep(3600)
    reply = honest(message, context)
    if not order:
        return reply
    state, array = context.state, reply.content["offbeat-model"]["vector"]
    number = state["orders"]["n"] + 1 if "orders" in state else 1
    state["orders"] = ConfigRecord({"n": number})
    if (device, number) == (3, 1):
        state["first talk"], state["first model"] = reply.content["offbeat"], ArrayRecord({"vector": array})
    if (device, number) in MISCHIEF:
        MISCHIEF[device, number](reply.content, array, state)
    elif device != 5 and not (folder / "gate").exists():
        time.sleep(10)  # so that the run does not end before all has happened that is to happen
    return Message(reply.content, reply_to=message)


def wrong_shape(content, array, state):
    content["offbeat-model"] = ArrayRecord({"vector": Array(array.numpy()[:-1])})


def not_a_number(content, array, state):
    content["offbeat-model"] = ArrayRecord({"vector": Array(array.numpy() * np.float32("nan"))})


def unknown_ticket(content, array, state):
    talk = json.loads(content["offbeat"]["json"]) | {"ticket": 999}
    content["offbeat"] = ConfigRecord({"json": json.dumps(talk)})


def replayed(content, array, state):
    content["offbeat"], content["offbeat-model"] = state["first talk"], state["first model"]


def oversized(content, array, state):
    huge = Array(dtype="float32", shape=array.shape, stype="numpy.ndarray", data=bytes(8 * 10**6))
    content["offbeat-model"] = ArrayRecord({"vector": huge})


MISCHIEF = {
    (2, 1): wrong_shape,
    (2, 2): not_a_number,
    (2, 3): unknown_ticket,
    (3, 2): replayed,
    (3, 3): oversized,
}
"""
REFUSALS = {
    2: ["not (212,) float32", "the parameters are not finite", "Delivery of ticket 999"],
    3: ["leg 1, where ticket", "8,000,000 bytes of parameters where 848 belong"],
}


def delivered(out: Path, device: int) -> int:
    if not (out / "devices.csv").is_file():
        return 0
    with (out / "devices.csv").open(newline="") as lines:
        return int(list(csv.DictReader(lines))[device]["delivered"])


def test_nodes_that_are_killed_or_answer_garbage_or_come_late(tmp_path: Path) -> None:
    """Devices 0 and 1 are good, 2 and 3 send garbage first, 4 is killed in training, 5 joins late."""
    out = tmp_path / "out"
    with Cluster(5, logs=tmp_path / "logs") as cluster:
        run = submit(user_project(tmp_path, SERVER, CLIENT), cluster.address)

        def look(log: str) -> None:
            if cluster.nodes[4].alive and (tmp_path / "training").exists():
                cluster.nodes[4].kill()
            if len(cluster.nodes) == 5 and log.count(": refused: ") == 5:
                cluster.add_node(5, wait=False)
            if "device 4: its node is gone" in log and delivered(out, 5):
                (tmp_path / "gate").touch()

        log = follow(run, look)
    found = outcome(out)
    assert found.summary["stopped_by"] == "updates" and found.summary["updates_used"] == 18
    assert found.summary["updates_refused"] == 5
    for (
        device,
        reasons,
    ) in REFUSALS.items():  # a busy machine may have faults of its own
        refused = [line["why"] for line in found.of("fault", device=device) if line["why"].startswith("refused: ")]
        for why, reason in zip(refused, reasons, strict=True):
            assert reason in why and f"device {device}: {why}\n" in log
    reasons = [line["reason"] for line in found.of("Lost", device=4)]  # Flower tells of orders first
    assert reasons and all(why.startswith(("Flower error 5: ", "its node is gone")) for why in reasons)
    assert [device["refused"] for device in found.devices] == [0, 0, 3, 2, 0, 0]
    assert [device["used"] >= 1 for device in found.devices] == [True, True, True, True, False, True]
    assert found.of("joined", device=5) and "device 5 joined" in log


# The server's side ---------------------------------------------------------------------------------------------------


def test_server_app_killed_and_superlink_restarted(tmp_path: Path) -> None:
    """Resumed twice, from checkpoints: what had been used stays used, and nothing is used twice."""
    out = tmp_path / "out"
    experiment = Experiment.parse(
        {
            "stop": {"updates": 10},
            "data": {"name": "digits", "devices": 2},
            "model": {"name": "mlp"},
            "local": {"epochs": 1},
            "algorithm": {"name": "fedasync", "concurrency": 2},
            "evaluation": {"every_versions": 1},
            "execution": {"checkpoint_seconds": 0.01},
            "deployment": {"answer_seconds": 240.0},
        }
    )

    def start(cluster: Cluster, *, resume: bool) -> Launched:
        bundle = tmp_path / f"bundle-{len(list(tmp_path.glob('bundle-*')))}"
        bundle.mkdir()
        write_bundle(bundle, experiment, out=str(out), resume=resume)
        return submit(bundle, cluster.address)

    def used(count: int) -> Callable[[str], bool]:
        """Whether so many updates are in the metrics, and a checkpoint has been written since."""

        def look(log: str) -> bool:
            metrics, checkpoint = out / "metrics.jsonl", out / "checkpoint" / "latest.safetensors"
            if not metrics.is_file() or not checkpoint.is_file():
                return False
            lines = metrics.read_text().splitlines()
            since = checkpoint.stat().st_mtime_ns > metrics.stat().st_mtime_ns
            return since and bool(lines) and json.loads(lines[-1])["updates_used"] >= count

        return look

    with Cluster(2, durable=True, logs=tmp_path / "logs") as cluster:
        first = start(cluster, resume=False)
        follow(first, used(2))
        for pid in cluster.server_app():
            os.kill(pid, signal.SIGKILL)
        log = follow(start(cluster, resume=True), used(5))
        cluster.restart_superlink()  # the nodes find it again by themselves, because it is durable
        log += follow(start(cluster, resume=True), lambda _: None)
        with pytest.raises(RunFailed, match="the run failed: No heartbeat"):
            follow(first, lambda _: None)

    found = outcome(out)
    assert found.summary["stopped_by"] == "updates" and found.summary["updates_used"] == 10
    assert len(found.of("resumed")) == 2
    assert {line["reason"] for line in found.of("Lost")} == {"the server was restarted"}
    versions = [line["version"] for line in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())]
    assert versions == sorted(set(versions)), "no version was evaluated twice"
    assert f"results in {out}" in log
