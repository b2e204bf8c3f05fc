"""What is kept of every run of a reproduction: one line of a CSV file, from which all tables and pages are made."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isnan
from pathlib import Path

import numpy as np

from offbeat.comparison.fairness import order_seconds
from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.results.criterion import mean_until
from offbeat.results.figures import read_devices
from offbeat.results.files import replace_file
from offbeat.results.result import Result
from offbeat.results.summary import time_to

KEYS = ("part", "method", "seed")
MEASURES = (
    "final_accuracy",
    "mean_accuracy",
    "target",
    "time_to_target",
    "training_loss",
    "versions",
    "updates_used",
    "in_training",
    "megabytes_up",
    "megabytes_down",
    "device_seconds",
    "wasted_share",
    "slow_share",
    "diverged",
)
SLOW_SHARE = 0.2
"""The devices that count as slow: this share of the fleet, those that take longest for an order."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run: which part of the reproduction, which method, which seed, and what came out."""

    part: str
    method: str
    seed: int
    values: dict[str, float]
    """By the names in MEASURES; what a run does not have is missing, a target that was not reached is infinite, and so
    is a loss that is no number. `diverged` is 1 in a run that ended because its model was no longer finite."""
    settings: str = ""
    """The settings that were chosen on other seeds, as `table.key=value` with semicolons between."""
    run: str = ""
    """The run that this was measured on, as `record.identity` names it."""


def measured(
    result: Result,
    *,
    part: str,
    method: str,
    target: float | None,
    slow: Sequence[int] = (),
    settings: str = "",
    run: str = "",
) -> Measurement:
    """What a finished run comes to; `slow` are the devices whose share in the model is wanted."""
    summary, rows = result.summary, result.rows
    planned = result.experiment.stop.time if result.diverged and result.experiment is not None else None
    values = {
        "final_accuracy": summary["final_accuracy"],
        "mean_accuracy": mean_until(rows, planned or rows[-1]["time"]),
        "versions": summary["versions"],
        "updates_used": summary["updates_used"],
        "in_training": result.in_training,
        "megabytes_up": summary["bytes_up"] / 1e6,
        "megabytes_down": summary["bytes_down"] / 1e6,
        "device_seconds": summary["busy_seconds"],
        "wasted_share": summary["wasted_seconds"] / summary["busy_seconds"] if summary["busy_seconds"] else 0.0,
    }
    if "training_loss" in summary:
        loss = summary["training_loss"]
        values["training_loss"] = inf if isnan(loss) else loss
    if result.diverged:
        values["diverged"] = 1
    if target is not None:
        reached = time_to(rows, target)
        values["target"] = target
        values["time_to_target"] = inf if reached is None else reached
    if slow and result.directory is not None:
        values["slow_share"] = slow_share(result, slow)
    rounded = {name: _rounded(float(value)) for name, value in values.items()}
    return Measurement(part=part, method=method, seed=result.seed, values=rounded, settings=settings, run=run)


def slow_devices(experiment: Experiment) -> list[int]:
    """The slowest fifth of the devices, by the time that a plain order takes them."""
    seconds = order_seconds(experiment)
    slowest: list[int] = np.argsort(seconds)[len(seconds) - round(SLOW_SHARE * len(seconds)) :].tolist()
    return slowest


def slow_share(result: Result, slow: Sequence[int]) -> float:
    """The share of these devices in the samples behind the updates that were used, an update counting all of its
    device's samples."""
    assert result.directory is not None
    behind = {int(row["device"]): row["used"] * row["samples"] for row in read_devices(result.directory)}
    total = sum(behind.values())
    return sum(behind.get(device, 0.0) for device in slow) / total if total else 0.0


def _rounded(value: float) -> float:
    """Six digits, as they stand in the file: a page made from the runs is the page made from the file."""
    return float(f"{value:.6g}")


# The file ------------------------------------------------------------------------------------------------------------


def csv_text(measurements: Iterable[Measurement]) -> str:
    """One line per run; a target that was not reached is "never", what was not measured is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*KEYS, *MEASURES, "settings", "run"])
    for each in measurements:
        cells = [_cell(each.values.get(name)) for name in MEASURES]
        writer.writerow([each.part, each.method, each.seed, *cells, each.settings, each.run])
    return text.getvalue()


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return "never" if value == inf else f"{value:.6g}"


def read_measurements(path: Path) -> list[Measurement]:
    """The runs in a file that `csv_text` wrote; none if there is no such file."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames is None or not set(KEYS) <= set(reader.fieldnames):
            raise InvalidInput(f"{path} is no file of measurements: it must have the columns {', '.join(KEYS)}")
        return [
            Measurement(
                part=row["part"],
                method=row["method"],
                seed=int(row["seed"]),
                values={name: inf if row[name] == "never" else float(row[name]) for name in MEASURES if row.get(name)},
                settings=row.get("settings") or "",
                run=row.get("run") or "",
            )
            for row in reader
        ]


def write_measurements(path: Path, measurements: Iterable[Measurement]) -> None:
    """Replace the file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, csv_text(measurements).encode())


def by_seed(measurements: Iterable[Measurement], part: str, method: str, name: str) -> dict[int, float]:
    """One number of the runs of a method, by their seeds."""
    return {
        each.seed: each.values[name]
        for each in measurements
        if each.part == part and each.method == method and name in each.values
    }
