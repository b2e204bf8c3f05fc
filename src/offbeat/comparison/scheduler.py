"""The run scheduler: carries out runs, several at a time, in this process, in worker processes or on a Ray cluster."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from offbeat.comparison.planned import OnRunProgress, PlannedRun, RunFailure
from offbeat.comparison.run_actors import RunActors
from offbeat.comparison.run_cache import digest, run_in
from offbeat.comparison.run_processes import EndedRun, RunProcesses, RunProgress
from offbeat.core.errors import Interrupted, WorkersLost
from offbeat.experiment.schema import Experiment
from offbeat.references import GIVEN, thing_name
from offbeat.results.result import Result
from offbeat.results.rows import Row
from offbeat.running.driver import OnProgress
from offbeat.running.interruption import Flag, interruption
from offbeat.running.progress import messages
from offbeat.training.execution import available_cores
from offbeat.training.processes import unguarded_script
from offbeat.training.ray_cluster import RayCluster


class RunScheduler:
    """Carries out runs, `jobs` at a time. Use it in a `with`: its processes and its connection end with the context.

    With one job the runs are computed in this process, unless they are to be `isolated`: then a crash of the
    interpreter ends only its own run. With the `address` of a Ray cluster, or if the experiments ask for one, its
    workers carry out the runs, as many at a time as there are workers.

    A signal that asks to stop (Ctrl-C, SIGTERM, SIGHUP) lets each run write a checkpoint, and raises Interrupted. Runs
    that are already there are neither computed nor reported to `watch`.
    """

    def __init__(
        self,
        cache: Path | None = None,
        *,
        jobs: int = 1,
        isolated: bool = False,
        watch: OnRunProgress | None = None,
        address: str | None = None,
    ) -> None:
        """`cache` is the directory of the runs that `run_cached` gives."""
        self._cache = cache
        self._jobs = jobs
        self._in_this_process = jobs == 1 and not isolated
        self._watch = watch
        self._address = address
        self._processes: RunProcesses | None = None
        self._cluster: RayCluster | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._processes is not None:
            self._processes.close()
        if self._cluster is not None:
            self._cluster.close()

    def connect(self, experiment: Experiment) -> None:
        """Connect to the Ray cluster that the experiment asks for, if it does and there is no connection yet.

        It comes before any `interruption`: Ray installs its own signal handlers.
        """
        execution = self._placed(experiment).execution
        if self._cluster is None and execution.executor == "ray":
            self._cluster = RayCluster(execution)

    def _placed(self, experiment: Experiment) -> Experiment:
        """The experiment on the cluster of the address, or with its share of the cores as `execution.workers`."""
        if self._address is not None:
            return experiment.changed(experiment.execution.on_cluster(self._address))
        return sharing_cores(experiment, self._jobs)

    # With a cache -----------------------------------------------------------------------------------------------------

    def run_cached(self, experiments: Sequence[Experiment], until: float | None = None) -> list[Result | RunFailure]:
        """The runs in the order of the experiments, each at least up to a virtual time, or else to its end.

        What is not in the cache is computed, each run once; runs that crash are failures, and the others go on.
        """
        assert self._cache is not None
        keys = [digest(each) for each in experiments]
        planned = {
            key: PlannedRun(experiment=each, path=self._cache / key, cached=True, until=until)
            for key, each in zip(keys, experiments, strict=True)
        }
        failed = {run.path.name: failure for run, failure in self.run(list(planned.values())).items()}
        return [
            failed.get(key) or run_in(self._cache / key, each, until=until)
            for key, each in zip(keys, experiments, strict=True)
        ]

    # Runs in directories ----------------------------------------------------------------------------------------------

    def run(self, planned_runs: Sequence[PlannedRun]) -> dict[PlannedRun, RunFailure]:
        """Carry out the missing runs; return those that failed, with the reason."""
        left = [planned for planned in planned_runs if not planned.is_done]
        if not left:
            return {}
        self.connect(left[0].experiment)
        placed = [replace(planned, experiment=self._placed(planned.experiment)) for planned in left]
        watches = [self._watching(replace(planned, batch=len(left))) for planned in left]
        with interruption() as asked:
            if self._in_this_process and self._cluster is None:
                found = {
                    number: planned.carry_out(watch, asked)
                    for number, (planned, watch) in enumerate(zip(placed, watches, strict=True))
                }
            else:
                with self._workers(len(left)) as workers:
                    found = _carry_out_all(placed, workers, asked, watches)
        return {left[number]: failure for number, failure in sorted(found.items()) if failure is not None}

    def _watching(self, planned: PlannedRun) -> OnProgress | None:
        watch = self._watch
        return None if watch is None else lambda fraction, row: watch(planned, fraction, row)

    @contextmanager
    def _workers(self, runs: int) -> Iterator[RunProcesses | RunActors]:
        if self._cluster is not None:
            with closing(RunActors(self._cluster, runs)) as actors:
                yield actors
            return
        self._processes = self._processes or RunProcesses(self._jobs)
        try:
            yield self._processes
        except BaseException:  # their runs have stopped, or must stop now
            self._processes.close()
            self._processes = None
            raise


def _carry_out_all(
    planned_runs: list[PlannedRun],
    workers: RunProcesses | RunActors,
    asked: Flag,
    watches: Sequence[OnProgress | None],
) -> dict[int, RunFailure | None]:
    """Give the runs to workers as they become free; returns the failures by the number of the run."""
    waiting, retries, running = deque(range(len(planned_runs))), deque[int](), set[int]()
    losses, failures = Counter[int](), dict[int, RunFailure | None]()
    stopping = False

    def begin(number: int) -> None:
        running.add(number)
        workers.begin(number, planned_runs[number])

    while waiting or retries or running:
        if asked.is_set() and not stopping:
            stopping = True
            workers.stop()
        if stopping:
            waiting.clear()
            retries.clear()
        while waiting and workers.free:
            begin(waiting.popleft())
        while retries and workers.free and not waiting and not (workers.retries_alone and running):
            begin(retries.popleft())
        for report in workers.poll(len(waiting) + len(retries)):
            number = report.number
            if isinstance(report, RunProgress):
                _report(watches[number], report.fraction, report.row)
                continue
            running.discard(number)
            if isinstance(report, EndedRun):
                stopping = stopping or report.interrupted
                failures[number] = report.failure
                if report.failure is None and not report.interrupted:
                    _report(watches[number], 1.0, None)
                continue
            planned = planned_runs[number]
            losses[number] += 1
            if losses[number] < workers.attempts:
                planned_runs[number] = replace(planned, overwrite=not planned.resume)  # its directory has files now
                retries.append(number)
            else:
                reason = f"its process died {workers.attempts} times, {_why(report.exit_code)}"
                failures[number] = RunFailure(planned.label, reason)
    if stopping:
        raise Interrupted("interrupted", number=getattr(asked, "number", 2))
    return failures


def _why(exit_code: int | None) -> str:
    """Why a process probably died."""
    if exit_code != 1:
        return "possibly for lack of memory"
    return 'with an error (above): a script that starts runs must have its code under `if __name__ == "__main__":`'


def _report(watch: OnProgress | None, fraction: float, row: Row | None) -> None:
    if watch is not None:
        watch(fraction, row)


@contextmanager
def kept_in(root: Path) -> Iterator[None]:
    """Have errors that stop runs before their end say that what was computed is kept in a directory."""
    try:
        yield
    except Interrupted as error:
        kept = f"interrupted: finished runs and checkpoints are in {root}"
        raise Interrupted(kept, number=error.number, resumable=True) from None
    except WorkersLost as error:
        raise WorkersLost(f"{error} (finished runs are in {root})", resumable=True) from None


def runs_stay_here(experiments: Iterable[Experiment], jobs: int | None = None) -> bool:
    """Whether the runs must take place in this process, one at a time; a note says why if others were asked for."""
    script, own = unguarded_script(), next((each for each in experiments if each.only_here), None)
    if own is not None and jobs is not None and jobs > 1:
        name = thing_name(next(name for name in own.own.values() if name.startswith(GIVEN)))
        why = f"jobs = {jobs}: {name} exists in this process only"
    elif script and jobs != 1 and own is None:
        why = f'{script} has no `if __name__ == "__main__":`, so worker processes would run all of it again'
    else:
        return own is not None or bool(script)
    messages.print(
        f"offbeat: note: {why}; the runs take place in this process, one at a time.", soft_wrap=True, highlight=False
    )
    return True


# Cores ---------------------------------------------------------------------------------------------------------------


def with_automatic_workers(experiment: Experiment) -> Experiment:
    """The experiment with `execution.workers = "auto"` unless it sets them or no worker could have its objects."""
    if experiment.execution.workers is not None or experiment.only_here or unguarded_script():
        return experiment
    return experiment.changed({"execution": {"workers": "auto"}})


def runs_at_a_time(jobs: int | None, experiments: Sequence[Experiment]) -> int:
    """How many runs are in progress at once: `jobs`, or as many as keep all cores busy with their workers."""
    return min(jobs or runs_that_fill_cores(experiments), len(experiments))


def runs_that_fill_cores(experiments: Iterable[Experiment]) -> int:
    """How many of these runs at a time keep all cores busy with their workers."""
    given = (each.execution.workers for each in experiments)
    return max(1, available_cores() // max(each if isinstance(each, int) else 1 for each in given))


def sharing_cores(experiment: Experiment, runs: int) -> Experiment:
    """The experiment with `execution.workers = "auto"` replaced by its share of the cores."""
    if experiment.execution.workers != "auto" or experiment.execution.executor == "ray":
        return experiment
    return experiment.changed({"execution": {"workers": max(1, available_cores() // runs)}})
