"""Flower apps as users write them, unchanged, on a virtual clock. None of them knows of offbeat."""

import json
from collections.abc import Mapping
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from offbeat.comparison.gathered import comparison_of, gather
from offbeat.flower.virtual.run import simulate
from offbeat.flower.virtual.settings import AppSettings
from offbeat.results.report import report_html
from offbeat.results.result import Result, read_run

APPS = Path(__file__).parents[2] / "flower_apps"
UNEVEN = {"name": "ratio", "ratio": 110.0}


def run(name: str, *run_config: str, out: Path | None = None, **tables: Any) -> Result:
    given = {"nodes": 4, "fleet": UNEVEN} | tables
    return simulate(APPS / name, AppSettings.parse(given), out, run_config=run_config)


def test_no_app_knows_of_offbeat() -> None:
    files = list(APPS.rglob("*.py"))
    assert len(files) > 20
    assert not [file for file in files if "offbeat" in file.read_text()]


def test_numpy(tmp_path: Path) -> None:
    result = run("quickstart-numpy", out=tmp_path / "run")
    assert [row["version"] for row in result.rows] == [0, 1, 2, 3]
    assert result.rows[0]["time"] == 0.0
    assert result.summary["label"] == "fedavg"
    assert result.summary["stopped_by"] == "the app"
    assert result.rows[-1]["accuracy"] > 0.85 > result.rows[0]["accuracy"]
    assert {"loss", "eval_acc", "eval_loss", "train_loss"} <= result.rows[-1].keys()
    assert result.summary["updates_used"] == 12
    read = read_run(tmp_path / "run")
    assert (read.rows, read.summary["final_accuracy"]) == (result.rows, result.rows[-1]["accuracy"])
    assert read.parameters is not None and read.parameters.size == 650
    for name in ("config.toml", "timeline.json", "devices.csv", "summary.json"):
        assert (tmp_path / "run" / name).is_file()
    assert len((tmp_path / "run" / "devices.csv").read_text().splitlines()) == 5
    json.loads((tmp_path / "run" / "timeline.json").read_text())


def test_the_same_seed_gives_the_same_bytes_in_this_process_and_in_workers(tmp_path: Path) -> None:
    run("quickstart-numpy", "num-server-rounds=2", out=tmp_path / "here")
    run("quickstart-numpy", "num-server-rounds=2", out=tmp_path / "again")
    run("quickstart-numpy", "num-server-rounds=2", out=tmp_path / "workers", clients={"workers": 1})
    run("quickstart-numpy", "num-server-rounds=2", out=tmp_path / "other", seed=1)
    here, again, workers, other = (
        (tmp_path / name / "metrics.jsonl").read_bytes() for name in ("here", "again", "workers", "other")
    )
    assert here == again == workers != other


def test_strategies_stand_side_by_side_with_one_of_ours(tmp_path: Path) -> None:
    for strategy in ("fedavg", "fedadam", "krum"):
        run("quickstart-numpy", "num-server-rounds=2", f"strategy='{strategy}'", out=tmp_path / strategy)
    app = copytree(APPS / "quickstart-numpy", tmp_path / "app")
    server = app / "quickstart_numpy" / "server_app.py"
    changed = server.read_text().replace('"fedprox": FedProx', '"fedprox": ours')
    line = (
        "from offbeat.flower import Async, FedBuff\nours = lambda **k: Async(FedBuff(buffer=2, concurrency=3), **k)\n"
    )
    server.write_text(line + changed)
    settings = AppSettings.parse({"nodes": 4, "fleet": UNEVEN})
    ours = simulate(app, settings, tmp_path / "ours", run_config=["strategy='fedprox'", "num-server-rounds=6"])
    assert ours.summary["label"] == "fedbuff"
    assert ours.summary["mean_staleness"] > 0
    assert ours.rows[-1]["version"] == 6
    runs = gather([tmp_path / name for name in ("fedavg", "fedadam", "krum", "ours")])
    comparison = comparison_of(runs, 0.5)
    assert [each.algorithm for each in comparison.by_algorithm] == ["fedavg", "fedadam", "krum", "fedbuff"]
    assert "fedbuff" in report_html(comparison, [each.config for each in runs], "apps")
    # FedAvg waits for the slowest device in every round, FedBuff for two of them.
    assert ours.rows[1]["time"] < runs[0].rows[1]["time"]


def test_pytorch() -> None:
    result = run("quickstart-pytorch", "num-server-rounds=2", nodes=3)
    assert [row["version"] for row in result.rows] == [1, 2]
    assert result.summary["target_metric"] == "eval_acc"
    assert result.summary["faults"] == 0
    assert result.tensors is not None and "layers.0.weight" in result.tensors


