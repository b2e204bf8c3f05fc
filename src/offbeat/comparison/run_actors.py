"""Ray actors that carry out runs: one run per worker of the cluster or, with more workers than runs, several workers
per run.

A run computes in a temporary folder on its worker's machine, and its files come back when it has ended or was told to
stop. A run that is lost with its machine begins again from the files in its directory here.
"""

import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from msgspec import Struct
from msgspec.structs import replace as replace_fields

from offbeat.comparison.planned import PlannedRun, RunFailure
from offbeat.comparison.run_processes import EndedRun, LostRun, RunProgress, RunReport
from offbeat.core.errors import Interrupted, WorkersLost
from offbeat.results.files import replace_file
from offbeat.results.lock import LOCK_FILE, DirectoryInUse, DirectoryLock
from offbeat.results.rows import Row
from offbeat.running.directory import ERROR_FILE, clear_run
from offbeat.training.ray_cluster import RayCluster
from offbeat.training.workers import ATTEMPTS

POLL_SECONDS = 0.5
LAST = "summary.json"
"""Written last: a directory that has it is finished."""

Files = Mapping[str, bytes]


class RunFiles(Struct, frozen=True):
    """What an actor returns of a run: its files, and how it ended."""

    files: dict[str, bytes]
    failure: RunFailure | None = None
    interrupted: bool = False


class RunActor:
    """Carries out one run at a time on a machine of the cluster."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._progress: tuple[float, Row | None] = (0.0, None)

    def ready(self) -> None:
        """Return once the actor has started."""

    def progress(self) -> tuple[float, Row | None]:
        """The fraction of the run that is done, and its newest row of metrics."""
        return self._progress

    def stop(self) -> None:
        """Tell the run to leave a checkpoint and end."""
        self._stopped.set()

    def run(self, planned: PlannedRun, files: Files) -> RunFiles:
        """Carry out a run, beginning with these files in its directory."""
        failure, interrupted = None, False
        self._progress = (0.0, None)
        with tempfile.TemporaryDirectory(prefix="offbeat-") as folder:
            path = Path(folder) / "run"
            write_files(path, files)
            try:
                failure = replace(planned, path=path).carry_out(self._watch, self._stopped)
            except Interrupted:
                interrupted = True
            return RunFiles(read_files(path), failure, interrupted)

    def _watch(self, fraction: float, row: Row | None) -> None:
        self._progress = (fraction, row or self._progress[1])


def read_files(path: Path) -> dict[str, bytes]:
    """The files of a run's directory by their names in it.

    The checkpoint is read first, because it says how much of the logs counts.
    """
    found = sorted(each for each in path.rglob("*") if each.is_file() and each.name != LOCK_FILE)
    return {str(each.relative_to(path)): each.read_bytes() for each in found}


def write_files(path: Path, files: Files) -> None:
    """Put files into a directory; the one that says that the run is finished comes last."""
    for name in sorted(files, key=lambda name: name == LAST):
        replace_file(path / name, files[name])


class _Given(Struct):
    """A run that an actor carries out."""

    number: int
    planned: PlannedRun
    files: Files
    """The files that it began with."""
    lock: DirectoryLock
    """Held on the run's directory here until its files are back."""


