"""Compare algorithms or settings: run the same experiment under each of them with several seeds."""

import operator
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, SupportsIndex

import tomli_w

from offbeat.algorithms.sizes import RULE
from offbeat.comparison.fairness import FOLLOW, fair_experiments, note_on_sizes, notes_on
from offbeat.comparison.planned import OnRunProgress, check_directories, check_experiments, plan_runs
from offbeat.comparison.scheduler import (
    RunScheduler,
    kept_in,
    runs_at_a_time,
    runs_stay_here,
    with_automatic_workers,
)
from offbeat.core.errors import InvalidInput, OffbeatError, checks_keywords
from offbeat.core.policy import Policy
from offbeat.experiment.schema import Experiment
from offbeat.experiment.shipped import ExperimentSource, experiment_from
from offbeat.results.comparison import Comparison
from offbeat.results.files import csv_of, replace_file
from offbeat.results.lock import DirectoryLock, check_unlocked
from offbeat.results.plots import SUFFIXES, draw_comparison, save, sweep_figure
from offbeat.results.report import report_html
from offbeat.results.result import Result, read_run
from offbeat.running.progress import shown_in_notebook, watched_bars
from offbeat.running.sizing import sized

Algorithms = str | Policy | type[Policy] | Sequence[str | Policy | type[Policy]]
Seeds = SupportsIndex | Iterable[SupportsIndex]
"""The number of seeds, or the seeds themselves."""


@checks_keywords
def compare(
    experiment: ExperimentSource,
    algorithms: Algorithms | None = None,
    seeds: Seeds = 3,
    out: str | os.PathLike[str] | None = None,
    *,
    target: float | None = None,
    jobs: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    watch: OnRunProgress | None = None,
) -> Comparison:
    """Run an experiment under each algorithm and seed, `jobs` runs at a time (default: one per core).

    `algorithms` are names (a list, or one string with commas), policies or policy classes (default: those of the
    experiment's [compare]). `seeds` is a list, or a count that starts at the experiment's seed. The runs, the table,
    the plot and the report are written to `out`; without it no files are kept.

    All algorithms keep the same number of devices in training, unless their settings say otherwise. With fewer runs
    than cores each run trains in several worker processes, unless `execution.workers` is set. Runs that failed are
    listed in the result's `failures`.
    """
    experiment = experiment_from(experiment)
    chosen, numbers = _algorithms(experiment, algorithms), _seeds(experiment, seeds)
    experiment.check_target(target)
    experiments = [with_automatic_workers(each) for each in fair_experiments(experiment, chosen, numbers)]
    if len({(each.algorithm.title, each.seed) for each in experiments}) != len(experiments) or not experiments:
        raise InvalidInput("give at least one algorithm and one seed, and each only once")
    first = {each.algorithm.title: each for each in experiments if each.seed == numbers[0]}

    def compared(entries: Sequence[Result], failed: Sequence[str]) -> Comparison:
        notes = [note_on_sizes(experiment, chosen), *notes_on(first, entries)]
        return Comparison(entries, target, failures=failed, notes=notes)

    if out is None:
        with shown_in_notebook(watch, watched_bars) as shown:
            entries, failed = run_unkept(experiment, experiments, jobs=jobs, watch=shown)
        return compared(entries, failed)
    root = Path(out)
    with (
        shown_in_notebook(watch, watched_bars) as shown,
        run_planned(experiment, experiments, root, jobs=jobs, overwrite=overwrite, resume=resume, watch=shown) as ended,
    ):
        entries, failed = ended
        comparison = compared(entries, failed)
        write_comparison(comparison, root, [each.toml() for each in first.values()])
    return comparison


def write_comparison(comparison: Comparison, root: Path, configs: Sequence[str]) -> None:
    """Write the table, the plot and the report into the directory of the runs."""
    replace_file(root / "comparison.csv", comparison.csv_text().encode())
    replace_file(root / "runs.csv", csv_of(comparison.run_records()).encode())
    draw_comparison(comparison, root)
    replace_file(root / "report.html", report_html(comparison, configs, root.name).encode())


