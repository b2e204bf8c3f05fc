"""Trackers, each for real: TensorBoard's files, an MLflow store, W&B offline, a scrape by HTTP."""

import json
import logging
import socket
import urllib.request
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import offbeat
from offbeat.core.errors import InvalidInput
from offbeat.results import tracking
from offbeat.results.rows import Row

EXPERIMENT: dict[str, Any] = {
    "stop": {"time": 40.0},
    "data": {"name": "digits", "devices": 6},
    "model": {"name": "mlp"},
    "algorithm": {"name": "fedbuff", "buffer": 2, "concurrency": 3},
    "evaluation": {"every_seconds": 10.0},
    "execution": {"executor": "sequential"},
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """W&B without network, and the URI of an MLflow store of files (a database takes seconds to create)."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return (tmp_path / "mlruns").as_uri()


@pytest.mark.filterwarnings("ignore")  # of the trackers' own packages
def test_every_tracker_gets_the_rows_on_virtual_time_and_the_numbers_do_not_change(
    tmp_path: Path, environment: str
) -> None:
    plain = offbeat.run(EXPERIMENT, tmp_path / "plain")
    port, scraped = free_port(), dict[str, str]()

    def scrape(_: float, row: Row | None) -> None:
        if row is None or row["time"] < 20 or scraped:
            return
        for _attempt in range(200):  # the thread of the tracker may still be importing
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
                    text = page.read().decode()
            except OSError:
                Event().wait(0.05)
                continue
            lines = [line.split() for line in text.splitlines() if line.startswith("offbeat_")]
            scraped.update(dict(lines))
            return

    trackers = {"tensorboard": True, "mlflow": environment, "wandb": "tests", "prometheus": port, "wait_seconds": 120.0}
    tracked = offbeat.run(EXPERIMENT | {"tracking": trackers}, tmp_path / "tracked", watch=scrape)
    assert tracked.rows == plain.rows
    assert (tmp_path / "tracked/metrics.jsonl").read_bytes() == (tmp_path / "plain/metrics.jsonl").read_bytes()

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tracked/tensorboard"))
    events.Reload()
    shown = [(event.step, event.wall_time, event.value) for event in events.Scalars("accuracy")]
    assert shown == [(round(row["time"]), row["time"], pytest.approx(row["accuracy"])) for row in plain.rows]

    from mlflow.tracking import MlflowClient

    client, known = MlflowClient(environment), json.loads((tmp_path / "tracked/tracking.json").read_text())
    history = client.get_metric_history(known["mlflow"], "accuracy")
    assert [(each.timestamp, each.value) for each in history] == [(1000 * r["time"], r["accuracy"]) for r in plain.rows]
    run = client.get_run(known["mlflow"])
    assert run.info.status == "FINISHED" and run.info.run_name == "tracked"
    assert run.data.params["algorithm.buffer"] == "2"
    assert {each.path for each in client.list_artifacts(known["mlflow"])} >= {"config.toml", "summary.json"}

    (offline,) = (tmp_path / "tracked/wandb").glob(f"offline-run-*-{known['wandb']}")
    assert list(offline.glob("*.wandb")) and (offline / "files/summary.json").exists()

    assert float(scraped["offbeat_time"]) > 10 and "offbeat_in_flight" in scraped


def test_a_tracker_that_is_down_or_slow_is_named_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = Event()

    class Down:
        def __init__(self, run: object, table: object) -> None:
            raise OSError("connection refused\nmore")

    class Slow:
        def __init__(self, run: object, table: object) -> None:
            stuck.wait(60)

        row = end = lambda self, *_: None

    monkeypatch.setitem(tracking.TRACKERS, "mlflow", Down)
    monkeypatch.setitem(tracking.TRACKERS, "wandb", Slow)
    monkeypatch.setattr(tracking, "MOST_ROWS", 2)
    chosen = {"mlflow": "http://127.0.0.1:9", "wandb": "project", "wait_seconds": 0.05}
    with caplog.at_level(logging.WARNING, logger="offbeat"):
        result = offbeat.run(EXPERIMENT | {"tracking": chosen}, tmp_path / "run")
    stuck.set()
    assert result.summary["stopped_by"] == "time"
    assert "tracking.mlflow failed and is off for the rest of this run: connection refused" in caplog.text
    assert "tracking.wandb has not finished within 0.05 s" in caplog.text


def test_a_resumed_run_keeps_its_identity_and_a_run_of_a_comparison_has_a_group(tmp_path: Path) -> None:
    run = tracking.TrackedRun(name="a", settings={}, directory=tmp_path / "runs" / "a")
    (tmp_path / "runs" / "a").mkdir(parents=True)
    assert [run.identity("mlflow", lambda: "first"), run.identity("mlflow", lambda: "second")] == ["first", "first"]
    assert run.group == ""
    (tmp_path / "runs" / "config.toml").touch()
    assert run.group == "runs"


def test_a_missing_package_or_directory_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match="which has none"):
        offbeat.run(EXPERIMENT | {"tracking": {"tensorboard": True}})
    monkeypatch.setitem(tracking.MODULES, "wandb", "no_such_package")
    with pytest.raises(InvalidInput, match=r"tracking.wandb: .* pip install 'offbeat\[wandb\]'"):
        offbeat.compare(EXPERIMENT | {"tracking": {"wandb": "p"}}, ["fedavg"], 1, tmp_path / "out")
    assert not (tmp_path / "out").exists()
