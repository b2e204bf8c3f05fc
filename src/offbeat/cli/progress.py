"""Progress on standard error: bars in a terminal, otherwise a line every 30 seconds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:  # keeps --help fast
    from offbeat.comparison.planned import OnRunProgress, PlannedRun

messages = Console(stderr=True)
LINE_SECONDS = 30.0
"""Seconds between progress lines when stderr is not a terminal."""


@contextmanager
def watched_bars() -> Iterator["OnRunProgress"]:
    """Show a bar for each started run; finished bars disappear once there are many."""
    with bars() as shown, cluster_line(shown):
        tasks: dict[str, Any] = {}

        def watch(planned: "PlannedRun", fraction: float, row: dict[str, float] | None) -> None:
            if planned.label not in tasks:
                tasks[planned.label] = shown.add_task(planned.label, total=1.0, note="")
            fresh = {"note": note(row, planned.experiment.target_metric)} if row is not None else {}
            shown.update(tasks[planned.label], completed=fraction, visible=fraction < 1 or len(tasks) < 20, **fresh)

        yield watch


class ProgressLines:
    """Same interface as a progress bar; writes a line per unfinished task at an interval."""

    def __init__(
        self, write: Callable[[str], object], seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._seconds = seconds
        self._clock = clock
        self._due = clock() + seconds
        self._tasks: list[dict[str, Any]] = []

    def add_task(self, description: str, *, total: float | None, note: str = "") -> int:
        """Add a task and return its number."""
        self._tasks.append({"description": description, "total": total, "note": note, "completed": 0.0})
        return len(self._tasks) - 1

    def update(self, task: int, **what: Any) -> None:
        """Update a task; print a line per unfinished task when the interval is over."""
        self._tasks[task] |= what
        now = self._clock()
        if now >= self._due:
            self._due = now + self._seconds
            for each in self._tasks:
                if each["total"] is None or each["completed"] < each["total"]:
                    self._write(_line(**each))


def _line(*, description: str, total: float | None, completed: float, note: str, **_: object) -> str:
    share = f"{100 * completed / total:.0f} %" if total else "running"
    return f"{description}: {share}{f', {note}' if note else ''}"


@contextmanager
def bars() -> Iterator[Any]:
    """Show progress bars, or lines if stderr is not a terminal."""
    if not messages.is_terminal:
        yield ProgressLines(partial(messages.print, markup=False, highlight=False, soft_wrap=True), LINE_SECONDS)
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=messages, transient=True) as shown:
        yield shown


@contextmanager
def cluster_line(shown: Any) -> Iterator[None]:
    """Show the status of the Ray cluster, if runs compute on one."""
    from offbeat.training.ray_cluster import ClusterStatus, watching_cluster

    lines: list[Any] = []

    def watch(status: ClusterStatus) -> None:
        if not lines:
            lines.append(shown.add_task(f"Ray cluster ({status.address})", total=None, note=""))
        shown.update(lines[0], note=str(status))

    with watching_cluster(watch):
        yield


def note(row: dict[str, float], metric: str) -> str:
    """Summarise a row in a few words: time, version and a metric."""
    return f"{row['time']:.5g} s, version {row['version']:g}, {metric.replace('_', ' ')} {row[metric]:.3f}"
