"""Runs in processes: several at a time, each with a checkpoint if it is stopped, a failure of its own if it crashes."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from queue import Empty
from typing import Any

from offbeat.comparison.planned import OnRunProgress, PlannedRun, RunFailure
from offbeat.core.errors import Interrupted
from offbeat.results.figures import draw_figures
from offbeat.results.rows import Row
from offbeat.running.driver import OnProgress
from offbeat.running.interruption import Flag
from offbeat.simulation.run import run
from offbeat.training.processes import process_context

POLL_SECONDS = 0.1

_shared: dict[str, Any] = {}
"""What a process of the pool has from its parent: the queue for progress and the event that says stop."""


class RunPool:
    """Runs of a comparison, `jobs` at a time."""

    def __init__(
        self,
        planned_runs: Sequence[PlannedRun],
        *,
        jobs: int,
        overwrite: bool,
        resume: bool,
        watch: OnRunProgress | None,
        asked: Flag,
    ) -> None:
        self._planned = planned_runs
        self._jobs = jobs
        self._overwrite = overwrite
        self._resume = resume
        self._watch = watch
        self._asked = asked
        self._done: dict[int, str | None] = {}
        """Runs that are over, by number, and why they failed if they did."""

    def run(self) -> dict[PlannedRun, str]:
        """The runs that failed, and why in a sentence.

        Being asked to stop lets each leave a checkpoint, and raises Interrupted.
        """
        numbers = range(len(self._planned))
        try:
            self._run_some(numbers, self._jobs)
        except BrokenProcessPool:  # one took its process with it, nobody knows which: the rest one by one
            self._overwrite = not self._resume
            for number in numbers:
                if number not in self._done:
                    self._run_alone(number)
        return {self._planned[number]: why for number, why in sorted(self._done.items()) if why is not None}

    def _run_alone(self, number: int) -> None:
        try:
            self._run_some([number], 1)
        except BrokenProcessPool:
            label = self._planned[number].label
            self._done[number] = f"{label} failed: its process died, for instance for lack of memory"

    def _run_some(self, numbers: Sequence[int], jobs: int) -> None:
        context = process_context(__name__, "offbeat.results.plots")
        progress: Any = context.Queue()
        stop = context.Event()
        with ProcessPoolExecutor(min(jobs, len(numbers)), context, adopt, (progress, stop)) as pool:
            futures = {
                pool.submit(_run_one, number, self._planned[number], self._overwrite, self._resume): number
                for number in numbers
            }
            waiting: set[Future[str | None]] = set(futures)
            try:
                while waiting:
                    ended, waiting = wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                    if self._asked.is_set():
                        stop.set()
                    self._pass_on(progress)
                    self._take({futures[future]: future for future in ended})
            except BaseException:
                stop.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _take(self, ended: dict[int, Future[str | None]]) -> None:
        """Keep what has come out; then what was stopped, or lost with its process, is an error."""
        errors = {number: future.exception() for number, future in ended.items()}
        for number, future in ended.items():
            if errors[number] is None:
                self._done[number] = future.result()
        for error in filter(None, errors.values()):
            if self._asked.is_set():
                raise Interrupted("interrupted", number=getattr(self._asked, "number", 2))
            raise error

    def _pass_on(self, progress: Any) -> None:
        for number, fraction, row in reports(progress):
            if self._watch is not None:
                self._watch(self._planned[number], fraction, row)


def reports(progress: Any) -> Iterator[tuple[int, float, Row | None]]:
    """What processes of a pool have reported since somebody last asked: a run's number, how far it is, its row."""
    while True:
        try:
            yield progress.get_nowait()
        except Empty:
            return


# In the processes of the pool ----------------------------------------------------------------------------------------


def adopt(progress: Any, stop: Any) -> None:
    """Begin as a process of a pool: tell its parent of progress, and stop in good order when the parent says so."""
    _shared.update(progress=progress, stop=_Stop(stop), busy=threading.Lock())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent tells us when to stop
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: threading.Thread(target=_leave, daemon=True).start())
    threading.Thread(target=_end_with_parent, daemon=True).start()


class _Stop:
    """Set when the parent says so, and when we must go: nobody would want the rest, and somebody may resume."""

    def __init__(self, event: Any) -> None:
        self._event = event
        self.leaving = False

    def is_set(self) -> bool:
        return self.leaving or bool(self._event.is_set())


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _leave()


def _leave() -> None:
    """Let a run that is under way leave its checkpoint, and go."""
    _shared["stop"].leaving = True
    with _shared["busy"]:
        os._exit(1)


@contextmanager
def busy() -> Iterator[Flag]:
    """While a run is under way: its process does not leave before it has had the time to stop."""
    with _shared["busy"]:
        yield _shared["stop"]


def reporting(number: int) -> OnProgress:
    """A function that tells the parent, not too often, how far the run of this number has come."""
    reported = -1.0

    def watch(fraction: float, row: Row | None) -> None:
        nonlocal reported
        if row is not None or fraction - reported > 0.01:
            reported = fraction
            _shared["progress"].put((number, fraction, row))

    return watch


def _run_one(number: int, planned: PlannedRun, overwrite: bool, resume: bool) -> str | None:
    """Why it failed, if it did; its results are in its directory."""
    if _shared["stop"].is_set():
        raise Interrupted(f"interrupted before {planned.label} began")
    with busy() as stop:
        try:
            result = run(
                planned.experiment,
                planned.path,
                overwrite=overwrite,
                resume=resume,
                watch=reporting(number),
                interrupted=stop,
            )
            draw_figures(planned.experiment, result.rows, planned.path)
        except Interrupted:
            raise
        except Exception as error:  # a policy of the user's may raise anything: that ends its own run only
            return RunFailure.of(error).kept(planned)
    _shared["progress"].put((number, 1.0, result.rows[-1]))
    return None
