"""Comparing algorithms: the same experiment under each of them and several seeds, one process per run."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

import tomli_w

from offbeat.config import Experiment
from offbeat.core.errors import InvalidInput
from offbeat.experiment import Interrupted, interruption, run
from offbeat.results.comparison import Comparison, Entry
from offbeat.results.directory import RunDirectory, check_may_write
from offbeat.results.files import replace_file
from offbeat.results.plots import accuracy_figure, save
from offbeat.results.report import report_html
from offbeat.results.summary import Row

POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Contest:
    """One run of a comparison."""

    experiment: Experiment
    path: Path

    @property
    def label(self) -> str:
        return f"{self.experiment.algorithm.name}, seed {self.experiment.seed}"


Report = Callable[[Contest, float, Row | None], None]
"""Told which run has come how far, and its newest row of metrics."""

_shared: dict[str, Any] = {}
"""What a process of the pool has from its parent: the queue for progress and the event that says stop."""


def compare(
    experiment: Experiment,
    algorithms: Sequence[str],
    seeds: Sequence[int],
    out: str | os.PathLike[str],
    *,
    jobs: int = 1,
    target: float | None = None,
    overwrite: bool = False,
    resume: bool = False,
    watch: Report | None = None,
) -> Comparison:
    """Run them all, `jobs` at a time, and write the table, the plot and the report beside the runs."""
    root = Path(out)
    if len(set(algorithms)) != len(algorithms) or not algorithms or not seeds:
        raise InvalidInput("give each algorithm once, and at least one algorithm and one seed")
    contests = [
        Contest(experiment=experiment.for_algorithm(name, seed), path=root / f"{name.replace(':', '.')}-seed{seed}")
        for name in algorithms
        for seed in seeds
    ]
    if not resume:
        check_may_write(root, overwrite)
    for contest in contests:  # all of them before the first is begun: nothing is overwritten in vain
        RunDirectory(contest.path, contest.experiment.table(), overwrite=overwrite, resume=resume)
    replace_file(root / "config.toml", tomli_w.dumps(experiment.table()).encode())
    with interruption() as asked:
        entries = _run_all(contests, jobs, overwrite, resume, watch, asked)
    comparison = Comparison(entries, target)
    write_results(root, comparison, {c.experiment.algorithm.name: c.experiment.toml() for c in contests})
    return comparison


def write_results(root: Path, comparison: Comparison, experiments: dict[str, str]) -> None:
    """The comparison as a table for machines, a picture, and a page."""
    replace_file(root / "comparison.csv", comparison.csv_text().encode())
    save(accuracy_figure(comparison), root / "accuracy.png")
    replace_file(root / "report.html", report_html(comparison, list(experiments.values()), root.name).encode())


def _run_all(
    contests: Sequence[Contest], jobs: int, overwrite: bool, resume: bool, watch: Report | None, asked: Any
) -> list[Entry]:
    """Every run in a process of the pool; Ctrl-C lets each leave a checkpoint."""
    context = multiprocessing.get_context("spawn")
    progress: Any = context.Queue()
    stop = context.Event()
    with ProcessPoolExecutor(min(jobs, len(contests)), context, _adopt, (progress, stop)) as pool:
        futures: dict[Future[tuple[list[Row], dict[str, Any]]], int] = {
            pool.submit(_run_one, number, contest, overwrite, resume): number for number, contest in enumerate(contests)
        }
        waiting = set(futures)
        try:
            while waiting:
                ended, waiting = wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                if asked.is_set():
                    stop.set()
                _pass_on(progress, contests, watch)
                for future in ended:
                    future.result()
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    done = {number: future.result() for future, number in futures.items()}
    return [
        Entry(algorithm=c.experiment.algorithm.name, seed=c.experiment.seed, rows=done[i][0], summary=done[i][1])
        for i, c in enumerate(contests)
    ]


def _pass_on(progress: Any, contests: Sequence[Contest], watch: Report | None) -> None:
    while True:
        try:
            number, fraction, row = progress.get_nowait()
        except Empty:
            return
        if watch is not None:
            watch(contests[number], fraction, row)


def _adopt(progress: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent tells us when to stop
    _shared.update(progress=progress, stop=stop)


def _run_one(number: int, contest: Contest, overwrite: bool, resume: bool) -> tuple[list[Row], dict[str, Any]]:
    if _shared["stop"].is_set():
        raise Interrupted(f"interrupted before {contest.label} began: go on with --resume")
    told = -1.0

    def watch(fraction: float, row: Row | None) -> None:
        nonlocal told
        if row is not None or fraction - told > 0.01:
            told = fraction
            _shared["progress"].put((number, fraction, row))

    result = run(
        contest.experiment,
        contest.path,
        overwrite=overwrite,
        resume=resume,
        watch=watch,
        interrupted=_shared["stop"],
    )
    _shared["progress"].put((number, 1.0, result.rows[-1]))
    return result.rows, result.summary