class RunActors:
    """As many actors as the cluster has workers for a number of runs."""

    attempts = ATTEMPTS
    """How often a run that was lost with its worker is carried out."""
    retries_alone = False

    def __init__(self, cluster: RayCluster, runs: int) -> None:
        self._cluster = cluster
        self._ray = cluster.ray
        self._execution = cluster.execution
        workers = cluster.workers()
        self._share = max(1, workers // runs)
        """Workers per run."""
        self._most = min(workers, runs)
        self._free: list[Any] = []
        self._pending: dict[Any, tuple[Any, _Given | None]] = {}
        """The actor and its run by the reply that is awaited; None instead of a run: that the actor has started."""
        self._reports: list[RunReport] = []
        self._failed_starts = 0
        self._stopping = False
        self._seen = monotonic()
        """When an actor was last there."""
        for _ in range(self._most):
            self._start()

    @property
    def free(self) -> int:
        """How many more runs can begin now."""
        return len(self._free)

    def _start(self) -> None:
        resources = self._cluster.resources if self._share == 1 else {"num_cpus": 0}
        actor = self._ray.remote(RunActor).options(max_restarts=0, max_concurrency=2, **resources).remote()
        self._pending[actor.ready.remote()] = (actor, None)

    def begin(self, number: int, planned: PlannedRun) -> None:
        """Let a free actor carry out a run, from the files in its directory if it may be resumed."""
        lock = DirectoryLock(planned.path)
        try:
            lock.take()
        except DirectoryInUse as error:
            # Another process is computing this cached run; reading its result waits for that process.
            failure = None if planned.cached else RunFailure.of(error, planned)
            self._reports.append(EndedRun(number, failure))
            return
        resumes = planned.cached or planned.resume
        if not resumes:
            clear_run(planned.path)  # that it may be overwritten was checked
        files = read_files(planned.path) if resumes else {}
        actor = self._free.pop()
        experiment = planned.experiment.changed({"execution": self._execution_there()})
        reply = actor.run.remote(replace(planned, experiment=experiment), files)
        self._pending[reply] = (actor, _Given(number, planned, files, lock))

    def _execution_there(self) -> dict[str, Any]:
        """What computes a run on the cluster: its actor alone, or several workers of the cluster."""
        if self._share > 1:
            return {"workers": self._share}
        gpus = self._execution.gpus_per_worker
        device = "cuda" if gpus else self._execution.device
        return {"executor": "sequential", "workers": 1, "address": "local", "gpus_per_worker": 0.0, "device": device}

    def poll(self, queued: int) -> list[RunReport]:
        """What has come from the cluster, after waiting a moment for something; `queued` runs have not begun."""
        busy = {given.number: actor for actor, given in self._pending.values() if given is not None}
        self._cluster.report(len(self._free) + len(busy), queued)
        ended, _ = self._ray.wait(list(self._pending), timeout=POLL_SECONDS) if self._pending else ([], [])
        for reply in ended:
            self._take(reply)
        if not ended and busy:
            asked = {actor.progress.remote(): number for number, actor in busy.items()}
            told, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=POLL_SECONDS)
            for reply in told:
                with suppress(self._ray.exceptions.RayError):  # it is lost: the reply of its run says so
                    self._reports.append(RunProgress(asked[reply], *self._ray.get(reply)))
        if busy or self._free:
            self._seen = monotonic()
        elif monotonic() - self._seen > self._execution.cluster_timeout:
            if not self._cluster.is_busy():
                raise self._cluster.no_worker()
            self._seen = monotonic()
        reports, self._reports = self._reports, []
        return reports

    def _take(self, reply: Any) -> None:
        actor, given = self._pending.pop(reply)
        try:
            came: RunFiles | None = self._ray.get(reply)
        except self._ray.exceptions.RayError as error:
            self._lose(given, error)
            return
        self._free.append(actor)
        if given is None or came is None:
            return
        path, failure = given.planned.path, came.failure
        write_files(path, came.files)
        for name in given.files.keys() - came.files.keys():  # the checkpoint of a run that is over
            (path / name).unlink(missing_ok=True)
            with suppress(OSError):
                (path / name).parent.rmdir()  # if it is empty now
        given.lock.release()
        if failure is not None and failure.traceback is not None:
            failure = replace_fields(failure, traceback=str(path / ERROR_FILE))
        self._reports.append(EndedRun(given.number, failure, came.interrupted))

    def _lose(self, given: _Given | None, error: Exception) -> None:
        """Report that an actor is gone with its run, and start another one."""
        if given is None:
            self._failed_starts += 1
            if self._failed_starts >= ATTEMPTS * self._most:
                raise WorkersLost(f"no worker can be started on the Ray cluster ({str(error).strip()})")
        else:
            given.lock.release()
            self._reports.append(LostRun(given.number))
        if not self._stopping:
            self._start()

    def stop(self) -> None:
        """Tell all runs to leave a checkpoint and end."""
        self._stopping = True
        for actor, given in self._pending.values():
            if given is not None:
                actor.stop.remote()

    def close(self) -> None:
        """End all actors."""
        for actor in [*self._free, *(actor for actor, _ in self._pending.values())]:
            self._ray.kill(actor)
        for _, given in self._pending.values():
            if given is not None:
                given.lock.release()
