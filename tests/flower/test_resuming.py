"""A server that is killed behind any checkpoint, even the first or the last, and resumes: it ends as it should have."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.app import Error, Message
from loopback import LoopbackGrid, Tamper, deploy, run_config

from offbeat.core.errors import Disconnected
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import merge
from offbeat.running.directory import RunDirectory
from offbeat.running.driver import Driver
from offbeat.simulation.replay import replay

TABLES: dict[str, Any] = {
    "stop": {"versions": 3, "time": 300.0},
    "data": {"name": "digits", "devices": 3},
    "model": {"name": "mlp"},
    "local": {"epochs": 1, "learning_rate": 0.1},
    "algorithm": {"name": "fedasync", "concurrency": 2},
    "evaluation": {"every_versions": 1},
    "execution": {"checkpoint_seconds": 1e-9},  # behind every turn
}
DELAYS = {100: 0.3, 101: 0.7, 102: 1.1}


class Killed(BaseException):
    """As by SIGKILL."""


class Bounded(LoopbackGrid):
    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        assert self.now < 400.0, "the run hangs"


def killed_behind(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Behind the checkpoint of this number; -1: when the run is over, before its results are written."""
    checkpoint, finish, count = RunDirectory.checkpoint, RunDirectory.finish, 0

    def end(self: RunDirectory, *more: Any) -> None:
        monkeypatch.setattr(RunDirectory, "finish", finish)
        raise Killed

    if number < 0:
        monkeypatch.setattr(RunDirectory, "finish", end)
        return

    def save(self: RunDirectory, driver: Driver, *more: Any) -> None:
        nonlocal count
        checkpoint(self, driver, *more)
        count += 1
        if count == number:
            monkeypatch.setattr(RunDirectory, "checkpoint", checkpoint)
            raise Killed

    monkeypatch.setattr(RunDirectory, "checkpoint", save)


@pytest.mark.parametrize("number", [1, 2, 3, 5, 7, -1])
def test_fedasync_ends_with_its_versions(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment.parse(TABLES)
    killed_behind(monkeypatch, number)
    with pytest.raises(Killed):
        deploy(experiment, Bounded(DELAYS, run_config(experiment)), tmp_path)
    deploy(experiment, Bounded(DELAYS, run_config(experiment)), tmp_path, resume=True)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["stopped_by"], summary["versions"], summary["updates_used"]) == ("versions", 3, 3)
    times = [json.loads(line)["time"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert times == sorted(times)
    assert replay(tmp_path).summary["replayed_versions"] == 3


def test_a_policy_that_had_finished_stays_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"algorithm": {"name": "salf", "rounds": 3}, "stop": {"versions": 1000, "time": 9.0}}
    paced = {"deployment": {"paced": True}, "fleet": {"name": "ratio", "epoch_seconds": 0.1}}
    experiment = Experiment.parse(merge(merge(TABLES, changes), paced))
    killed_behind(monkeypatch, -1)
    with pytest.raises(Killed):
        deploy(experiment, Bounded(DELAYS, run_config(experiment)).virtual(), tmp_path)
    deploy(experiment, Bounded(DELAYS, run_config(experiment)).virtual(), tmp_path, resume=True)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["stopped_by"], summary["versions"]) == ("time budget", 3)


@pytest.mark.parametrize("fails", range(4, 9))
def test_a_connection_that_breaks_between_two_messages_leaves_a_whole_checkpoint(fails: int, tmp_path: Path) -> None:
    """Three greetings come first; then the orders of a turn are sent one by one."""

    class Breaking(Bounded):
        def push_messages(self, messages: Any) -> Any:
            if self.messages + 1 >= fails:
                raise httpx.ConnectError("refused")
            return super().push_messages(messages)

    experiment = Experiment.parse(merge(TABLES, {"algorithm": {"name": "fedbuff", "buffer": 2, "concurrency": 3}}))
    with pytest.raises(Disconnected, match="does not respond"):
        deploy(experiment, Breaking(DELAYS, run_config(experiment)), tmp_path)
    deploy(experiment, Bounded(DELAYS, run_config(experiment)), tmp_path, resume=True)
    assert replay(tmp_path).summary["replayed_versions"] == 3
    summary = json.loads((tmp_path / "summary.json").read_text())
    devices = [line.split(",") for line in (tmp_path / "devices.csv").read_text().splitlines()]
    total = {name: sum(float(line[place]) for line in devices[1:]) for place, name in enumerate(devices[0])}
    assert total["bytes_down"] == summary["bytes_down"] and total["bytes_up"] == summary["bytes_up"]
    assert total["lost"] == summary["updates_lost"] and total["used"] == summary["updates_used"]


def lost(node: int, question: Message, answer: Message) -> Message | None:
    return answer if "hello" in str(question.content.config_records) else None


@pytest.mark.parametrize("tamper", [None, lost])
def test_a_run_without_devices_or_without_replies_can_be_resumed(tamper: Tamper | None, tmp_path: Path) -> None:
    experiment = Experiment.parse(merge(TABLES, {"deployment": {"answer_seconds": 5.0}}))
    grid = Bounded(
        DELAYS, run_config(experiment), leaves=dict.fromkeys(DELAYS, 1.5 if tamper is None else 999.0), tamper=tamper
    )
    with pytest.raises(Disconnected, match="no device connected or responded"):
        deploy(experiment, grid, tmp_path)
    deploy(experiment, Bounded(DELAYS, run_config(experiment)), tmp_path, resume=True)
    assert json.loads((tmp_path / "summary.json").read_text())["versions"] == 3


def test_a_run_in_which_every_device_fails_again_and_again_ends(tmp_path: Path) -> None:
    def broken(node: int, question: Message, answer: Message) -> Message | Error:
        return lost(node, question, answer) or Error(code=2, reason="division by zero")

    experiment = Experiment.parse(merge(TABLES, {"deployment": {"rest_seconds": 0.01}}))
    with pytest.raises(Disconnected, match="keep failing; last error: Flower error 2: division by zero"):
        deploy(experiment, Bounded(DELAYS, run_config(experiment), tamper=broken), tmp_path)
