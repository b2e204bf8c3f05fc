"""Runs on a Ray cluster: as many side by side as there are workers; with more workers than runs, several for each run.

A run computes in a folder of its worker's machine, and its files come back when it is over or was asked to stop. One
that is lost with its machine begins again, from what there is in its directory here.
"""

import tempfile
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from msgspec import Struct

from offbeat.comparison.planned import OnRunProgress, PlannedRun, RunFailure
from offbeat.comparison.run_cache import compute
from offbeat.core.errors import Interrupted, WorkersLost
from offbeat.experiment.schema import Experiment
from offbeat.results.figures import draw_figures
from offbeat.results.files import replace_file
from offbeat.results.result import read_run
from offbeat.results.rows import Row
from offbeat.running.directory import clear_run
from offbeat.running.interruption import Flag
from offbeat.running.lock import LOCK_FILE
from offbeat.simulation.run import run
from offbeat.training.ray_cluster import RayCluster
from offbeat.training.workers import ATTEMPTS

POLL_SECONDS = 0.5
LAST = "summary.json"
"""Written last: a directory that has it is finished."""

Files = Mapping[str, bytes]


class EndedRun(Struct, frozen=True):
    """What became of a run, with the files that it leaves."""

    files: dict[str, bytes]
    failure: RunFailure | None = None
    interrupted: bool = False


