"""Nodes on a real SuperLink, warm ones and Flower's own: who may take part, and whatever can go wrong.

Few runs that see several faults each, because starting processes is what takes the time. What must be true of every run
is checked by `faulty.outcome`, as for the many faults that `tests/flower` tries without processes.
"""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import pytest
import tomli_w
from faulty import outcome
from recorded import recorded
from user_project import MOST_SECONDS, follow, user_project

from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import merge
from offbeat.flower.launch.bundle import write_bundle
from offbeat.flower.launch.certificates import make_credentials
from offbeat.flower.launch.local_cluster import HOST, Cluster
from offbeat.flower.launch.superlink import Launched, RunFailed, SuperLink, submit
from offbeat.simulation.replay import replay

pytestmark = pytest.mark.processes


def experiment(algorithm: dict[str, Any], **changes: Any) -> Experiment:
    table: dict[str, Any] = {
        "stop": {"versions": 6},
        "data": {"name": "digits", "devices": 2},
        "model": {"name": "mlp"},
        "local": {"epochs": 4},
        "algorithm": algorithm,
        "evaluation": {"every_versions": 1},
        "deployment": {"answer_seconds": 120.0, "rest_seconds": 0.1},
    }
    return Experiment.parse(merge(table, changes))


def start(
    cluster: Cluster, setting: Experiment, out: Path, *, resume: bool = False, superlink: SuperLink | None = None
) -> Launched:
    bundle = out.parent / f"bundle-{len(list(out.parent.glob('bundle-*')))}"
    bundle.mkdir()
    write_bundle(bundle, setting, out=str(out), resume=resume)
    return submit(bundle, superlink or cluster.address)


def test_with_tls_and_keys_both_kinds_of_nodes_take_part_in_one_run_and_those_without_get_nothing(
    tmp_path: Path,
) -> None:
    """`offbeat deploy` under SEAFL2, with a warm node that is told to stop and a stock one that checks in. The keys of
    two more, a warm one and a stock one, are not registered."""
    setting = experiment(
        {"name": "seafl2", "buffer": 1, "concurrency": 2, "staleness_limit": 1},
        data={"devices": 4},
        local={"epochs": 3},
        fleet={"name": "ratio", "ratio": 1.5, "epoch_seconds": 1.0},
        deployment={"paced": True, "leg_seconds": 3.0, "start_with": 2},
        stop={"versions": 2},
    )
    (tmp_path / "small.toml").write_text(tomli_w.dumps(setting.table()))
    credentials, strangers = make_credentials(tmp_path / "certificates", 4), make_credentials(tmp_path / "others", 0)
    with Cluster(1, warm=True, credentials=credentials, logs=tmp_path / "logs") as cluster:
        stock = cluster.add_node(1, warm=False, wait=False)
        intruders = [cluster.add_node(2, registered=False, wait=False)]
        intruders.append(cluster.add_node(3, warm=False, registered=False, wait=False))
        address = cluster.address.address
        deploy = [sys.executable, "-c", "from offbeat.cli import main; main()", "deploy", "small.toml", "--out", "run"]
        secured = ["--superlink", address, "--root-certificates", str(credentials.authority)]
        said = subprocess.run([*deploy, *secured], cwd=tmp_path, capture_output=True, text=True, timeout=MOST_SECONDS)
        assert said.returncode == 0, said.stdout + said.stderr
        for superlink, why in (
            (SuperLink(address=address, insecure=True), "speaks TLS"),
            (SuperLink(address=address, root_certificates=strangers.authority), "is not accepted by"),
        ):
            with pytest.raises(RunFailed, match=why):
                start(cluster, setting, tmp_path / "nobody", superlink=superlink)
        for intruder in intruders:
            intruder.wait(60)
    assert stock.log.is_file() and "device 2" not in said.stdout and "device 3" not in said.stdout
    found = outcome(tmp_path / "run")
    assert not found.faults and found.summary["devices"] == 2 and found.summary["stopped_by"] == "versions"
    assert found.devices[0]["delivered"] and not any(device["orders"] for device in found.devices[2:])
    warm, other = (intruder.log.read_text() for intruder in intruders)
    assert "Failed to activate SuperNode" in warm and "Failed to activate SuperNode" in other
    assert "connected" not in warm and ": run " not in warm and "Traceback" not in warm
    assert "Receiving" not in other and "flwr-clientapp" not in other
    replay(tmp_path / "run")


# Faults ---------------------------------------------------------------------------------------------------------------

