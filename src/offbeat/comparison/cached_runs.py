"""Many runs from the cache, several at a time, in processes that stay for the next ones, or on a Ray cluster."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from offbeat.comparison.compare import sharing_cores
from offbeat.comparison.planned import PlannedRun
from offbeat.comparison.pool import POLL_SECONDS, adopt, busy, reporting, reports
from offbeat.comparison.ray_runs import CachedRunActor, RayRuns
from offbeat.comparison.run_cache import bare, digest, find, run_cached
from offbeat.core.errors import Interrupted, OffbeatError
from offbeat.experiment.schema import Experiment
from offbeat.references import describe
from offbeat.results.result import Result
from offbeat.results.rows import Row
from offbeat.running.driver import OnProgress
from offbeat.running.interruption import Flag, interruption
from offbeat.running.lock import DirectoryInUse, DirectoryLock
from offbeat.training.processes import process_context
from offbeat.training.ray_cluster import RayCluster

OnRun = Callable[[Experiment, float, Row | None], None]
"""A function that is given an experiment, how much of its run is done (0 to 1) and its newest row of metrics."""


@dataclass(frozen=True)
class Failure:
    """A run that crashed, and why in a sentence."""

    reason: str


class CachedRuns:
    """Runs through a cache, `jobs` at a time. To be used in a `with`, at the end of which its processes end.

    A signal that asks to stop lets each run leave a checkpoint, and raises Interrupted. With one job the runs are
    computed in this process. With the `address` of a Ray cluster, or if the experiments want one, its workers carry
    out the runs, as many at a time as there are.
    """

    def __init__(self, cache: Path, *, jobs: int = 1, watch: OnRun | None = None, address: str | None = None) -> None:
        self._cache = cache
        self._jobs = jobs
        self._watch = watch
        self._address = address
        self._pool: ProcessPoolExecutor | None = None
        self._cluster: RayCluster | None = None

    def __enter__(self) -> Self:
        context = process_context(__name__)
        self._progress: Any = context.Queue()
        self._stop = context.Event()
        if self._jobs > 1:
            self._pool = ProcessPoolExecutor(self._jobs, context, adopt, (self._progress, self._stop))
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._stop.set()
            self._pool.shutdown(cancel_futures=True)
        if self._cluster is not None:
            self._cluster.close()

    def run(self, experiments: Sequence[Experiment], until: float | None = None) -> list[Result | Failure]:
        """The runs in the order of the experiments, each at least up to a time, or else to its end.

        What crashes is a Failure, and the others go on.
        """
        different = {digest(each): self._where_it_runs(each) for each in experiments}
        wanted = list(different.values())
        if self._cluster is None and wanted and wanted[0].execution.executor == "ray":
            self._cluster = RayCluster(wanted[0].execution)  # before ours, or Ray's own handlers of signals would act
        with interruption() as asked:
            found = self._run(wanted, until, asked)
        results = dict(zip(different, found, strict=True))
        return [_named(results[digest(each)], each) for each in experiments]

    def _where_it_runs(self, experiment: Experiment) -> Experiment:
        if self._address is not None:
            return experiment.changed(experiment.execution.on_cluster(self._address))
        return sharing_cores(experiment, self._jobs)

    def _run(self, experiments: Sequence[Experiment], until: float | None, asked: Flag) -> list[Result | Failure]:
        if self._cluster is not None:
            return self._run_on_cluster(self._cluster, experiments, until, asked)
        if self._pool is None:
            return [
                _attempt(each, self._cache, until, self._watching(each), asked)  # one by one, in this process
                for each in experiments
            ]
        numbers = {
            self._pool.submit(_in_a_process, number, each, self._cache, until): number
            for number, each in enumerate(experiments)
        }
        waiting: set[Future[Failure | None]] = set(numbers)
        failures: dict[int, Failure] = {}
        try:
            while waiting:
                ended, waiting = wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                if asked.is_set():
                    self._stop.set()
                for number, fraction, row in reports(self._progress):
                    if self._watch is not None:
                        self._watch(experiments[number], fraction, row)
                for future in ended:
                    failure = future.result()
                    if failure is not None:
                        failures[numbers[future]] = failure
        except BrokenProcessPool:
            raise OffbeatError("a process died, for instance for lack of memory: go on with --resume") from None
        except Interrupted:
            for future in waiting:
                future.cancel()
            raise Interrupted("interrupted", number=getattr(asked, "number", 2)) from None
        return [
            failures[number] if number in failures else run_cached(each, self._cache, until=until)
            for number, each in enumerate(experiments)
        ]

    def _run_on_cluster(
        self, cluster: RayCluster, experiments: Sequence[Experiment], until: float | None, asked: Flag
    ) -> list[Result | Failure]:
        planned: dict[PlannedRun, Experiment] = {}

        def watch(run: PlannedRun, fraction: float, row: Row | None) -> None:
            if self._watch is not None:
                self._watch(planned[run], fraction, row)

        with ExitStack() as locks:
            for each in experiments:
                path = self._cache / digest(each)
                if find(path, until) is None:
                    try:
                        locks.enter_context(DirectoryLock(path))
                    except DirectoryInUse:
                        continue  # another process computes it, and is waited for below
                    planned[PlannedRun(experiment=bare(each), path=path)] = each
            failed = {}
            if planned:
                actor = (CachedRunActor, until)
                runs = RayRuns(list(planned), cluster, resume=True, watch=watch, asked=asked, make_actor=actor)
                failed = {digest(run.experiment): Failure(reason) for run, reason in runs.run().items()}
        return [failed.get(digest(each)) or run_cached(each, self._cache, until=until) for each in experiments]

    def _watching(self, experiment: Experiment) -> OnProgress | None:
        watch = self._watch
        return None if watch is None else lambda fraction, row: watch(experiment, fraction, row)


def _named(result: Result | Failure, experiment: Experiment) -> Result | Failure:
    """The result under the experiment's own label."""
    if isinstance(result, Failure):
        return result
    summary = result.summary | {"label": experiment.algorithm.title}
    return Result(rows=result.rows, summary=summary, experiment=experiment, directory=result.directory)


def _attempt(
    experiment: Experiment, cache: Path, until: float | None, watch: OnProgress | None, asked: Flag
) -> Result | Failure:
    try:
        return run_cached(experiment, cache, until=until, watch=watch, interrupted=asked)
    except Interrupted:
        raise
    except OffbeatError as error:
        return Failure(f"{experiment.algorithm.title}, seed {experiment.seed} failed: {error}")
    except Exception as error:  # a policy of the user's may raise anything: that ends its own run only
        return Failure(f"{experiment.algorithm.title}, seed {experiment.seed} failed: {describe(error)}")


def _in_a_process(number: int, experiment: Experiment, cache: Path, until: float | None) -> Failure | None:
    """Why it failed, if it did; its results are in the cache."""
    with busy() as stop:
        if stop.is_set():
            raise Interrupted("interrupted")
        found = _attempt(experiment, cache, until, reporting(number), stop)
    return found if isinstance(found, Failure) else None
