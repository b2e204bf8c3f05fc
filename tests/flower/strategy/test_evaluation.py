"""Evaluation by nodes under `Async`: the same nodes for every version, the last one always; the log and the hooks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_grid import AppGrid, adding_app
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from offbeat.flower import Async, FedAvg, FedBuff
from offbeat.results.rows import evaluator_columns

STEPS, SAMPLES = {0: 1.0, 1: 2.0, 2: 3.0}, {0: 10.0, 1: 20.0, 2: 30.0}
DELAYS = {0: 1.0, 1: 2.0, 2: 30.0}


def train(strategy: Async, delays: dict[int, float] = DELAYS, **settings: Any) -> tuple[Result, AppGrid]:
    grid = AppGrid(delays, adding_app(STEPS, SAMPLES), leaves=settings.pop("leaves", {}))
    first = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    return strategy.start(grid, first, **settings), grid  # type: ignore[arg-type]


def evaluators(grid: AppGrid) -> dict[int, list[int]]:
    """The nodes that were sent each version for evaluation."""
    found: dict[int, list[int]] = {}
    for message in grid.sent:
        if message.metadata.message_type == "evaluate":
            version = int(str(message.content.config_records["config"]["server-round"]))
            found.setdefault(version, []).append(message.metadata.dst_node_id)
    return found


def test_the_same_nodes_evaluate_every_version_that_is_evaluated_and_the_last_one_always_is(tmp_path: Path) -> None:
    result, grid = train(Async(FedBuff(buffer=2), out=tmp_path / "run"), num_rounds=20)
    # Node 2 trains for 30 s: until then it evaluates nothing, and versions that nodes 0 and 1 make then are skipped.
    asked = evaluators(grid)
    assert 2 <= len(asked) < 20 and max(asked) == 20
    assert all(nodes == [0, 1, 2] for nodes in asked.values())
    assert sorted(result.evaluate_metrics_clientapp) == sorted(asked)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["version"] for row in rows] == sorted(asked)
    assert all(row.items() >= evaluator_columns({0: 10, 1: 20, 2: 30}).items() for row in rows)
    assert rows[0]["time"] == 2.0  # when version 1 was made, not when the last node had evaluated it
    assert [row["mean"] for row in rows] == [result.evaluate_metrics_clientapp[version]["mean"] for version in asked]


def test_a_part_of_the_nodes_stays_the_same_part_and_one_that_leaves_is_replaced() -> None:
    few = {"fraction_evaluate": 0.5, "min_evaluate_nodes": 1}
    equal = dict.fromkeys(range(4), 1.0)
    _, grid = train(Async(FedAvg(), **few), equal, num_rounds=4)  # type: ignore[arg-type]
    first = evaluators(grid)[1]
    assert len(first) == 2 and all(nodes == first for nodes in evaluators(grid).values())
    _, grid = train(Async(FedAvg(), **few), equal, num_rounds=4, leaves={first[0]: 2.5})  # type: ignore[arg-type]
    later = evaluators(grid)[4]
    # Of three nodes one evaluates; the other member of the panel is still connected.
    assert later == [first[1]]


def test_the_log_has_what_flower_prints_with_staleness_and_orders_in_flight(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "flwr"):
        train(Async(FedBuff(buffer=2)), num_rounds=2)
    said = [record.getMessage().strip() for record in caplog.records]
    assert "[VERSION 1/2] at 2.0 s" in said
    # 2 s: nodes 0 and 1 have delivered; node 0 has another update on its way, and node 2 its first.
    assert "2 updates used, staleness 0 on average and 0 at most, 3 in flight" in said
    assert "└──> Aggregated MetricRecord: {'train_loss': 0.6666666666666666}" in said
    assert "Evaluation of version 2 by 3 nodes with 60 samples" in said
    assert said.count("Final results:") == 1
    assert any("Aggregated ClientApp-side Evaluate Metrics:" in line for line in said)


def test_a_callback_gets_every_version_with_its_metrics_and_may_stop_the_run() -> None:
    seen: list[tuple[int, float, dict[str, dict[str, Any]]]] = []

    def on_version(version: int, arrays: ArrayRecord, metrics: dict[str, MetricRecord]) -> bool:
        seen.append((version, float(arrays["w"].numpy()[0]), {name: dict(each) for name, each in metrics.items()}))
        return version == 3

    strategy = Async(FedAvg(), on_version=on_version, evaluate_every=2)

    def evaluate(version: int, _: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": version / 10})

    result, _ = train(strategy, {0: 1.0, 1: 1.0}, num_rounds=9, evaluate_fn=evaluate)
    step = (10 * 1 + 20 * 2) / 30
    assert [version for version, _, _ in seen] == [1, 2, 3]
    assert [number for _, number, _ in seen] == pytest.approx([step, 2 * step, 3 * step])
    loss = {"train_loss": pytest.approx(20 / 30)}
    evaluated = {"train": loss, "server": {"accuracy": 0.2}}
    assert [metrics for _, _, metrics in seen] == [{"train": loss}, evaluated, {"train": loss}]
    assert list(result.evaluate_metrics_serverapp) == [0, 2, 3]


def test_an_overridden_method_sees_what_nodes_measure_and_may_stop_the_run() -> None:
    class Early(Async):
        def evaluated(self, version: int, metrics: dict[str, Any]) -> bool:
            return bool(metrics["mean"] > 4.0)

    result, _ = train(Early(FedAvg()), {0: 1.0, 1: 1.0}, num_rounds=9)
    assert 3 <= max(result.evaluate_metrics_clientapp) < 9
