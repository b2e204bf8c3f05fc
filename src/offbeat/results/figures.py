"""The figures of a run that has ended, drawn into its directory."""

import csv
from collections.abc import Sequence
from pathlib import Path

from offbeat.experiment.schema import Experiment
from offbeat.results.plots import REAL_TIME, TIME, devices_figure, run_figure, save
from offbeat.results.rows import Row


def draw_figures(experiment: Experiment, rows: Sequence[Row], directory: Path) -> bool:
    """Write `metrics.png` and, if there is a `devices.csv`, `devices.png`; returns whether it ran on real devices."""
    devices, real = read_devices(directory), (directory / "record.jsonl").is_file()
    title = f"{experiment.algorithm.title} on {experiment.data.name}, seed {experiment.seed}"
    figure = run_figure(rows, title, REAL_TIME if real else TIME, experiment.target_metric)
    save(figure, directory / "metrics.png")
    if devices:
        save(devices_figure(devices, title), directory / "devices.png")
    return real


def read_devices(path: Path) -> list[Row]:
    """What each device of a run did; nothing if the fleet was too large to say."""
    if not (path / "devices.csv").is_file():
        return []
    with (path / "devices.csv").open(encoding="utf-8", newline="") as file:
        return [{name: float(value) for name, value in line.items()} for line in csv.DictReader(file)]
