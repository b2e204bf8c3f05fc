"""The figures of a run that has ended, drawn into its directory."""

from collections.abc import Sequence
from pathlib import Path

from offbeat.results.plots import REAL_TIME, TIME, devices_figure, run_figure, save
from offbeat.results.rows import Row
from offbeat.running.directory import read_devices
from offbeat.settings.schema import Experiment


def draw_figures(experiment: Experiment, rows: Sequence[Row], directory: Path) -> bool:
    """Write `metrics.png` and, if there is a `devices.csv`, `devices.png`; returns whether it ran on real devices."""
    devices, real = read_devices(directory), (directory / "record.jsonl").is_file()
    title = f"{experiment.algorithm.title} on {experiment.data.name}, seed {experiment.seed}"
    figure = run_figure(rows, title, REAL_TIME if real else TIME, experiment.target_metric)
    save(figure, directory / "metrics.png")
    if devices:
        save(devices_figure(devices, title), directory / "devices.png")
    return real
