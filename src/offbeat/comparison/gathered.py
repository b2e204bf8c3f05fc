"""Runs from anywhere side by side: a comparison's directory stands for its runs, and runs alike are told apart."""

import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offbeat.comparison.fairness import flattened, notes_on
from offbeat.core.errors import InvalidInput, OffbeatError
from offbeat.results.comparison import ComparedRun, Comparison
from offbeat.running.directory import read_run
from offbeat.settings.schema import Experiment

UNTOLD = ("execution", "deployment", "compare", "sweep")
"""Tables that say nothing about a run's numbers."""


@dataclass(frozen=True)
class Gathered:
    """One run, its settings as text and as tables, and where it lies."""

    entry: ComparedRun
    config: str
    table: dict[str, Any]
    path: Path


@dataclass(frozen=True)
class GatheredRuns:
    """Runs under labels that tell them apart."""

    runs: list[Gathered]

    @property
    def configs(self) -> list[str]:
        return [run.config for run in self.runs]

    def comparison(self, target: float | None) -> Comparison:
        try:
            experiments = {run.entry.algorithm: Experiment.parse(run.table) for run in reversed(self.runs)}
            notes = notes_on(dict(reversed(experiments.items())))
        except OffbeatError:  # a policy or data of the user's that is not here now
            notes = []
        return Comparison([run.entry for run in self.runs], target, notes=notes)


def gather(directories: Sequence[Path]) -> GatheredRuns:
    """The runs in these directories, each once."""
    paths = dict.fromkeys(path.resolve() for directory in directories for path in _runs_in(directory))
    shown = {path.resolve(): path for directory in directories for path in _runs_in(directory)}
    runs = []
    for path in paths:
        found = read_run(shown[path])
        runs.append(Gathered(found.entry, found.config, tomllib.loads(found.config), shown[path]))
    return GatheredRuns(_told_apart(runs))


def _runs_in(directory: Path) -> list[Path]:
    """The directory itself, or the runs of the comparison that it holds."""
    if (directory / "metrics.jsonl").is_file():
        return [directory]
    runs = sorted(path.parent for path in directory.glob("*/metrics.jsonl"))
    if not runs:
        raise InvalidInput(f"{directory} does not hold a run: it has no metrics.jsonl, nor has a directory in it")
    return runs


def _told_apart(runs: Sequence[Gathered]) -> list[Gathered]:
    """With labels under which every seed occurs once: what is real, then what was set otherwise, then the directory."""
    for more in (_real, _differing, _place):
        seen = Counter((run.entry.algorithm, run.entry.seed) for run in runs)
        twice = {label for (label, _), count in seen.items() if count > 1}
        groups = {label: [run for run in runs if run.entry.algorithm == label] for label in twice}
        runs = [
            _labelled(run, more(run, groups[run.entry.algorithm])) if run.entry.algorithm in twice else run
            for run in runs
        ]
    return list(runs)


def _labelled(run: Gathered, more: str) -> Gathered:
    return replace(run, entry=replace(run.entry, algorithm=f"{run.entry.algorithm}{more}"))


def _real(run: Gathered, group: Sequence[Gathered]) -> str:
    return " (real)" if run.entry.real and not all(each.entry.real for each in group) else ""


def _differing(run: Gathered, group: Sequence[Gathered]) -> str:
    """The settings in which the runs of a group differ, with this one's values."""
    tables = [flattened(each.table, UNTOLD) for each in group]
    mine = flattened(run.table, UNTOLD)
    keys = [key for key in mine if len({repr(table.get(key)) for table in tables}) > 1]
    return "".join(f" {key.rpartition('.')[2]}={mine[key]}" for key in keys)


def _place(run: Gathered, group: Sequence[Gathered]) -> str:
    return f" ({run.path})"
