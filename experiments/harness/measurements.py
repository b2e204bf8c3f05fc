"""Measurements of finished runs, and the CSV file that all tables and pages are made from, one line per run.

The file is also a record of finished runs: a line names its run by a digest of everything that determines the numbers.
So a study continues from its file alone, on any machine, and runs again only what has changed or is missing.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isnan
from pathlib import Path

import numpy as np

from experiments.harness import Table
from offbeat import Experiment, InvalidInput, Result
from offbeat.comparison.run_cache import digest
from offbeat.experiment.tables import parse_changes
from offbeat.results.criterion import mean_until
from offbeat.results.files import replace_file
from offbeat.results.metric import time_to
from offbeat.running.sizing import order_seconds

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
    "slow_accuracy",
)
SLOW_SHARE = 0.2
"""The share of the devices that count as slow: those that take longest for an order."""
PLACES = (("data", "dir"), ("fleet", "path"))
"""Settings that locate files; only the last component of the path identifies a run."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The measured values of one run: a part of a study, a method and a seed."""

    part: str
    method: str
    seed: int
    values: dict[str, float]
    """Values by the names in MEASURES. The time to a target that was not reached is infinite, and so is a loss that is
    not a number. `diverged` is 1 if the run ended because its model was no longer finite."""
    settings: str = ""
    """The settings chosen on the tuning seed, as `table.key=value`, separated by semicolons."""
    run: str = ""
    """The run that was measured, as `identity` names it."""
    candidates: int = 0
    """The number of settings that they were chosen from. If a study has others now, it chooses again."""


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
    """Measure a finished run; `slow` are the devices whose share in the model is measured."""
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
    if slowest := summary.get("per_group", {}).get("slowest third"):
        values["slow_accuracy"] = slowest["accuracy"]
    if slow and result.directory is not None:
        values["slow_share"] = slow_share(result, slow)
    rounded = {name: _rounded(float(value)) for name, value in values.items()}
    return Measurement(part=part, method=method, seed=result.seed, values=rounded, settings=settings, run=run)


def slow_devices(experiment: Experiment) -> list[int]:
    """The slowest fifth of the devices, by the duration of a plain order."""
    seconds = order_seconds(experiment)
    slowest: list[int] = np.argsort(seconds)[len(seconds) - round(SLOW_SHARE * len(seconds)) :].tolist()
    return slowest


def slow_share(result: Result, slow: Sequence[int]) -> float:
    """The share of these devices in the samples behind the used updates; an update counts all samples of its device."""
    assert result.directory is not None
    behind = {int(row["device"]): row["used"] * row["samples"] for row in result.devices}
    total = sum(behind.values())
    return sum(behind.get(device, 0.0) for device in slow) / total if total else 0.0


def _rounded(value: float) -> float:
    """Round to the six digits that the file has, so that a page is the same from the runs and from the file."""
    return float(f"{value:.6g}")


# The file ------------------------------------------------------------------------------------------------------------


def csv_text(measurements: Iterable[Measurement]) -> str:
    """Write one line per run; a target that was not reached is "never", a value that was not measured is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*KEYS, *MEASURES, "settings", "run", "candidates"])
    for each in measurements:
        cells = [_cell(each.values.get(name)) for name in MEASURES]
        writer.writerow([each.part, each.method, each.seed, *cells, each.settings, each.run, each.candidates])
    return text.getvalue()


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return "never" if value == inf else f"{value:.6g}"


def read_measurements(path: Path) -> list[Measurement]:
    """Read a file that `csv_text` wrote; no measurements if it does not exist."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames is None or not set(KEYS) <= set(reader.fieldnames):
            raise InvalidInput(f"{path} is not a file of measurements: expected the columns {', '.join(KEYS)}")
        return [
            Measurement(
                part=row["part"],
                method=row["method"],
                seed=int(row["seed"]),
                values={name: inf if row[name] == "never" else float(row[name]) for name in MEASURES if row.get(name)},
                settings=row.get("settings") or "",
                run=row.get("run") or "",
                candidates=int(row.get("candidates") or 0),
            )
            for row in reader
        ]


def write_measurements(path: Path, measurements: Iterable[Measurement]) -> None:
    """Replace the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, csv_text(measurements).encode())


def by_seed(measurements: Iterable[Measurement], part: str, method: str, name: str) -> dict[int, float]:
    """One measure of a method's runs, by seed."""
    return {
        each.seed: each.values[name]
        for each in measurements
        if each.part == part and each.method == method and name in each.values
    }


# The record ----------------------------------------------------------------------------------------------------------


def identity(experiment: Experiment) -> str:
    """A digest of everything that determines a run's numbers, the same wherever its data files are."""
    table = experiment.table()
    named = {
        section: {"name": table[section]["name"], key: Path(table[section][key]).name}
        for section, key in PLACES
        if key in table[section]
    }
    return digest(experiment.changed(named))[:16]


class Record:
    """Measurements by the runs that they were made from."""

    def __init__(self, measurements: Iterable[Measurement] = ()) -> None:
        self._runs = {each.run: each for each in measurements if each.run}

    def find(self, experiment: Experiment, *, target: float | None, slow: bool) -> Measurement | None:
        """The measurement of a run, if it has this target and, if `slow`, the share of slow devices."""
        found = self._runs.get(identity(experiment))
        if found is None or found.values.get("target") != target or (slow and "slow_share" not in found.values):
            return None
        return found

    def has(self, experiment: Experiment) -> bool:
        """Whether the run has been measured."""
        return identity(experiment) in self._runs

    def chose(self, experiment: Experiment, candidates: int) -> bool:
        """Whether the run has been measured, with settings chosen from as many candidates."""
        found = self._runs.get(identity(experiment))
        return found is not None and found.candidates == candidates

    def settings_of(self, part: str, method: str, candidates: int) -> Iterator[Table]:
        """The settings that were chosen for a method from as many candidates, as changes to its experiment."""
        wanted = (part, method, candidates)
        lines = [e.settings for e in self._runs.values() if (e.part, e.method, e.candidates) == wanted]
        for line in dict.fromkeys(filter(None, lines)):
            yield parse_changes(line.split("; "))