SERVER = """
from pathlib import Path

from mine.task import network, test_data
from offbeat.algorithms.fedasync import FedAsync
from offbeat.core.messages import Finish
from offbeat.flower import server_app


class UntilAllIsSeen(FedAsync):
    def react(self, event, state, view):
        yield from super().react(event, state, view)
        if Path("FOLDER/seen").exists():
            yield Finish(reason="all is seen")


EXPERIMENT = {
    "stop": {"updates": 1000000},
    "data": {"devices": 11},
    "algorithm": {"name": "mine.server_app:UntilAllIsSeen", "concurrency": 11},
    "evaluation": {"every_versions": 20},
    "deployment": {"start_with": 10, "answer_seconds": 20.0, "rest_seconds": 0.5},
}
app = server_app(EXPERIMENT, model=network, test_data=test_data)
"""
CLIENT = """
import json
import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.clientapp import ClientApp
from mine.task import network, own_data
from offbeat.flower import client_app
from offbeat.flower.protocol.messages import PROTOCOL

honest = client_app(model=network, data=own_data)
app = ClientApp()


@app.train(f"offbeat{PROTOCOL}")
def answer(message, context):
    folder, device = Path(context.run_config["folder"]), int(context.node_config["partition-id"])
    reply = honest(message, context)
    if not message.content.array_records:
        return reply  # a greeting
    sign = folder / f"order-{device}"
    first = not sign.exists()
    sign.write_text(str(os.getpid()))
    time.sleep(0.5)
    if first and device in (1, 2, 9):
        time.sleep(3600)  # until the test kills this process, the node ends it, or the test kills the node
    if first and device == 3:
        eaten = []
        while True:
            eaten.append(bytearray(2**24))
    if device == 5 and not (folder / "frozen").exists():
        time.sleep(2)  # so that it is frozen in the midst of an order
    return mischief(message, context, reply, device)


def mischief(message, context, reply, device):
    state, array = context.state, reply.content["offbeat-model"]["vector"]
    number = state["orders"]["n"] + 1 if "orders" in state else 1
    state["orders"] = ConfigRecord({"n": number})
    if (device, number) == (8, 1):
        state["first talk"], state["first model"] = reply.content["offbeat"], ArrayRecord({"vector": array})
    if (device, number) in MISCHIEF:
        MISCHIEF[device, number](reply.content, array, state)
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
    huge = Array(dtype="float32", shape=array.shape, stype="numpy.ndarray", data=bytes(8 * 10**5))
    content["offbeat-model"] = ArrayRecord({"vector": huge})


MISCHIEF = {
    (7, 1): wrong_shape,
    (7, 2): not_a_number,
    (7, 3): unknown_ticket,
    (8, 2): replayed,
    (8, 3): oversized,
}
"""
REFUSALS = {
    7: ["not (212,) float32", "the parameters are not finite", "UpdateReply for ticket 999"],
    8: ["leg 1: expected ticket", "800,000 bytes of parameters, not 848"],
}


