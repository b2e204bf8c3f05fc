"""`offbeat watch`: what it draws of runs in every state."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import offbeat
from offbeat.cli import app
from offbeat.cli.watch import OrderSeconds, Views
from offbeat.results.lock import DirectoryLock

ROW = {"in_flight": 2, "updates_used": 4, "updates_discarded": 1, "updates_lost": 0, "mean_staleness": 0.5}


def write_run(path: Path, values: list[float], **more: float) -> None:
    path.mkdir(parents=True)
    (path / "config.toml").write_text('seed = 3\n[stop]\ntime = 40.0\n[algorithm]\nname = "fedbuff"\n')
    rows = [{"time": 10.0 * n, "version": n, "accuracy": value, **ROW, **more} for n, value in enumerate(values)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"time": 99')


def drawn(views: Views) -> tuple[str, bool]:
    view, running = views.draw()
    console = Console(width=100, record=True, file=StringIO())
    console.print(view)
    return console.export_text(), running


def test_a_run_in_progress_shows_curves_faults_and_the_slowest_devices_as_they_come(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.5, 0.9], faults_node_gone=2.0)
    timeline = tmp_path / "a" / "timeline.json"
    timeline.write_text('[\n{"name":"order (uploaded)","ph":"X","pid":0,"tid":7,"ts":0,"dur":3000000,"args":{}},\n{"na')
    views = Views(tmp_path / "a")
    with DirectoryLock(tmp_path / "a"):
        text, running = drawn(views)
    assert running and "fedbuff, seed 3: running" in text and "20 s, version 2, 50 % done" in text
    assert "▁▅█" in text and "90.0 %" in text and "updates: 4 used, 1 discarded, 0 lost" in text
    assert "faults: 2 node gone" in text and "7 (3 s)" in text
    with timeline.open("a") as file:  # the line that was cut is completed, and a slower device follows
        file.write('me":"version 1"},\n{"name":"order (uploaded)","tid":8,"dur":5000000},\n')
    text, running = drawn(views)
    assert not running and "8 (5 s), 7 (3 s)" in text and "--resume" in text


def test_a_finished_run_has_its_slowest_devices_from_the_table(tmp_path: Path) -> None:
    experiment = {"stop": {"time": 20.0}, "data": {"name": "digits", "devices": 3}, "model": "mlp"}
    offbeat.run(experiment | {"algorithm": {"name": "fedavg", "cohort": 2}}, tmp_path / "run")
    slowest = OrderSeconds(tmp_path / "run").slowest(1)
    assert len(slowest) == 1 and slowest[0][1] > 0
    shown = CliRunner().invoke(app, ["watch", str(tmp_path / "run")])
    assert shown.exit_code == 0 and "fedavg, seed 0: finished" in shown.output


def test_several_runs_have_a_row_each_and_names_are_not_markup(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / f"run{seed}", [0.1, 0.2])
    (tmp_path / "run2" / "config.toml").write_text('seed = 2\n[algorithm]\nname = "fedavg"\nlabel = "[red]x"\n')
    text, _ = drawn(Views(tmp_path))
    assert "fedbuff 3" in text and "[red]x 2" in text and "interrupted" in text


def test_a_directory_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(offbeat.InvalidInput, match="holds no run"):
        Views(tmp_path).draw()
