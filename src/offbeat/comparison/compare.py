"""Comparing algorithms, or settings: the same experiment under each of them and several seeds, side by side."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from offbeat.comparison.fairness import fair_experiments, notes_on
from offbeat.comparison.planned import OnRunProgress, check_directories, check_experiments, plan_runs
from offbeat.comparison.pool import FailedRun, RunPool, split
from offbeat.core.errors import Interrupted, InvalidInput, OffbeatError
from offbeat.results.comparison import ComparedRun, Comparison, check_target
from offbeat.results.files import replace_file
from offbeat.results.plots import accuracy_figure, save, sweep_figure
from offbeat.results.report import report_html
from offbeat.running.interruption import interruption
from offbeat.running.lock import DirectoryLock, check_unlocked
from offbeat.settings.schema import Experiment


def compare(
    experiment: Experiment,
    algorithms: Sequence[str],
    seeds: Sequence[int],
    out: str | os.PathLike[str],
    *,
    target: float | None = None,
    **how: Any,
) -> Comparison:
    """Run the experiment under each of these, and write the table, the plot and the report beside the runs.

    All of them keep the same number of devices in training, unless their settings say otherwise. `how` is as for
    `run_planned`. Runs that crashed are in the result's `failures`.
    """
    if len(set(algorithms)) != len(algorithms) or not algorithms or not seeds:
        raise InvalidInput("give each algorithm once, and at least one algorithm and one seed")
    check_target(target)
    experiments = fair_experiments(experiment, algorithms, seeds)
    entries, failures = run_planned(experiment, experiments, Path(out), **how)
    first = {each.algorithm.title: each for each in experiments if each.seed == seeds[0]}
    comparison = Comparison(entries, target, notes=notes_on(first), failures=[str(each) for each in failures])
    root = Path(out)
    replace_file(root / "comparison.csv", comparison.csv_text().encode())
    save(accuracy_figure(comparison), root / "accuracy.png")
    configs = [each.toml() for each in first.values()]
    replace_file(root / "report.html", report_html(comparison, configs, root.name).encode())
    return comparison


def sweep(
    experiment: Experiment,
    over: Mapping[str, Sequence[Any]],
    seeds: Sequence[int],
    out: str | os.PathLike[str],
    *,
    target: float | None = None,
    settings: Mapping[str, Any] | None = None,
    **how: Any,
) -> Comparison:
    """Run every combination of these settings' values, and write a table and a plot of the time to accuracy.

    The last setting becomes the horizontal axis, the one before it the lines, the one before that the panels.
    `settings` are for every swept algorithm that knows them.
    """
    if not over or not all(over.values()) or not seeds or len(over) > 3:
        raise InvalidInput("give one to three settings to sweep, each with at least one value, and at least one seed")
    check_target(target)
    experiments = [_with(each, settings or {}) for seed in seeds for each in experiment.swept(over, seed)]
    entries, failures = run_planned(experiment, experiments, Path(out), **how)
    comparison = Comparison(entries, target, failures=[str(each) for each in failures])
    replace_file(Path(out) / "comparison.csv", comparison.csv_text().encode())
    save(sweep_figure(comparison, over), Path(out) / "sweep.png")
    return comparison


def _with(experiment: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """With those of the settings that its algorithm knows."""
    algorithm = experiment.algorithm
    known = {key: value for key, value in settings.items() if key in type(algorithm.policy).model_fields}
    return experiment.changed({"algorithm": {"name": algorithm.name} | known}) if known else experiment


def run_planned(
    base: Experiment,
    experiments: Sequence[Experiment],
    root: Path,
    *,
    jobs: int = 1,
    overwrite: bool = False,
    resume: bool = False,
    watch: OnRunProgress | None = None,
) -> tuple[list[ComparedRun], list[FailedRun]]:
    """Run these experiments, `jobs` at a time, each in a directory of its own under the root.

    All of them are checked before the first begins. Gives those that ended and those that crashed.
    """
    planned_runs = plan_runs(experiments, root)
    check_unlocked(root)
    check_directories(root, base, planned_runs, overwrite=overwrite, resume=resume)
    check_experiments(experiments)
    with DirectoryLock(root), interruption() as asked:
        check_directories(root, base, planned_runs, overwrite=overwrite, resume=resume)  # again, now that it is ours
        replace_file(root / "config.toml", tomli_w.dumps(base.given_table()).encode())
        pool = RunPool(planned_runs, jobs=jobs, overwrite=overwrite, resume=resume, watch=watch, asked=asked)
        try:
            ended, failed = split(pool.run())
        except Interrupted as error:
            sentence = f"interrupted; everything so far is in {root}: go on with --resume"
            raise Interrupted(sentence, number=error.number) from None
    if not ended:
        raise OffbeatError("; ".join(str(each) for each in failed))
    return ended, failed