class Wire:
    """A way to the SuperLink that can be cut: then nothing comes through, and nobody is told."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._whole = Event()
        self._whole.set()
        self._door = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._door.getsockname()[1]}"
        Thread(target=self._accept, daemon=True).start()

    def cut(self, seconds: float) -> None:
        """For so long, in the background."""
        self._whole.clear()
        Timer(seconds, self._whole.set).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._door.accept()
                far = socket.create_connection((HOST, self._port))
                for source, target in ((near, far), (far, near)):
                    Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(2**16):
                if not self._whole.is_set():
                    break  # lost, and with it the connection when the wire is whole again
                target.sendall(content)
        self._whole.wait()
        for end in (source, target):
            with suppress(OSError):
                end.close()

    def close(self) -> None:
        self._door.close()


@contextmanager
def full_disk(folder: Path) -> Iterator[Path | None]:
    """A file system without room, if we may make one."""
    folder.mkdir()
    made = os.geteuid() == 0 and sys.platform == "linux"
    if made:
        command = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)]
        made = subprocess.run(command, capture_output=True).returncode == 0
    yield folder if made else None
    if made:
        subprocess.run(["umount", str(folder)], check=True)


def test_whatever_goes_wrong_nothing_hangs_and_all_is_seen(tmp_path: Path) -> None:
    """Device 0 is good. The child of 1 is killed, the app of 2 never returns, that of 3 allocates without end. The node
    of 4 is killed, that of 5 frozen beyond its deadline and woken, that of 6 cut off for 30 s. 7 and 8 send garbage.
    The node of 9, a stock one, is killed in training. 10 joins late, and one more has no disk."""
    out, done = tmp_path / "out", set[str]()

    def once(name: str) -> bool:
        new = name not in done
        done.add(name)
        return new

    def order_of(device: int) -> int | None:
        path = tmp_path / f"order-{device}"
        return int(path.read_text() or 0) if path.is_file() else None

    with full_disk(tmp_path / "full") as full, Cluster(0, warm=True, logs=tmp_path / "logs") as cluster:
        wire = Wire(cluster.superlink.port)
        folder = ["--writable", str(tmp_path)]
        limits = ["--answer-seconds", "10", "--memory-mb", "2000", *folder]
        together = [text for device in (1, 2, 3, 7, 8) for text in ("--node-config", f"partition-id={device}")]
        cluster.add_node(0, options=[*limits, *together], wait=False)
        killed, frozen = (cluster.add_node(device, options=folder, wait=False) for device in (4, 5))
        cut_off = cluster.add_node(6, address=wire.address, options=folder, wait=False)
        stock = cluster.add_node(9, warm=False, wait=False)
        broken = None if full is None else cluster.add_node(11, home=full, wait=False)
        run = submit(user_project(tmp_path, SERVER.replace("FOLDER", str(tmp_path)), CLIENT), cluster.address)
        thaw = float("inf")

        def look(log: str) -> None:
            nonlocal thaw
            if order_of(1) and once("child killed"):
                os.kill(order_of(1) or 0, signal.SIGKILL)
            if order_of(4) and once("node killed"):
                killed.kill()
            if order_of(9) and once("stock node killed"):
                stock.kill()
            if order_of(5) and once("node frozen"):
                for pid in frozen.pids():
                    os.kill(pid, signal.SIGSTOP)
                (tmp_path / "frozen").touch()
            if "device 5: no reply within" in log and once("node woken"):
                for pid in frozen.pids():
                    os.kill(pid, signal.SIGCONT)
            if order_of(6) and once("wire cut"):
                wire.cut(30.0)
                thaw = time.monotonic() + 30.0
            if sum(log.count(f"device {device}: refused: ") for device in REFUSALS) == 5 and once("late joiner"):
                cluster.add_node(10, options=folder, wait=False)
            seen = all(
                text in log
                for text in (
                    "device 1: Flower error 8: the app's process is gone: it was ended by SIGKILL",
                    "device 2: Flower error 8: the app's process is gone: it was ended by SIGKILL",
                    "device 3: Flower error ",
                    "device 4: its node is gone",
                    "device 5: refused: the reply for ticket",
                    "device 6: ",
                    "device 9: its node is gone",
                    "device 10 joined",
                )
            )
            well = (0, 1, 2, 3, 5, 6, 7, 8, 10)
            if seen and time.monotonic() > thaw and all(used(out, device) for device in well):
                (tmp_path / "seen").touch()

        log = follow(run, look)
        wire.close()
    found = outcome(out)
    assert found.summary["stopped_by"] == "all is seen"
    assert {line["device"] for line in found.of("fault")} >= {1, 2, 3, 4, 5, 6, 7, 8, 9}
    assert all(line["reason"] for line in found.of("Lost"))
    assert found.summary["faults_node_error"] >= 3, "the children of 1, 2 and 3"
    assert found.summary["faults_node_gone"] >= 2 and found.summary["faults_unanswered"] >= 1
    assert found.summary["updates_refused"] >= 6 and found.summary["restarts"] == 0
    assert not found.devices[9]["used"] and found.of("joined", device=10)
    for device, reasons in REFUSALS.items():
        refused = [line["why"] for line in found.of("fault", device=device) if line["why"].startswith("refused: ")]
        for why, reason in zip(refused, reasons, strict=True):
            assert reason in why and f"device {device}: {why}\n" in log
        assert found.devices[device]["refused"] == len(reasons)
    assert "; trying again" in cut_off.log.read_text()
    cut = {line["why"] for line in found.of("fault", device=6)}
    assert any("no reply within" in why or "its node is gone" in why or "Flower error 5" in why for why in cut)
    if broken is not None:
        assert "Flower error 7: the app cannot be written to" in log
        assert any("the app cannot be written to" in line["why"] for line in found.of("fault", device=-1))
        assert found.summary["faults_not_admitted"] >= 1
        assert "No space left on device" in broken.log.read_text()


def used(out: Path, device: int) -> int:
    """Updates of a device that went into the model, by the last table that was written."""
    if not (out / "devices.csv").is_file():
        return 0
    with (out / "devices.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    return int(rows[device]["used"]) if len(rows) > device else 0


def test_a_superlink_that_has_forgotten_everything_is_found_again_and_devices_remember(tmp_path: Path) -> None:
    """It keeps nothing in a file. The nodes register anew by themselves, and FedASMU's tables are still there."""
    setting = experiment(
        {"name": "fedasmu", "cohort": 2, "period": 0.5, "max_in_flight": 2},
        stop={"versions": 16},
        execution={"checkpoint_seconds": 0.01},
    )
    out = tmp_path / "run"

    def learned(_: str) -> bool:
        record = out / "record.jsonl"
        return record.is_file() and record.read_text().count('"Uploaded"') >= 6

    with Cluster(2, warm=True, logs=tmp_path / "logs") as cluster:
        follow(start(cluster, setting, out), learned)
        cluster.restart_superlink()
        follow(start(cluster, setting, out, resume=True))
        nodes = cluster.nodes[0].log.read_text()
    assert nodes.count("connected to") == 4, "each of the two nodes twice"
    lines = recorded(out)
    again = next(number for number, line in enumerate(lines) if line["what"] == "resumed")
    assert {line["reason"] for line in lines if line["what"] == "Lost"} <= {"the server was restarted"}
    assert json.loads((out / "summary.json").read_text())["restarts"] == 1
    first: dict[int, int] = {}
    for line in lines[again:]:
        if line["what"] == "Uploaded":
            first.setdefault(line["device"], line["remembered"])
    assert first and all(first.values()), "their first orders after the restart began with what they knew before"
    replay(out)