def test_scikit_learn() -> None:
    result = run("quickstart-sklearn")
    assert result.rows[-1]["accuracy"] > 0.7
    assert {"test_logloss", "train_logloss"} <= result.rows[-1].keys()


@pytest.mark.parametrize("clients", [{}, {"workers": 2}], ids=["here", "workers"])
def test_nodes_keep_their_state(clients: Mapping[str, int], capsys: pytest.CaptureFixture[str]) -> None:
    run("personal-state", nodes=3, clients=clients)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("state ")]
    rounds = [json.loads(line.removeprefix("state ")) for line in lines]
    # The head of partition p grows by p + 1 with each of its trainings.
    assert [heads for _, heads, _ in rounds] == [[[p, (p + 1.0) * k] for p in range(3)] for k in (1, 2, 3)]
    assert [counts for _, _, counts in rounds] == [[[p, k] for p in range(3)] for k in (1, 2, 3)]


def test_mods_change_what_comes_and_goes() -> None:
    result = run("client-mods", nodes=2)
    assert result.rows[-1]["by-mod"] == pytest.approx(1.0)
    # Every round moves the model by a vector that a mod has cut to a length of 0.05.
    assert [row["norm"] for row in result.rows] == pytest.approx([0.05, 0.1])


def test_a_loop_of_its_own_with_named_actions(capsys: pytest.CaptureFixture[str]) -> None:
    result = run("named-actions", nodes=3)
    # Half a step, then two whole ones; accuracy is a tenth of it.
    assert [row["accuracy"] for row in result.rows] == pytest.approx([0.05, 0.15, 0.25])
    printed = capsys.readouterr().out
    assert "cores 6" in printed
    assert f"took {result.summary['ended_at']:.3f}"[:8] in printed  # what time.time() says is virtual
    assert run("named-actions", "poll-seconds=0.0", nodes=3).rows[-1]["accuracy"] == pytest.approx(0.25)


def test_adapters_of_a_language_model_take_their_time_on_the_links() -> None:
    result = run("lora-adapters", "num-server-rounds=1", nodes=2, network={"uplink_mbps": 1.0, "latency": 0.0})
    # 16 matrices of 8 x 768 float32 are 393,216 bytes, and 128 of a header each: 3.16 s on a link of 1 Mbit/s.
    assert result.rows[-1]["bytes_up"] == pytest.approx(2 * (393_216 + 16 * 128), rel=0.01)
    free = run("lora-adapters", "num-server-rounds=1", nodes=2, network={"uplink_mbps": 1e9, "latency": 0.0})
    assert result.rows[-1]["time"] - free.rows[-1]["time"] == pytest.approx(8 * 397_000 / 1e6, rel=0.02)


def test_an_app_from_before_the_message_api() -> None:
    result = run("before-messages")
    assert result.summary["label"] == "fedavg"
    # Clients 0 to 3 move half of the way to their number, so the mean goes from 0 to 0.75 and 1.125.
    losses = [sum((mean - goal) ** 2 for goal in range(4)) / 4 for mean in (0.75, 1.125)]
    assert [row["loss"] for row in result.rows] == pytest.approx(losses)
    slowest = run("before-messages", "num-server-rounds=1", fleet={"name": "ratio", "ratio": 1.0})
    # All clients train at once for a second, and on the way there are twice 0.05 s. Then they evaluate for a tenth.
    assert slowest.rows[-1]["time"] == pytest.approx(1.0 + 2 * 0.05, abs=0.01)
    assert slowest.summary["ended_at"] == pytest.approx(1.1 + 4 * 0.05, abs=0.01)


def test_the_workflow_that_came_between(tmp_path: Path) -> None:
    app = copytree(APPS / "before-messages", tmp_path / "app")
    text = (app / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(text.replace("server_app:app", "server_app:workflow_app"))
    settings = AppSettings.parse({"nodes": 4, "fleet": UNEVEN})
    assert simulate(app, settings).rows == run("before-messages").rows


def test_clients_of_before_that_come_and_go_are_waited_for() -> None:
    away = {"name": "on-off", "on_seconds": 1000.0, "off_seconds": 3000.0}
    result = run("before-messages", fleet={"name": "ratio", "ratio": 1.0}, availability=away)
    assert result.summary["stopped_by"] == "the app"
    assert result.rows[-1]["version"] == 2


def test_a_round_that_times_out_goes_on_without_the_slow() -> None:
    patient = run("quickstart-numpy", "num-server-rounds=2", "fraction-evaluate=0.0")
    hasty = run("quickstart-numpy", "num-server-rounds=2", "fraction-evaluate=0.0", "timeout=60.0")
    assert hasty.rows[-1]["time"] == pytest.approx(120.0)
    assert patient.rows[-1]["time"] > 120.0
    assert 0 < hasty.summary["updates_used"] < patient.summary["updates_used"] == 8