@checks_keywords
def sweep(
    experiment: ExperimentSource,
    over: Mapping[str, Sequence[Any]] | None = None,
    seeds: Seeds = 3,
    out: str | os.PathLike[str] | None = None,
    *,
    target: float | None = None,
    settings: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    watch: OnRunProgress | None = None,
) -> Comparison:
    """Run every combination of the settings' values, and write a table and a plot of the time to target.

    The last setting is the horizontal axis of the plot, the one before it the lines, the one before that the panels.
    `over` defaults to the experiment's [sweep]; `seeds`, `out` and `jobs` are as in `compare`. `settings` apply to
    every swept algorithm that has them.
    """
    experiment = experiment_from(experiment)
    over, numbers = experiment.sweep if over is None else over, _seeds(experiment, seeds)
    for path, values in over.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise InvalidInput(f"sweep: {path} = {values!r}: must be a list of values")
        for number, value in enumerate(values):
            if value in values[:number]:
                raise InvalidInput(f"sweep: {path} has the value {value!r} twice")
    if not over or not all(len(values) for values in over.values()) or not numbers or len(over) > 3:
        raise InvalidInput("give one to three settings to sweep, each with at least one value, and at least one seed")
    experiment.check_target(target)
    experiments = [
        with_automatic_workers(sized(_with(each, settings or {}), experiment.in_training))
        for seed in numbers
        for each in experiment.swept(over, seed)
    ]
    notes = [f"Devices in training: by default {RULE}; {FOLLOW}."]
    if out is None:
        with shown_in_notebook(watch, watched_bars) as shown:
            entries, failed = run_unkept(experiment, experiments, jobs=jobs, watch=shown)
        return Comparison(entries, target, failures=failed, notes=notes)
    root = Path(out)
    with (
        shown_in_notebook(watch, watched_bars) as shown,
        run_planned(experiment, experiments, root, jobs=jobs, overwrite=overwrite, resume=resume, watch=shown) as ended,
    ):
        entries, failed = ended
        comparison = Comparison(entries, target, failures=failed, notes=notes)
        replace_file(root / "comparison.csv", comparison.csv_text().encode())
        replace_file(root / "runs.csv", csv_of(comparison.run_records()).encode())
        for kind in SUFFIXES:
            save(sweep_figure(comparison, over), root / f"sweep{kind}")
    return comparison


def _with(experiment: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """The experiment with those of the settings that its algorithm has."""
    algorithm = experiment.algorithm
    known = {key: value for key, value in settings.items() if key in type(algorithm.policy).model_fields}
    return experiment.changed({"algorithm": {"name": algorithm.name} | known}) if known else experiment


def _algorithms(experiment: Experiment, given: Algorithms | None) -> list[str | Policy | type[Policy]]:
    """The algorithms as a list."""
    if given is None:
        return list(experiment.compared)
    if isinstance(given, str):
        return [name.strip() for name in given.split(",")]
    chosen: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, Policy | type) else [given]
    for each in chosen:
        if not isinstance(each, str | Policy) and not (isinstance(each, type) and issubclass(each, Policy)):
            raise InvalidInput(f"algorithms: {each!r} must be a name, a policy or a policy class")
    return chosen


def _seeds(experiment: Experiment, given: Seeds) -> list[int]:
    """The seeds as a list; a count starts at the experiment's seed."""
    try:
        if isinstance(given, Iterable):
            return [operator.index(seed) for seed in given]
        return list(range(experiment.seed, experiment.seed + operator.index(given)))
    except TypeError:
        raise InvalidInput(f"seeds = {given!r}: must be a number of seeds or a list of integers") from None


def run_unkept(
    base: Experiment, experiments: Sequence[Experiment], *, jobs: int | None = None, watch: OnRunProgress | None = None
) -> tuple[list[Result], list[str]]:
    """Run these experiments and keep no files."""
    with (
        tempfile.TemporaryDirectory(prefix="offbeat-") as folder,
        run_planned(base, experiments, Path(folder), jobs=jobs, watch=watch) as (ended, failed),
    ):
        unkept = [
            Result(rows=each.rows, summary=each.summary, experiment=each.experiment, tensors=each.tensors)
            for each in ended
        ]
        return unkept, failed


@contextmanager
def run_planned(
    base: Experiment,
    experiments: Sequence[Experiment],
    root: Path,
    *,
    jobs: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    watch: OnRunProgress | None = None,
) -> Iterator[tuple[list[Result], list[str]]]:
    """Run these experiments, `jobs` at a time, each in a directory of its own under the root.

    Objects that only this process has, as a notebook defines them, and scripts without a main guard keep the runs in
    this process, one at a time.
    All of them are checked before the first begins. Gives the results of the runs that ended, and a sentence on each
    that failed. No other process can write to the root before the context ends, so the caller can add files.
    """
    here = runs_stay_here(experiments, jobs)
    jobs = 1 if here else runs_at_a_time(jobs, experiments)
    planned_runs = plan_runs(experiments, root, overwrite=overwrite, resume=resume)
    for each in experiments:
        each.execution.processes()
    check_unlocked(root)
    check_directories(root, base, planned_runs)
    check_experiments(experiments)
    with RunScheduler(jobs=jobs, isolated=not here, watch=watch) as scheduler:
        scheduler.connect(experiments[0])  # without its cluster a comparison writes nothing
        with DirectoryLock(root):
            check_directories(root, base, planned_runs)  # again, now that no other process can write
            replace_file(root / "config.toml", tomli_w.dumps(base.given_table()).encode())
            with kept_in(root):
                failed = scheduler.run(planned_runs)
            sentences = [str(failure) for failure in failed.values()]
            if len(failed) == len(planned_runs):
                raise OffbeatError("; ".join(sentences))
            yield [read_run(each.path) for each in planned_runs if each not in failed], sentences
