"""Compare runs from any directories; runs with the same label get labels that differ."""

import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offbeat.comparison.fairness import flattened, notes_on
from offbeat.core.errors import InvalidInput
from offbeat.results.comparison import Comparison
from offbeat.results.result import Result, read_run

UNTOLD = ("execution", "deployment", "compare", "sweep")
"""Tables that do not affect a run's numbers."""


def comparison_of(runs: Sequence[Result], target: float | None) -> Comparison:
    """A comparison of the runs, with notes on what differs if all of their experiments can be read."""
    experiments = {run.algorithm: run.experiment for run in reversed(runs) if run.experiment is not None}
    known = dict(reversed(experiments.items())) if all(run.experiment is not None for run in runs) else {}
    return Comparison(runs, target, notes=notes_on(known))


def gather(directories: Sequence[Path]) -> list[Result]:
    """The runs in these directories, each once, under different labels."""
    paths: dict[Path, Path] = {}
    for directory in directories:
        for path in _runs_in(directory):
            paths.setdefault(path.resolve(), path)
    return _told_apart([read_run(path) for path in paths.values()])


def _runs_in(directory: Path) -> list[Path]:
    """The directory itself, or the runs of the comparison that it holds."""
    if (directory / "metrics.jsonl").is_file():
        return [directory]
    runs = sorted(path.parent for path in directory.glob("*/metrics.jsonl"))
    if not runs:
        raise InvalidInput(f"{directory} holds no run: neither it nor a directory in it has a metrics.jsonl")
    return runs


def _told_apart(runs: Sequence[Result]) -> list[Result]:
    """The runs with different labels: whether they are real is added, then settings that differ, then the directory."""
    for more in (_real, _differing, _place):
        seen = Counter((run.algorithm, run.seed) for run in runs)
        twice = {label for (label, _), count in seen.items() if count > 1}
        groups = {label: [run for run in runs if run.algorithm == label] for label in twice}
        runs = [
            run.relabelled(f"{run.algorithm}{more(run, groups[run.algorithm])}") if run.algorithm in twice else run
            for run in runs
        ]
    return list(runs)


def _real(run: Result, group: Sequence[Result]) -> str:
    return " (real)" if run.real and not all(each.real for each in group) else ""


def _differing(run: Result, group: Sequence[Result]) -> str:
    """The settings in which the runs of a group differ, with the values of this run."""
    tables, mine = [_settings(each) for each in group], _settings(run)
    keys = [key for key in mine if len({repr(table.get(key)) for table in tables}) > 1]
    return "".join(f" {key.rpartition('.')[2]}={mine[key]}" for key in keys)


def _settings(run: Result) -> dict[str, Any]:
    return flattened(tomllib.loads(run.config), UNTOLD)


def _place(run: Result, group: Sequence[Result]) -> str:
    return f" ({run.directory})"
