"""Compare runs from any directories; runs with the same label get labels that differ."""

import os
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from offbeat.comparison.fairness import notes_on
from offbeat.core.errors import InvalidInput, OutputRefused, checks_keywords
from offbeat.experiment.tables import flattened
from offbeat.results.comparison import Comparison
from offbeat.results.files import replace_file
from offbeat.results.index import read_index
from offbeat.results.result import Result, read_run
from offbeat.results.rows import Row, on_one_set

UNTOLD = ("execution", "deployment", "compare", "sweep")
"""Tables that do not affect a run's numbers."""
ENOUGH = "stop.target"
"""The setting that ends the trials of a search, and not the runs of its winners: it labels no run."""
EXPERIMENT = ("data", "model", "task")
"""Tables that say what is learned: runs that differ in them are of different experiments."""


def comparison_of(runs: Sequence[Result], target: float | None) -> Comparison:
    """A comparison of the runs, with notes on what differs if all of their experiments can be read."""
    experiments = {run.algorithm: run.experiment for run in reversed(runs) if run.experiment is not None}
    known = dict(reversed(experiments.items())) if all(run.experiment is not None for run in runs) else {}
    notes = notes_on(known, runs) if known else []
    return Comparison(runs, target, notes=[*notes, *_evaluated_alike(runs)])


def _evaluated_alike(runs: Sequence[Result]) -> list[str]:
    """A note if devices evaluated the runs of a seed, and not the same ones."""
    by_seed: dict[int, dict[str, Row]] = {}
    for run in runs:
        rows = [row for row in on_one_set(run.rows) or run.rows[-1:] if "evaluator_set" in row]
        if rows:
            by_seed.setdefault(run.seed, {})[run.algorithm] = rows[-1]
    for found in by_seed.values():
        if len({row["evaluator_set"] for row in found.values()}) > 1:
            parts = [
                f"{name} by {row['evaluators']:.0f} devices with {row['evaluation_samples']:.0f} samples"
                for name, row in found.items()
            ]
            return [f"Not evaluated alike, so times cannot be compared: {', '.join(parts)}."]
    return []


@checks_keywords
def report(
    *directories: str | os.PathLike[str],
    out: str | os.PathLike[str] = "report.html",
    target: float | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a page about the runs and comparisons in these directories, and return its path."""
    from offbeat.results.report import report_html  # brings matplotlib

    path, problems = Path(out), list[str]()
    check_page(path)
    if path.exists() and not overwrite:
        raise OutputRefused(f"{path} exists", "overwrite", "out")
    runs = gather([Path(each) for each in directories], problems)
    comparison = comparison_of(runs, target)
    page = report_html(comparison, [each.config for each in runs], path.stem, problems + unlike(comparison))
    replace_file(path, page.encode())
    return path


def check_page(path: Path) -> None:
    """Raise InvalidInput if a report would not be written as an HTML page."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise InvalidInput(
            f"{path}: a report is an HTML page, choose a name that ends in .html (`compare` writes its figures as PDF)"
        )


def gather(
    directories: Sequence[Path], problems: list[str] | None = None, read: Callable[[Path], Result] = read_run
) -> list[Result]:
    """The runs in these directories, each once, under different labels.

    With `problems`, a run that cannot be read is left out and a sentence on it is added there, unless none is left.
    """
    paths: dict[Path, Path] = {}
    for directory in directories:
        for path in _runs_in(directory):
            paths.setdefault(path.resolve(), path)
    runs, failed = [], list[InvalidInput]()
    for path in paths.values():
        try:
            runs.append(read(path))
        except InvalidInput as error:
            failed.append(error)
    if failed and (problems is None or not runs):
        raise failed[0]
    if problems is not None:
        problems += [f"Left out: {error}." for error in failed]
    return _told_apart(runs)


def unlike(comparison: Comparison) -> list[str]:
    """A sentence if the runs are of different experiments, not only under different algorithms."""
    tables = [_settings(run) for run in comparison.entries if run.config]
    keys = dict.fromkeys(key for table in tables for key in table if key.partition(".")[0] in EXPERIMENT)
    differing = [key for key in keys if len({repr(table.get(key)) for table in tables}) > 1]
    if not differing:
        return []
    return [f"These runs are of different experiments ({', '.join(differing)}): their curves are not comparable."]


def _runs_in(directory: Path) -> list[Path]:
    """The directory itself, or all runs under it."""
    if (directory / "metrics.jsonl").is_file():
        return [directory]
    found = (run.path for entry in read_index(directory) for run in entry.runs)
    runs = sorted(path for path in found if (path / "metrics.jsonl").is_file())
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
    keys = [key for key in mine if key != ENOUGH and len({repr(table.get(key)) for table in tables}) > 1]
    return "".join(f" {key.rpartition('.')[2]}={mine[key]}" for key in keys)


def _settings(run: Result) -> dict[str, Any]:
    return flattened(tomllib.loads(run.config), but=("seed", *UNTOLD))


def _place(run: Result, group: Sequence[Result]) -> str:
    return f" ({run.directory})"
