"""Nodes that say their name: matched with the names in the data, remembered if there are none, or refused."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict
from loopback import LoopbackGrid, deploy, run_config
from recorded import recorded

from offbeat.core.errors import DeviceFault, InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.flower.node.service import named_configs
from offbeat.flower.protocol.codec import pack
from offbeat.flower.protocol.messages import Greeting
from offbeat.flower.server.membership import Membership
from offbeat.flower.server.transport import ReceivedReply, SentMessage

MODEL = np.zeros(3, dtype=np.float32)


def run(out: Path, grid: LoopbackGrid, setting: Experiment) -> list[dict[str, str]]:
    """A whole run; returns the rows of devices.csv."""
    deploy(setting, grid, out)
    return list(csv.DictReader((out / "devices.csv").read_text().splitlines()))


def experiment(**tables: Any) -> Experiment:
    given: dict[str, Any] = {"stop": {"updates": 12}, "algorithm": {"name": "fedbuff", "buffer": 2, "concurrency": 3}}
    return Experiment(**given | {"model": "logistic", "evaluation": {"every_versions": 100}} | tables)


def test_nodes_are_the_devices_that_the_data_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"Aachen": 2, "Bern": 3, "Cork": 4}
    rows = [f"{site},{k},{k % 2}" for site, size in sizes.items() for k in range(size)]
    (tmp_path / "patients.csv").write_text("\n".join(["site,age,ill", *rows]) + "\n")
    data = {"name": "csv", "path": str(tmp_path / "patients.csv"), "target": "ill", "device": "site", "devices": 3}
    setting = experiment(data=data, deployment={"start_seconds": 2.0})
    names = {100: "Cork", 101: "Dijon", 102: "Aachen", 103: "Cork"}
    grid = LoopbackGrid(dict.fromkeys(names, 0.2), run_config(setting), named=False, names=names)
    devices = run(tmp_path / "run", grid, setting)
    assert [(row["name"], int(row["samples"])) for row in devices] == [("Aachen", 2), ("Bern", 0), ("Cork", 4)]
    assert all(int(row["used"]) > 0 for row in devices if row["name"] != "Bern")
    captured = capsys.readouterr()
    said = captured.out + captured.err
    assert "node 101: it has name='Dijon', but the devices are Aachen, Bern, Cork" in said
    assert "node 103: it has name='Cork', as node 100 has already" in said
    assert "device 2 (Cork) joined" in said
    assert json.loads((tmp_path / "run" / "fleet.json").read_text())["names"] == list(sizes)
    assert "Cork" in (tmp_path / "run" / "timeline.json").read_text()


def test_a_node_that_comes_back_under_its_name_is_the_same_device(tmp_path: Path) -> None:
    setting = experiment(data={"name": "digits", "devices": 3}, stop={"time": 8.0}, deployment={"start_with": 2})
    names = {100: "first", 101: "second", 102: "third", 104: "first"}
    grid = LoopbackGrid(
        dict.fromkeys(names, 0.2),
        run_config(setting),
        named=False,
        names=names,
        leaves={100: 2.0},  # its successor has another id, as a node that is upgraded without a key
        joins={102: 3.0, 104: 4.0},
    )
    devices = run(tmp_path / "run", grid, setting)
    assert [row["name"] for row in devices] == ["first", "second", "third"]
    joined = [line["device"] for line in recorded(tmp_path / "run") if line["what"] == "joined"]
    assert joined == [2, 0]


def greeting(**fields: Any) -> RecordDict:
    return pack(Greeting(**{"device": None, "samples": 1, "elements": 3} | fields))


@pytest.mark.parametrize(
    ("names", "fields", "said"),
    [
        (["a", "b"], {"name": "b", "device": 0}, "it has name='b', which is device 1, and partition-id=0"),
        (["a", "b"], {"name": "c", "device": 0}, "it has name='c', but the devices are a, b"),
        (None, {"name": "old", "device": 1}, "it has name='old', which is device 0, and partition-id=1"),
        (None, {"name": "old"}, "it has name='old', as node 1 has already"),
        (None, {"name": "new", "device": 0}, "it has partition-id=0, as node 1 has already"),
    ],
)
def test_a_name_that_contradicts_is_refused(names: list[str] | None, fields: dict[str, Any], said: str) -> None:
    membership = Membership(2, model=MODEL, batch_size=None, names=names)
    if names is None:
        first = SentMessage(node=1, at=0.0, deadline=9.0)
        assert membership.admit(ReceivedReply(sent=first, content=greeting(name="old")), 0.0) == 0
    with pytest.raises(DeviceFault, match=f"^{said}"):
        membership.admit(ReceivedReply(sent=SentMessage(node=2, at=0.0, deadline=9.0), content=greeting(**fields)), 0.0)


def test_a_free_number_is_one_that_no_name_belongs_to() -> None:
    membership = Membership(3, model=MODEL, batch_size=None)

    def admit(node: int, **fields: Any) -> int:
        sent = SentMessage(node=node, at=0.0, deadline=9.0)
        return membership.admit(ReceivedReply(sent=sent, content=greeting(**fields)), 0.0)

    assert (admit(1, name="a"), admit(2)) == (0, 1)
    membership.leave(1)
    assert admit(3) == 2  # and not 0, which is a's
    assert admit(4, name="a") == 0
    assert membership.names == ["a", "1", "2"]


def test_every_node_of_a_process_has_its_name() -> None:
    assert named_configs([], []) == [{}]
    assert named_configs([], ["a", "b"]) == [{"name": "a"}, {"name": "b"}]
    assert named_configs([{"partition-id": 3}], ["a"]) == [{"partition-id": 3, "name": "a"}]
    with pytest.raises(InvalidInput, match="--name is given 1 times, but --node-config 2 times"):
        named_configs([{}, {}], ["a"])
    with pytest.raises(InvalidInput, match="--name a is given twice"):
        named_configs([], ["a", "a"])
