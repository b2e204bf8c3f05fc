"""The figures of a run that has ended, drawn into its directory."""

from collections.abc import Sequence
from pathlib import Path

from offbeat.results.plots import REAL_TIME, TIME, devices_figure, run_figure, save
from offbeat.results.rows import Row
from offbeat.running.directory import read_devices
from offbeat.settings.schema import Experiment


def draw_figures(experiment: Experiment, rows: Sequence[Row], directory: Path) -> bool:
    """Write `metrics.png` and, of a run on real devices, `devices.png`; returns whether it was one."""
    devices = read_devices(directory)
    title = f"{experiment.algorithm.title} on {experiment.data.name}, seed {experiment.seed}"
    save(run_figure(rows, title, REAL_TIME if devices else TIME), directory / "metrics.png")
    if devices:
        save(devices_figure(devices, title), directory / "devices.png")
    return bool(devices)
