"""Runs from start to end: results, determinism, executors, and going on after being stopped or killed."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from offbeat.cli import main
from offbeat.core.errors import Interrupted, InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.results import checkpoint
from offbeat.results.comparison import Comparison
from offbeat.results.lock import DirectoryLock
from offbeat.simulation.run import run
from offbeat.training.processes import process_context


def small(**changes: Any) -> Experiment:
    """Twelve devices with digits, FedBuff, failures: half a second."""
    table: dict[str, Any] = {
        "stop": {"time": 60.0},
        "data": {"name": "digits", "devices": 12},
        "partition": {"name": "dirichlet", "alpha": 0.5},
        "model": {"name": "mlp"},
        "local": {"epochs": 2, "batch_size": 16, "learning_rate": 0.2},
        "algorithm": {"name": "fedbuff", "buffer": 3, "concurrency": 6},
        "failures": {"vanish": 0.1, "lost_upload": 0.1, "rejoin_seconds": 5.0, "detect_seconds": 2.0},
        "availability": {"name": "on-off", "on_seconds": 30.0, "off_seconds": 10.0},
        "evaluation": {"every_seconds": 3.0},
        "execution": {"executor": "sequential"},
    }
    return Experiment.parse(table).changed(changes)


def test_energy_and_traffic_have_a_price_where_the_experiment_names_one() -> None:
    priced = run(small(fleet={"watts": 7.2}, network={"price_per_gb": 0.5}, stop={"time": 20.0}))
    plain = run(small(stop={"time": 20.0}))
    for row, same in zip(priced.rows, plain.rows, strict=True):
        # 7.2 W for 3600 s are 7.2 Wh; half a unit of money per 1e9 bytes either way.
        assert row.pop("energy_wh") == pytest.approx(same["busy_seconds"] * 0.002)
        assert row.pop("traffic_cost") == pytest.approx((same["bytes_up"] + same["bytes_down"]) * 5e-10)
        assert row == same
    assert priced.summary["energy_wh"] > 0 and "energy_wh" not in priced.summary["metrics"]
    assert "energy_wh" not in plain.rows[-1]
    comparison = Comparison([priced])
    assert "energy Wh" in comparison.cells(comparison.by_algorithm[0]) and "traffic_cost" in comparison.csv_text()


def test_a_run_directory_has_everything(tmp_path: Path) -> None:
    result = run(small(), tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary == json.loads(json.dumps(result.summary))
    promised = {"algorithm", "seed", "time", "versions", "updates_used", "updates_discarded", "bytes_up", "bytes_down"}
    promised |= {"final_accuracy", "best_accuracy", "time_to_accuracy", "wall_seconds"}
    assert promised <= summary.keys()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows == result.rows
    assert {"time", "version", "accuracy", "loss"} <= rows[0].keys()
    assert [row["time"] for row in rows] == [3.0 * k for k in range(21)]
    assert rows[-1]["accuracy"] > rows[0]["accuracy"] + 0.1
    assert result.parameters is not None
    tensors = load_file(tmp_path / "run" / "model.safetensors")
    assert sum(tensor.size for tensor in tensors.values()) == result.parameters.size
    timeline = json.loads((tmp_path / "run" / "timeline.json").read_text())
    assert {event["ph"] for event in timeline} == {"X", "i", "M"}
    assert Experiment.load(tmp_path / "run" / "config.toml").table() == small().table()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "config.toml",
        "devices.csv",
        "fleet.json",
        "metrics.jsonl",
        "model.safetensors",
        "orders.bin",
        "summary.json",
        "timeline.json",
        "wall_seconds.txt",
    ]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        run(small(seed=seed), tmp_path / name)
    one, two, three = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("one", "two", "three"))
    assert one == two != three
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (
        tmp_path / "two" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("algorithm", ["fedavg", "fedasync", "fedbuff"])
def test_worker_processes_give_the_same_bits(algorithm: str) -> None:
    settings = {"algorithm": {"name": algorithm, "cohort" if algorithm == "fedavg" else "concurrency": 6}}
    alone = run(small(**settings, stop={"time": 20.0}))
    pooled = run(small(**settings, stop={"time": 20.0}, execution={"workers": 2}))
    assert alone.rows == pooled.rows
    assert alone.parameters is not None and pooled.parameters is not None
    assert alone.parameters.tobytes() == pooled.parameters.tobytes()


@pytest.mark.parametrize("executor", ["stacked", "auto", "processes"])
def test_other_executors_agree_within_float_tolerance(executor: str) -> None:
    exact = run(small(stop={"time": 20.0}))
    other = run(small(stop={"time": 20.0}, execution={"executor": executor}))
    assert [row["time"] for row in exact.rows] == [row["time"] for row in other.rows]
    assert [row["version"] for row in exact.rows] == [row["version"] for row in other.rows]
    assert exact.parameters is not None and other.parameters is not None
    np.testing.assert_allclose(other.parameters, exact.parameters, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedasync", "fedbuff"])
def test_a_run_that_is_interrupted_again_and_again_ends_as_one_never_stopped(tmp_path: Path, algorithm: str) -> None:
    experiment = small(algorithm={"name": algorithm, "cohort" if algorithm == "fedavg" else "concurrency": 6})
    run(experiment, tmp_path / "whole")
    stops, ended = 0, False
    while not ended:
        try:
            run(experiment, tmp_path / "cut", resume=True, interrupted=Countdown(7))
            ended = True
        except Interrupted:
            stops += 1
    assert stops > 3
    for name in ("metrics.jsonl", "model.safetensors", "timeline.json", "orders.bin"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_checkpoints_in_the_background_are_resumed_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "BACKGROUND_BYTES", 0)
    experiment = small(stop={"time": 20.0}, algorithm={"name": "fedbuff", "server_optimiser": "momentum", "buffer": 3})
    often = experiment.changed({"execution": {"checkpoint_seconds": 0.001}})
    run(experiment, tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(often, tmp_path / "cut", interrupted=Countdown(30))
    run(often, tmp_path / "cut", resume=True)
    for name in ("metrics.jsonl", "model.safetensors", "timeline.json", "orders.bin"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


class Countdown:
    """A flag that is set after it was read a number of times (a run reads it twice per event)."""

    def __init__(self, events: int) -> None:
        self.left = 2 * events

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.processes
def test_a_run_that_is_killed_ends_as_one_never_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = small(stop={"time": 150.0}, execution={"checkpoint_seconds": 0.05})
    run(experiment, tmp_path / "whole")
    file, latest = tmp_path / "experiment.toml", tmp_path / "cut" / "checkpoint" / "latest.safetensors"
    file.write_text(experiment.toml())
    (tmp_path / "cut").mkdir()  # --resume starts the run in an empty directory
    monkeypatch.setattr(sys, "argv", ["offbeat", "run", str(file), "--out", str(tmp_path / "cut"), "--resume"])
    kills, written = 0, 0
    for wait in (0.0, 0.1, 0.3):
        process = process_context("offbeat.cli").Process(target=main)  # which begins with our arguments
        process.start()
        while process.is_alive() and not (latest.exists() and latest.stat().st_mtime_ns > written):
            time.sleep(0.01)
        process.join(wait)
        kills += process.is_alive()
        process.kill()
        process.join()
        written = latest.stat().st_mtime_ns if latest.exists() else 0
    assert kills
    run(experiment, tmp_path / "cut", resume=True)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_finished_run_is_only_read(tmp_path: Path) -> None:
    first = run(small(), tmp_path / "run")
    again = run(small(), tmp_path / "run", resume=True)
    assert again.rows == first.rows
    assert again.summary == first.summary


def test_an_existing_run_is_not_overwritten_unasked(tmp_path: Path) -> None:
    run(small(), tmp_path / "run")
    before = (tmp_path / "run" / "summary.json").read_bytes()
    with pytest.raises(InvalidInput, match="pass resume=True to continue it or pass overwrite=True to replace it"):
        run(small(), tmp_path / "run")
    for resume in (False, True):  # the advice to resume would not help here
        with pytest.raises(
            InvalidInput,
            match=r"another experiment \(different: seed, 0 there and 1 here\): choose another directory",
        ):
            run(small(seed=1), tmp_path / "run", resume=resume)
    assert (tmp_path / "run" / "summary.json").read_bytes() == before
    run(small(seed=1), tmp_path / "run", overwrite=True)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["seed"] == 1


@pytest.mark.parametrize("stop", [{"time": 30.0}, {"time": 60.0, "versions": 4}])
def test_a_finished_run_is_extended_and_ends_as_one_that_had_the_longer_stop(
    tmp_path: Path, stop: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    short = small(stop=stop, execution={"checkpoint_seconds": 0.01})
    long = short.changed({"stop": {"time": 60.0} | ({"versions": 12} if "versions" in stop else {})})
    before = run(short, tmp_path / "extended")
    with pytest.raises(InvalidInput, match=r"another end \(stop.*: pass resume=True"):
        run(long, tmp_path / "extended")
    result = run(long, tmp_path / "extended", resume=True)
    run(long, tmp_path / "whole")
    assert len(result.rows) > len(before.rows) and "from the start" not in caplog.text
    for name in ("metrics.jsonl", "model.safetensors", "timeline.json", "config.toml", "devices.csv"):
        assert (tmp_path / "extended" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with pytest.raises(InvalidInput, match=r"another experiment \(different: stop"):
        run(short, tmp_path / "extended", resume=True)  # an end cannot be lowered


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"execution": {"checkpoint_seconds": 100.0}}, "it left no checkpoint"),
        ({"evaluation": None}, "evaluations are at other times"),
        ({"algorithm": {"name": "salf", "rounds": 3}}, "its algorithm plans up to its end"),
    ],
    ids=["no checkpoint", "default evaluations", "planned rounds"],
)
def test_a_run_that_cannot_be_continued_is_computed_again(
    tmp_path: Path, changes: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = small(availability="always", failures={"vanish": 0.0}, execution={"checkpoint_seconds": 0.01}).table()
    table = {section: value for section, value in (table | changes).items() if value is not None}
    shorter, longer = (table | {"stop": {"time": time}} for time in (10.0, 20.0))
    run(shorter, tmp_path / "extended")
    run(longer, tmp_path / "extended", resume=True)
    assert why in caplog.text
    run(longer, tmp_path / "whole")
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "extended" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_run_is_resumed_or_overwritten_but_not_both(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="either resumed or overwritten"):
        run(small(), tmp_path / "run", overwrite=True, resume=True)
    assert not (tmp_path / "run").exists()


def test_a_directory_with_other_things_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("ten years of work")
    with pytest.raises(InvalidInput, match="not a run directory"):
        run(small(), tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "ten years of work"


@pytest.mark.parametrize("damage", ["truncated", "foreign", "other"])
def test_a_bad_checkpoint_is_refused_in_one_sentence(tmp_path: Path, damage: str) -> None:
    with pytest.raises(Interrupted):
        run(small(), tmp_path / "run", interrupted=Countdown(20))
    path = tmp_path / "run" / "checkpoint" / "latest.safetensors"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "foreign":
        run(small(stop={"time": 1.0}), tmp_path / "foreign")
        path.write_bytes((tmp_path / "foreign" / "model.safetensors").read_bytes())
    else:
        with pytest.raises(Interrupted):
            run(small(seed=5), tmp_path / "other", interrupted=Countdown(20))
        path.write_bytes((tmp_path / "other" / "checkpoint" / "latest.safetensors").read_bytes())
    complaint = {"truncated": "is damaged", "foreign": "another version", "other": "another experiment"}[damage]
    with pytest.raises(InvalidInput, match=complaint):
        run(small(), tmp_path / "run", resume=True)


def test_bad_data_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="devices"):
        run(small(data={"devices": 5000}), tmp_path / "run")
    with pytest.raises(InvalidInput, match="lenet5"):
        run(small(model={"name": "lenet5"}), tmp_path / "run")
    with pytest.raises(InvalidInput, match=r"algorithm\.concurrency = 50: there are only 12 devices"):
        run(small(algorithm={"concurrency": 50}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_training_that_diverges_ends_the_run_and_keeps_its_results(tmp_path: Path) -> None:
    result = run(small(local={"learning_rate": 1e6, "weight_decay": 1e6}), tmp_path / "run")
    assert result.summary["stopped_by"].startswith("diverged: version 1 is not finite")
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize(
    ("stop", "reason"),
    [({"versions": 5}, "versions"), ({"updates": 12}, "updates"), ({"accuracy": 0.3}, "accuracy")],
)
def test_a_run_stops_by_whichever_comes_first(stop: dict[str, float], reason: str) -> None:
    result = run(small(stop=stop))
    assert result.summary["stopped_by"] == reason
    if reason == "versions":
        assert result.summary["versions"] == 5
    if reason == "updates":
        assert result.summary["updates_used"] == 12


def test_data_and_models_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_things.py").write_text(
        "import numpy as np\n"
        "from torch import nn\n"
        "def load(seed):\n"
        "    x = np.random.default_rng(seed).normal(size=(300, 4)).astype('float32')\n"
        "    y = (x[:, 0] > 0).astype('int64')\n"
        "    return x[:200], y[:200], x[200:], y[200:]\n"
        "def network(input_shape, classes):\n"
        "    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1),\n"
        "                         nn.Linear(8, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    table = {
        "stop": {"time": 60.0},
        "data": {"name": "own_things:load", "devices": 10},
        "partition": {"name": "shards", "labels_per_device": 2},
        "model": {"name": "own_things:network"},
        "local": {"batch_size": 0, "learning_rate": 0.5},
        "algorithm": {"name": "fedavg", "cohort": 5},
    }
    result = run(Experiment.parse(table))
    assert result.summary["final_accuracy"] > 0.7


def test_two_processes_never_write_to_one_directory(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(small(), tmp_path / "run", interrupted=Countdown(20))
    with DirectoryLock(tmp_path / "run"):
        for resume in (True, False):
            with pytest.raises(InvalidInput, match="another process is writing"):
                run(small(), tmp_path / "run", resume=resume, overwrite=not resume)
    run(small(), tmp_path / "run", resume=True)


def test_logs_that_have_lost_lines_are_not_patched_up(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(small(), tmp_path / "run", interrupted=Countdown(20))
    (tmp_path / "run" / "timeline.json").write_text("[")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(InvalidInput, match=r"timeline\.json has lost lines"):
        run(small(), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_single_flipped_bit_in_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(small(), tmp_path / "run", interrupted=Countdown(20))
    path = tmp_path / "run" / "checkpoint" / "latest.safetensors"
    data = bytearray(path.read_bytes())
    data[-50] ^= 1
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match="checksum"):
        run(small(), tmp_path / "run", resume=True)


def test_the_devices_in_training_are_a_mean_over_time_that_survives_a_stop(tmp_path: Path) -> None:
    """Every order counts from its sending to its landing, those in flight at the end up to there."""
    whole = run(small(), tmp_path / "whole")
    timeline = json.loads((tmp_path / "whole" / "timeline.json").read_text())
    seconds = sum(event["dur"] for event in timeline if event["name"].startswith("order")) / 1e6
    mean = whole.summary["in_training"]
    assert mean == pytest.approx(seconds / 60.0, rel=1e-5)  # the timeline is cut to microseconds
    assert 4.0 < mean <= 6.0  # concurrency 6, less while devices are away
    with pytest.raises(Interrupted):
        run(small(), tmp_path / "cut", interrupted=Countdown(40))
    assert run(small(), tmp_path / "cut", resume=True).summary["in_training"] == mean


def test_a_synchronous_round_of_one_device_keeps_one_in_training() -> None:
    table = {
        "stop": {"time": 20.0},
        "data": {"name": "digits", "devices": 1},
        "model": {"name": "logistic"},
        "algorithm": {"name": "fedavg", "cohort": 1},
    }
    assert run(Experiment.parse(table)).summary["in_training"] == pytest.approx(1.0)
