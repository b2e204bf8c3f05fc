"""Comparing algorithms: the same experiment under each of them and several seeds, one process per run."""

import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

from offbeat.core.errors import InvalidInput
from offbeat.results.comparison import ComparedRun, Comparison, check_target
from offbeat.results.files import replace_file
from offbeat.results.plots import accuracy_figure, save, sweep_figure
from offbeat.results.report import report_html
from offbeat.results.rows import Row
from offbeat.running.directory import RunDirectory, check_may_write
from offbeat.running.figures import draw_figures
from offbeat.running.loop import Interrupted, interruption
from offbeat.settings.schema import Experiment
from offbeat.settings.tables import read_toml
from offbeat.simulation.run import run

POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a comparison."""

    experiment: Experiment
    path: Path

    @property
    def label(self) -> str:
        return f"{self.experiment.algorithm.title}, seed {self.experiment.seed}"


OnRunProgress = Callable[[PlannedRun, float, Row | None], None]
"""Told which run has come how far, and its newest row of metrics."""

_shared: dict[str, Any] = {}
"""What a process of the pool has from its parent: the queue for progress and the event that says stop."""


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

    `how` is as for `race`.
    """
    if len(set(algorithms)) != len(algorithms) or not algorithms or not seeds:
        raise InvalidInput("give each algorithm once, and at least one algorithm and one seed")
    check_target(target)
    experiments = [experiment.for_algorithm(name, seed) for name in algorithms for seed in seeds]
    comparison = Comparison(run_planned(experiment, experiments, Path(out), **how), target)
    root = Path(out)
    configs = [each.toml() for each in experiments if each.seed == seeds[0]]
    replace_file(root / "comparison.csv", comparison.csv_text().encode())
    save(accuracy_figure(comparison), root / "accuracy.png")
    replace_file(root / "report.html", report_html(comparison, configs, root.name).encode())
    return comparison


def sweep(
    experiment: Experiment,
    over: Mapping[str, Sequence[Any]],
    seeds: Sequence[int],
    out: str | os.PathLike[str],
    *,
    target: float | None = None,
    **how: Any,
) -> Comparison:
    """Run every combination of these settings' values, and write a table and a plot of the time to accuracy.

    The last setting becomes the horizontal axis, the one before it the lines, the one before that the panels.
    """
    if not over or not all(over.values()) or not seeds or len(over) > 3:
        raise InvalidInput("give one to three settings to sweep, each with at least one value, and at least one seed")
    check_target(target)
    experiments = [each for seed in seeds for each in experiment.swept(over, seed)]
    comparison = Comparison(run_planned(experiment, experiments, Path(out), **how), target)
    replace_file(Path(out) / "comparison.csv", comparison.csv_text().encode())
    save(sweep_figure(comparison, over), Path(out) / "sweep.png")
    return comparison


def run_planned(
    base: Experiment,
    experiments: Sequence[Experiment],
    root: Path,
    *,
    jobs: int = 1,
    overwrite: bool = False,
    resume: bool = False,
    watch: OnRunProgress | None = None,
) -> list[ComparedRun]:
    """Run these experiments, `jobs` at a time, each in a directory of its own under the root."""
    planned_runs = [PlannedRun(experiment=each, path=root / _folder(each)) for each in experiments]
    check_root(root, base, overwrite=overwrite, resume=resume)
    for planned in planned_runs:  # all of them before the first is begun: nothing is overwritten in vain
        RunDirectory(planned.path, planned.experiment.table(), overwrite=overwrite, resume=resume)
    if not (resume and (root / "config.toml").exists()):
        check_data(experiments)
    replace_file(root / "config.toml", base.toml().encode())
    with interruption() as asked:
        try:
            return _run_all(planned_runs, jobs, overwrite, resume, watch, asked)
        except Interrupted:
            raise Interrupted(f"interrupted; everything so far is in {root}: go on with --resume") from None