class RunActor:
    """Carries out one run at a time on a machine of the cluster."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._progress: tuple[float, Row | None] = (0.0, None)

    def ready(self) -> None:
        """Return as soon as the actor is there."""

    def progress(self) -> tuple[float, Row | None]:
        """How much of the run is done, and its newest row of metrics."""
        return self._progress

    def stop(self) -> None:
        """Ask the run to leave a checkpoint and end."""
        self.stopped.set()

    def run(self, experiment: Experiment, files: Files, resume: bool) -> EndedRun:
        """Carry out a run, from the files of its directory if it is to be resumed."""
        failure, interrupted = None, False
        self._progress = (0.0, None)
        with tempfile.TemporaryDirectory(prefix="offbeat-") as folder:
            path = Path(folder) / "run"
            write_files(path, files)
            try:
                self.carry_out(experiment, path, resume)
            except Interrupted:
                interrupted = True
            except Exception as error:  # a policy of the user's may raise anything: that ends its own run only
                failure = RunFailure.of(error)
            return EndedRun(read_files(path), failure, interrupted)

    def carry_out(self, experiment: Experiment, path: Path, resume: bool) -> None:
        """Run to the end, with the figures."""
        result = run(experiment, path, resume=resume, watch=self.watch, interrupted=self.stopped)
        draw_figures(experiment, result.rows, path)

    def watch(self, fraction: float, row: Row | None) -> None:
        """Keep how far the run is, for whoever asks."""
        self._progress = (fraction, row or self._progress[1])


class CachedRunActor(RunActor):
    """Carries out one run of a cache at a time, at least up to a time, or else to its end."""

    def __init__(self, until: float | None) -> None:
        super().__init__()
        self._until = until

    def carry_out(self, experiment: Experiment, path: Path, resume: bool) -> None:
        """Run on from where the files have come, if that is not far enough."""
        compute(experiment, path, self._until, self.watch, self.stopped)


def read_files(path: Path) -> dict[str, bytes]:
    """The files of a run's directory by their names in it; the checkpoint first, because it says how much of the logs
    counts."""
    found = sorted(each for each in path.rglob("*") if each.is_file() and each.name != LOCK_FILE)
    return {str(each.relative_to(path)): each.read_bytes() for each in found}


def write_files(path: Path, files: Files) -> None:
    """Put files into a directory, with what says that a run is finished last."""
    for name in sorted(files, key=lambda name: name == LAST):
        replace_file(path / name, files[name])


class RayRuns:
    """Runs of a comparison, side by side on a cluster."""

    def __init__(
        self,
        planned_runs: Sequence[PlannedRun],
        cluster: RayCluster,
        *,
        resume: bool,
        watch: OnRunProgress | None,
        asked: Flag,
        make_actor: tuple[type[RunActor], *tuple[Any, ...]] = (RunActor,),
    ) -> None:
        """`make_actor` is the class of those that carry out the runs, and what they are made with."""
        self._planned = planned_runs
        self._make_actor = make_actor
        self._cluster = cluster
        self._execution = cluster.execution
        self._resume = resume
        self._watch = watch
        self._asked = asked
        self._ray = self._cluster.ray
        workers = self._cluster.workers()
        self._share = max(1, workers // len(planned_runs))
        """Workers for each run."""
        self._most = min(workers, len(planned_runs))
        self._waiting: deque[int] = deque()
        self._free: list[Any] = []
        self._pending: dict[Any, tuple[Any, int | None]] = {}
        """Whose answer is awaited about which run, or None: that the actor is there."""
        self._sent: dict[int, Files] = {}
        """What each run began with."""
        self._stopping = False
        self._losses: Counter[int] = Counter()
        self._failures: dict[int, str] = {}
        self._seen = monotonic()

    def run(self) -> dict[PlannedRun, str]:
        """The runs that failed, and why in a sentence.

        Being asked to stop lets each leave a checkpoint, and raises Interrupted.
        """
        try:
            return self._run()
        finally:
            for actor in [*self._free, *(actor for actor, _ in self._pending.values())]:
                self._ray.kill(actor)

    def _run(self) -> dict[PlannedRun, str]:
        for number, planned in enumerate(self._planned):
            if self._resume and (planned.path / LAST).is_file():
                self._report(number, 1.0, read_run(planned.path).rows[-1])
                continue
            self._waiting.append(number)
            if not self._resume:
                clear_run(planned.path)  # that it may be overwritten was checked
        for _ in range(min(self._most, len(self._waiting))):
            self._start()
        while self._waiting or any(number is not None for _, number in self._pending.values()):
            if self._asked.is_set() and not self._stopping:
                self._ask_to_stop()
            while self._waiting and self._free:
                self._give(self._free.pop(), self._waiting.popleft())
            self._await()
        if self._stopping:
            raise Interrupted("interrupted", number=getattr(self._asked, "number", 2))
        return {self._planned[number]: why for number, why in sorted(self._failures.items())}

    def _start(self) -> None:
        resources = self._cluster.resources if self._share == 1 else {"num_cpus": 0}
        kind, *given = self._make_actor
        actor = self._ray.remote(kind).options(max_restarts=0, max_concurrency=2, **resources).remote(*given)
        self._pending[actor.ready.remote()] = (actor, None)

    def _give(self, actor: Any, number: int) -> None:
        planned = self._planned[number]
        files = self._sent[number] = read_files(planned.path) if self._resume else {}
        experiment = planned.experiment.changed({"execution": self._execution_there()})
        self._pending[actor.run.remote(experiment, files, self._resume)] = (actor, number)

    def _execution_there(self) -> dict[str, Any]:
        """Who computes a run on the cluster: its actor alone, or some of the cluster's workers."""
        if self._share > 1:
            return {"workers": self._share}
        gpus = self._execution.gpus_per_worker
        place = "cuda" if gpus else self._execution.device
        return {"executor": "sequential", "workers": 1, "address": "local", "gpus_per_worker": 0.0, "device": place}

    def _ask_to_stop(self) -> None:
        self._stopping = True
        self._waiting.clear()
        for actor, number in self._pending.values():
            if number is not None:
                actor.stop.remote()

    def _await(self) -> None:
        """Wait a moment for what comes, and pass on how far the runs are."""
        busy = {number: actor for actor, number in self._pending.values() if number is not None}
        self._cluster.say(len(self._free) + len(busy), len(self._waiting))
        ended, _ = self._ray.wait(list(self._pending), timeout=POLL_SECONDS)
        for answer in ended:
            self._take(answer)
        if not ended:
            asked = {actor.progress.remote(): number for number, actor in busy.items()}
            told, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=POLL_SECONDS) if asked else ([], [])
            for answer in told:
                with suppress(self._ray.exceptions.RayError):  # it is lost: waiting for its run says so
                    self._report(asked[answer], *self._ray.get(answer))
        if busy or self._free:
            self._seen = monotonic()
        elif monotonic() - self._seen > self._execution.cluster_timeout:
            raise self._cluster.no_worker()

    def _take(self, answer: Any) -> None:
        actor, number = self._pending.pop(answer)
        try:
            ended = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            self._lose(number, error)
            return
        self._free.append(actor)
        if number is None:
            return
        planned = self._planned[number]
        write_files(planned.path, ended.files)
        for name in self._sent.pop(number).keys() - ended.files.keys():  # the checkpoint of a run that is over
            (planned.path / name).unlink(missing_ok=True)
            with suppress(OSError):
                (planned.path / name).parent.rmdir()  # if it is empty now
        if ended.failure is not None:
            self._failures[number] = ended.failure.kept(planned)
        elif not ended.interrupted:
            self._report(number, 1.0, read_run(planned.path).rows[-1])

    def _lose(self, number: int | None, error: Exception) -> None:
        """The actor is gone, and its run begins again elsewhere; one that is lost again and again has failed."""
        self._losses[-1 if number is None else number] += 1
        if number is None and self._losses[-1] >= ATTEMPTS * self._most:
            raise WorkersLost(f"no worker can be started on the Ray cluster ({str(error).strip()})")
        if number is not None and not self._stopping:
            if self._losses[number] < ATTEMPTS:
                self._waiting.appendleft(number)
            else:
                label = self._planned[number].label
                self._failures[number] = f"{label} failed: its worker died {ATTEMPTS} times, perhaps for lack of memory"
        self._start()

    def _report(self, number: int, fraction: float, row: Row | None) -> None:
        if self._watch is not None:
            self._watch(self._planned[number], fraction, row)
