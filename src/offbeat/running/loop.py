"""The loop around a driver: its results go into a directory, it leaves checkpoints, Ctrl-C stops it between two turns.

The same for a simulation and for a deployment.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from offbeat.core.errors import Disconnected, Diverged, OffbeatError
from offbeat.results.summary import summarise
from offbeat.running.directory import RunDirectory
from offbeat.running.driver import Driver, OnProgress, progress_of
from offbeat.running.result import Result
from offbeat.settings.schema import Experiment


class Flag(Protocol):
    """An event of threads or of processes."""

    def is_set(self) -> bool: ...


class Interrupted(OffbeatError):
    """The user stopped the run; it can be resumed if it has a directory."""


def run_to_end(
    driver: Driver,
    experiment: Experiment,
    directory: RunDirectory | None,
    *,
    watch: OnProgress | None = None,
    interrupted: Flag | None = None,
) -> Result:
    """Run to the end, or from the directory's checkpoint to the end."""
    with interruption(interrupted) as asked:
        rows, spent = directory.open(driver) if directory is not None else ([], 0.0)
        started = saved = time.monotonic()
        reason = None
        try:
            for row in driver:
                if row is not None:
                    rows.append(row)
                spans = driver.accounts.take_spans()
                if directory is not None:
                    directory.write(row, spans)
                if watch is not None:
                    watch(progress_of(driver), row)
                now = time.monotonic()
                due = asked.is_set() or now - saved > experiment.execution.checkpoint_seconds
                if directory is not None and due:
                    directory.checkpoint(driver, spent + now - started)
                    saved = now
                if asked.is_set():
                    raise Interrupted(_interruption_sentence(directory))
        except Diverged as error:
            reason = f"diverged: {error}"
            rows.append(driver.evaluate())
            if directory is not None:
                directory.write(rows[-1], driver.accounts.take_spans())
        except Disconnected:
            if directory is not None:
                directory.write(None, driver.accounts.take_spans())
                directory.checkpoint(driver, spent + time.monotonic() - started)
                directory.close()
            raise
        except BaseException:
            if directory is not None:
                directory.close()
            raise
        summary = summarise(
            rows,
            algorithm=experiment.algorithm.name,
            label=experiment.algorithm.title,
            seed=experiment.seed,
            targets=experiment.evaluation.targets,
            reason=reason or driver.reason or "",
            wall_seconds=spent + time.monotonic() - started,
        )
        parameters, layout = driver.session.parameters, driver.session.layout
        if directory is not None:
            directory.write_devices(driver)
            directory.finish(parameters if experiment.execution.save_model else None, layout, summary)
    return Result(
        experiment=experiment,
        rows=rows,
        summary=summary,
        parameters=parameters,
        directory=directory.path if directory is not None else None,
    )


def _interruption_sentence(directory: RunDirectory | None) -> str:
    if directory is None:
        return "interrupted; nothing was kept, because the run has no directory"
    return f"interrupted; everything so far is in {directory.path}: go on with --resume"


@contextmanager
def interruption(given: Flag | None = None) -> Iterator[Flag]:
    """A flag that Ctrl-C sets, so that a run stops between two events. A second Ctrl-C stops at once."""
    if given is not None or threading.current_thread() is not threading.main_thread():
        yield given or threading.Event()
        return
    asked = threading.Event()

    def ask(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