def check_root(root: Path, base: Experiment, *, overwrite: bool, resume: bool) -> None:
    """Refuse a directory that holds a single run, another comparison, or anything else."""
    if (root / "metrics.jsonl").exists():
        raise InvalidInput(f"{root} holds a single run: choose another --out")
    if not resume or not (root / "config.toml").exists():
        return check_may_write(root, overwrite)
    if Experiment.parse(read_toml(root / "config.toml")).table() != base.table():
        raise InvalidInput(f"{root} holds runs of another experiment: choose another --out")
    return None


def check_data(experiments: Sequence[Experiment]) -> None:
    """Load every data set once, so that what is missing is said before anything is written."""
    for each in {repr((each.data.resolved(), each.partition.resolved())): each for each in experiments}.values():
        each.load_data()


def _folder(experiment: Experiment) -> str:
    """A name for the run's directory that every file system takes."""
    label = re.sub(r"[^\w.²-]+", "_", experiment.algorithm.title)
    return f"{label}-seed{experiment.seed}"


def _run_all(
    planned_runs: Sequence[PlannedRun],
    jobs: int,
    overwrite: bool,
    resume: bool,
    watch: OnRunProgress | None,
    asked: Any,
) -> list[ComparedRun]:
    """Every run in a process of the pool; Ctrl-C lets each leave a checkpoint."""
    context = multiprocessing.get_context("spawn")
    progress: Any = context.Queue()
    stop = context.Event()
    with ProcessPoolExecutor(min(jobs, len(planned_runs)), context, _adopt, (progress, stop)) as pool:
        futures: dict[Future[tuple[list[Row], dict[str, Any]]], int] = {
            pool.submit(_run_one, number, planned, overwrite, resume): number
            for number, planned in enumerate(planned_runs)
        }
        waiting = set(futures)
        try:
            while waiting:
                ended, waiting = wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                if asked.is_set():
                    stop.set()
                _pass_on(progress, planned_runs, watch)
                for future in ended:
                    future.result()
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    done = {number: future.result() for future, number in futures.items()}
    return [
        ComparedRun(algorithm=c.experiment.algorithm.title, seed=c.experiment.seed, rows=done[i][0], summary=done[i][1])
        for i, c in enumerate(planned_runs)
    ]


def _pass_on(progress: Any, planned_runs: Sequence[PlannedRun], watch: OnRunProgress | None) -> None:
    while True:
        try:
            number, fraction, row = progress.get_nowait()
        except Empty:
            return
        if watch is not None:
            watch(planned_runs[number], fraction, row)


def _adopt(progress: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent tells us when to stop
    _shared.update(progress=progress, stop=_Stop(stop), busy=threading.Lock())
    threading.Thread(target=_end_with_parent, daemon=True).start()


class _Stop:
    """Set when the parent says so, and when it is no more: nobody would want the rest, and somebody may resume."""

    def __init__(self, event: Any) -> None:
        self._event = event
        self.orphaned = False

    def is_set(self) -> bool:
        return self.orphaned or bool(self._event.is_set())


def _end_with_parent() -> None:
    """Wait for the parent's end, let a run that is under way leave its checkpoint, and go."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _shared["stop"].orphaned = True
    with _shared["busy"]:
        os._exit(1)


def _run_one(number: int, planned: PlannedRun, overwrite: bool, resume: bool) -> tuple[list[Row], dict[str, Any]]:
    if _shared["stop"].is_set():
        raise Interrupted(f"interrupted before {planned.label} began: go on with --resume")
    told = -1.0

    def watch(fraction: float, row: Row | None) -> None:
        nonlocal told
        if row is not None or fraction - told > 0.01:
            told = fraction
            _shared["progress"].put((number, fraction, row))

    with _shared["busy"]:
        result = run(
            planned.experiment,
            planned.path,
            overwrite=overwrite,
            resume=resume,
            watch=watch,
            interrupted=_shared["stop"],
        )
        draw_figures(planned.experiment, result.rows, planned.path)
    _shared["progress"].put((number, 1.0, result.rows[-1]))
    return result.rows, result.summary
