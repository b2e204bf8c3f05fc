"""Tasks, optimisers and loss terms on real nodes: the same numbers as in the simulator, bit for bit."""

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from loopback import LoopbackGrid, deploy, run_config
from torch import nn

import offbeat
from offbeat.core.errors import InvalidInput
from offbeat.core.streams import stream
from offbeat.data.samples import Ragged
from offbeat.flower import client_app, server_app
from offbeat.flower.device.app import node_torch_device
from offbeat.training.tasks import Batch, MultiLabel, Regression, Task, TokenSequence
from offbeat.training.terms import LossTerm
from offbeat.training.trainer import Precision

TABLES: dict[str, Any] = {
    "stop": {"updates": 8},
    "data": {"name": "digits", "devices": 3},
    "model": {"name": "mlp"},
    "local": {"epochs": 2, "batch_size": 32, "learning_rate": 0.01},
    "algorithm": {"name": "fedbuff", "buffer": 2, "concurrency": 3},
    "evaluation": {"every_versions": 3},
}


class Calm(LossTerm):
    """scale times the mean square of the outputs."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def value(self, batch: Batch, outputs: Any) -> torch.Tensor:
        value: torch.Tensor = self.scale * (outputs**2).mean()
        return value


DELAYS = {100: 0.1, 101: 0.2, 102: 0.7}


@pytest.mark.parametrize(
    "changes",
    [
        {"local": {"optimiser": "adam", "keep_optimiser_state": True}},
        {"local": {"optimiser": "adamw", "weight_decay": 0.01, "clip_norm": 1.0}},
        {"local": {"optimiser": "rmsprop", "schedule": "cosine", "decay_every": 30, "schedule_over": "steps"}},
        {"local": {"momentum": 0.9, "keep_optimiser_state": True}},
        {"local": {"prox": 0.1}},
        {"local": {"terms": [{"name": "linear-quadratic", "alpha": 0.1}, {"name": "distillation"}]}},
        {"local": {"terms": [{"name": "contrastive"}, {"name": "absent-classes"}]}},
        {"local": {"optimiser": "torch.optim:Adagrad", "terms": [{"name": f"{__name__}:Calm", "scale": 0.1}]}},
        {"task": {"name": "classification", "label_smoothing": 0.1, "measures": ["f1", "loss"]}},
        {
            "algorithm": {"name": "seafl2", "buffer": 2, "concurrency": 3, "staleness_limit": 1},
            "local": {"optimiser": "polyak"},
        },
    ],
    ids=lambda changes: "-".join(str(value) for table in changes.values() for value in table)[:40],
)
def test_a_deployment_replays_bit_for_bit(changes: dict[str, Any], tmp_path: Path) -> None:
    from offbeat.experiment.tables import merge

    experiment = offbeat.Experiment.parse(merge(TABLES, changes))
    deploy(experiment, LoopbackGrid(DELAYS, run_config(experiment)), tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["updates_used"] >= 8 and summary["updates_refused"] == 0
    offbeat.replay(tmp_path / "run")


def model_after(execution: dict[str, Any], out: Path) -> bytes:
    experiment = offbeat.Experiment.parse(TABLES | {"stop": {"updates": 2}, "execution": execution})
    deploy(experiment, LoopbackGrid(DELAYS, run_config(experiment)), out)
    return (out / "model.safetensors").read_bytes()


def test_devices_train_where_and_as_precisely_as_the_experiment_says(tmp_path: Path) -> None:
    plain = model_after({}, tmp_path / "plain")
    half = model_after({"device": "cpu", "precision": "bfloat16"}, tmp_path / "half")
    assert len(half) == len(plain) and half != plain
    offbeat.replay(tmp_path / "half")
    assert model_after({"device": "auto"}, tmp_path / "auto") == plain or torch.cuda.is_available()


def context(**node_config: str) -> Context:
    return Context(run_id=1, node_id=1, node_config=dict(node_config), state=RecordDict(), run_config={})


def test_a_node_says_itself_where_it_trains() -> None:
    assert node_torch_device(context(device="cpu"), "cuda:99", "execution.device") == "cpu"
    assert node_torch_device(context(), "cpu", "execution.device") == "cpu"
    with pytest.raises(InvalidInput, match="node-config device = 'tpu': must be auto, cpu, mps, cuda"):
        node_torch_device(context(device="tpu"), "cpu", "execution.device")
    with pytest.raises(InvalidInput, match=r"execution\.device = 'cuda:99': torch finds \d+ CUDA devices"):
        node_torch_device(context(), "cuda:99", "execution.device")


class Tagger(nn.Module):
    """A number for each of five tokens at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 6)
        self.head = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.embedding(x))
        return out


def numbers(name: str, count: int) -> Any:
    x = stream(1, name).normal(size=(count, 4)).astype(np.float32)
    return x, x[:, :2]


def labels(name: str, count: int) -> Any:
    x, y = numbers(name, count)
    return x, (y > 0).astype(np.int64)


def tokens(name: str, count: int) -> Any:
    """The next token is the one after this."""
    random = stream(1, name)
    rows = [(random.integers(5) + np.arange(random.integers(3, 7))) % 5 for _ in range(count)]
    return Ragged.of([row[:-1] for row in rows]), Ragged.of([row[1:] for row in rows])


def seeded(make: Any) -> Any:
    def model() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made: nn.Module = make()
            return made

    return model


@pytest.mark.parametrize(
    ("task", "data", "model", "metric"),
    [
        (Regression(), numbers, seeded(lambda: nn.Linear(4, 2)), "r2"),
        (MultiLabel(), labels, seeded(lambda: nn.Linear(4, 2)), "micro_f1"),
        (TokenSequence(), tokens, seeded(Tagger), "token_accuracy"),
    ],
)
def test_a_task_a_model_and_data_of_ones_own(task: Task, data: Any, model: Any, metric: str, tmp_path: Path) -> None:
    def own(context: Context) -> Any:
        return data(f"device {context.node_config['partition-id']}", 30)

    summary = deploy_own(task, model, lambda: data("test", 50), client_app(model=model, data=own, task=task), tmp_path)
    assert summary["target_metric"] == metric
    assert summary[f"final_{metric}"] > 0.8
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1][metric] > rows[0][metric]


def deploy_own(task: Task, model: Any, test_data: Any, app: ClientApp, out: Path) -> dict[str, Any]:
    """The summary of a run of one's own apps."""
    tables = {
        "stop": {"versions": 10},
        "data": {"devices": 3},
        "local": {"optimiser": "adam", "learning_rate": 0.05},
        "algorithm": {"name": "fedavg", "cohort": 3},
        "evaluation": {"every_versions": 5},
    }
    server = server_app(tables, model=model, test_data=test_data, task=task, out=out)
    server(LoopbackGrid(dict.fromkeys(DELAYS, 0.0), {}, app=app), context())  # type: ignore[arg-type]
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def test_an_app_of_ones_own_says_where_and_how_precisely_it_trains(tmp_path: Path) -> None:
    model = seeded(lambda: nn.Linear(4, 2))
    losses = [
        deploy_own(
            Regression(),
            model,
            lambda: numbers("test", 50),
            client_app(
                model=model, data=lambda _: numbers("own", 30), task=Regression(), device="cpu", precision=precision
            ),
            tmp_path / precision,
        )["final_loss"]
        for precision in get_args(Precision)
    ]
    assert losses[0] != losses[1]
    assert losses[1] < 0.1
