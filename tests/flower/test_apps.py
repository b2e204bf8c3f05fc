"""The two apps in a project of one's own, and where their settings come from."""

import csv
import json
from collections.abc import Iterable
from pathlib import Path

import httpx
import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from loopback import LoopbackGrid
from torch import nn

from offbeat import Experiment
from offbeat.core.errors import Disconnected, InvalidInput
from offbeat.core.streams import stream
from offbeat.flower import client_app, server_app
from offbeat.flower.experiment_source import SampleArrays, experiment_of

TABLES = {
    "stop": {"versions": 3},
    "data": {"devices": 3},
    "local": {"epochs": 2, "batch_size": 8, "learning_rate": 0.1},
    "algorithm": {"name": "fedavg", "cohort": 2},
    "evaluation": {"every_versions": 1},
}


def network() -> nn.Module:
    layer = nn.Linear(4, 2)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def samples(count: int, name: str) -> SampleArrays:
    """Which of two numbers is the larger."""
    x = stream(1, name).normal(size=(count, 4)).astype(np.float32)
    return x, (x[:, 0] > x[:, 1]).astype(np.int64)


def own_data(context: Context) -> SampleArrays:
    number = int(context.node_config["partition-id"])
    return samples(20 + number, f"device {number}")


def context_of(config: dict[str, str | bool | int | float]) -> Context:
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)


def grid_of() -> LoopbackGrid:
    app = client_app(model=network, data=own_data)
    return LoopbackGrid(dict.fromkeys((100, 101, 102), 0.0), {}, app=app)


def test_a_model_and_data_of_ones_own(tmp_path: Path) -> None:
    app = server_app(TABLES, model=network, test_data=lambda: samples(200, "test"), out=tmp_path / "results")
    app(grid_of(), context_of({}))  # type: ignore[arg-type]
    summary = json.loads((tmp_path / "results" / "summary.json").read_text())
    assert summary["versions"] == 3 and summary["updates_used"] == 6 and summary["updates_refused"] == 0
    assert summary["final_accuracy"] > 0.8
    with (tmp_path / "results" / "devices.csv").open() as file:
        devices = list(csv.DictReader(file))
    assert [int(device["samples"]) for device in devices if int(device["orders"])] == [
        20 + int(device["device"]) for device in devices if int(device["orders"])
    ]
    record = (tmp_path / "results" / "record.jsonl").read_text().splitlines()
    assert json.loads(record[0])["samples"] == [20, 21, 22]


def test_a_server_of_ones_own_trains_on_trusted_samples_that_it_does_not_evaluate_on(tmp_path: Path) -> None:
    tables = TABLES | {"trust": {"combine": "zeno++", "trusted_samples": 50}}
    seen: list[int] = []

    def liar(context: Context) -> SampleArrays:
        x, y = map(np.asarray, own_data(context))
        return x, 1 - y if context.node_config["partition-id"] == 1 else y

    def trusted_and_others() -> SampleArrays:
        x, y = map(np.asarray, samples(200, "test"))
        seen.append(len(y))
        return x.tolist(), y.tolist()

    app = server_app(tables | {"stop": {"versions": 6}}, model=network, test_data=trusted_and_others, out=tmp_path)
    clients = client_app(model=network, data=liar)
    app(LoopbackGrid(dict.fromkeys((100, 101, 102), 0.0), {}, app=clients), context_of({}))  # type: ignore[arg-type]
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    devices = list(csv.DictReader((tmp_path / "devices.csv").read_text().splitlines()))
    assert seen == [200]
    assert rows[-1]["rejected_updates"] == int(devices[1]["used"]) > 0  # those of the node with wrong labels
    assert rows[-1]["accuracy"] * 150 == pytest.approx(round(rows[-1]["accuracy"] * 150))
    with pytest.raises(InvalidInput, match=r"trust\.trusted_samples = 200: there are only 200 test samples"):
        app(grid_of(), context_of({"trust.trusted_samples": 200}))  # type: ignore[arg-type]


def test_the_run_config_wins_over_the_experiment() -> None:
    config = {"algorithm.name": "fedasync", "stop.versions": 7, "seed": 5, "unrelated": 1}
    experiment = experiment_of(TABLES, config)
    assert experiment.algorithm.name == "fedasync" and experiment.stop.versions == 7 and experiment.seed == 5
    assert experiment.local.epochs == 2


def test_what_an_experiment_chose_by_default_follows_the_run_config() -> None:
    chosen = Experiment(stop={"versions": 1})
    assert experiment_of(chosen, {}).local == chosen.local and chosen.local.optimiser == "polyak"
    for changed in ({"local.momentum": 0.9}, {"local.learning_rate": 0.2}, {"task.label_smoothing": 0.1}):
        assert experiment_of(chosen, changed).local.optimiser == "sgd"


def test_an_experiment_in_the_run_config(tmp_path: Path) -> None:
    experiment = experiment_of(None, {"experiment": json.dumps(TABLES)})
    assert experiment.algorithm.name == "fedavg"
    file = tmp_path / "experiment.toml"
    file.write_text(experiment.toml())
    assert experiment_of(file, {}).table() == experiment.table()


def test_a_mistake_is_said_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    app = server_app(TABLES, model=network, test_data=lambda: samples(8, "test"))
    with pytest.raises(InvalidInput):
        app(grid_of(), context_of({"algorithm.cohort": 9}))  # type: ignore[arg-type]
    assert "algorithm.cohort = 9: there are only 3 devices" in capsys.readouterr().out


def test_a_run_that_the_superlink_stops_leaves_a_checkpoint(tmp_path: Path) -> None:
    """As after `flwr stop`: Flower refuses the ServerApp's next call."""

    class Stopped(LoopbackGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            if self.messages > 6:  # three greetings, and the orders of the first round and some of the second
                raise httpx.HTTPStatusError(
                    "401", request=httpx.Request("POST", "http://x"), response=httpx.Response(401)
                )
            return super().pull_messages(message_ids)

    def grid(kind: type[LoopbackGrid]) -> LoopbackGrid:
        return kind(dict.fromkeys((100, 101, 102), 0.0), {}, app=client_app(model=network, data=own_data))

    app = server_app(TABLES, model=network, test_data=lambda: samples(200, "test"), out=tmp_path)
    with pytest.raises(Disconnected, match="has stopped the run"):
        app(grid(Stopped), context_of({}))  # type: ignore[arg-type]
    assert (tmp_path / "checkpoint" / "latest.safetensors").is_file()
    app(grid(LoopbackGrid), context_of({"resume": True}))  # type: ignore[arg-type]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["versions"] == 3 and summary["updates_used"] == 6 and summary["updates_lost"] == 2
