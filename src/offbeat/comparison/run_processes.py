"""Worker processes that carry out runs, one at a time each, and stay for the next runs.

A process that dies takes only its own run with it. A process whose parent dies, or that gets SIGTERM or SIGHUP, lets
its run write a checkpoint before it exits.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from msgspec import Struct

from offbeat.comparison.planned import PlannedRun, RunFailure
from offbeat.core.errors import Interrupted
from offbeat.results.rows import Row
from offbeat.running.driver import OnProgress
from offbeat.running.interruption import Flag
from offbeat.training.processes import process_context

POLL_SECONDS = 0.1
REPORTED_FRACTION = 0.01
"""Progress without a new row of metrics is reported in steps of this fraction of a run."""


class RunProgress(Struct, frozen=True):
    """Progress of a run."""

    number: int
    fraction: float
    row: Row | None


class EndedRun(Struct, frozen=True):
    """A run that has ended, failed, or left a checkpoint because it was told to stop."""

    number: int
    failure: RunFailure | None = None
    interrupted: bool = False


class LostRun(Struct, frozen=True):
    """A run whose process, or machine, has died."""

    number: int
    exit_code: int | None = None
    """Exit code of the process; negative if a signal killed it."""


RunReport = RunProgress | EndedRun | LostRun


class _Process(NamedTuple):
    connection: Connection
    process: Any


class RunProcesses:
    """Up to `jobs` worker processes on this machine, started when they are needed."""

    attempts = 2
    """How often a run whose process died is carried out."""
    retries_alone = True
    """The second attempt has the machine for itself: memory may have been short."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._context = process_context(__name__, "offbeat.results.plots")
        self._stop = self._context.Event()
        self._idle: list[_Process] = []
        self._busy: dict[Any, tuple[_Process, int]] = {}
        """The process and the number of its run, by its connection."""

    @property
    def free(self) -> int:
        """How many more runs can begin now."""
        return self._jobs - len(self._busy)

    def begin(self, number: int, planned: PlannedRun) -> None:
        """Let an idle process, or a new one, carry out a run."""
        while True:
            worker = self._idle.pop() if self._idle else self._start()
            try:
                worker.connection.send((number, planned))
            except OSError:  # it has died since its last run
                _end(worker)
                continue
            self._busy[worker.connection] = (worker, number)
            return

    def _start(self) -> _Process:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._stop))
        process.start()
        theirs.close()
        return _Process(ours, process)

    def poll(self, queued: int) -> list[RunReport]:
        """What the processes have reported, after waiting a moment for something; `queued` runs have not begun."""
        reports: list[RunReport] = []
        for connection in wait(list(self._busy), POLL_SECONDS):
            worker, number = self._busy[connection]
            try:
                report = worker.connection.recv()
            except (EOFError, OSError):
                del self._busy[connection]
                report = LostRun(number, _end(worker))
            if isinstance(report, EndedRun):
                del self._busy[connection]
                self._idle.append(worker)
            reports.append(report)
        return reports

    def stop(self) -> None:
        """Tell all runs to leave a checkpoint and end."""
        self._stop.set()

    def close(self) -> None:
        """Stop what still runs, and wait until all processes have ended."""
        self.stop()
        for worker in [*self._idle, *(worker for worker, _ in self._busy.values())]:
            _end(worker)
        self._idle, self._busy = [], {}


def _end(worker: _Process) -> int | None:
    """Wait for the end of a process, and return its exit code."""
    worker.connection.close()  # the process ends when it next reads from or writes to it
    worker.process.join()
    exit_code: int | None = worker.process.exitcode
    worker.process.close()
    return exit_code


# In a worker process -------------------------------------------------------------------------------------------------


def _serve(connection: Connection, stop: Any) -> None:
    """Carry out the runs that the parent sends, until it closes the connection."""
    leaving = _Leaving(stop)
    with suppress(EOFError, OSError):
        while True:
            number, planned = connection.recv()
            with leaving.delayed():
                connection.send(_ended(number, planned, _reporting(connection, number), leaving))


def _ended(number: int, planned: PlannedRun, watch: OnProgress, stop: Flag) -> EndedRun:
    try:
        return EndedRun(number, planned.carry_out(watch, stop))
    except Interrupted:
        return EndedRun(number, interrupted=True)


def _reporting(connection: Connection, number: int) -> OnProgress:
    """A function that sends the parent every row of metrics, and progress in coarse steps."""
    reported = -1.0

    def watch(fraction: float, row: Row | None) -> None:
        nonlocal reported
        if row is not None or fraction - reported > REPORTED_FRACTION:
            reported = fraction
            with suppress(OSError):  # the parent has gone: `_Leaving` stops the run
                connection.send(RunProgress(number, fraction, row))

    return watch


class _Leaving:
    """Stop flag of a worker process: set by the parent, by SIGTERM or SIGHUP, and when the parent has died.

    In the last two cases the process exits as soon as its run has written a checkpoint.
    """

    def __init__(self, stop: Any) -> None:
        self._stop = stop
        self._leaves = False
        self._busy = threading.Lock()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: threading.Thread(target=self._leave, daemon=True).start())
        threading.Thread(target=self._leave_with_parent, daemon=True).start()

    def is_set(self) -> bool:
        """Whether the run is to stop."""
        return self._leaves or bool(self._stop.is_set())

    @contextmanager
    def delayed(self) -> Iterator[None]:
        """Do not exit before the run in this context has stopped."""
        with self._busy:
            yield

    def _leave_with_parent(self) -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        self._leave()

    def _leave(self) -> None:
        self._leaves = True
        with self._busy:
            os._exit(1)
