"""Progress on standard error: bars in a terminal or a notebook, otherwise a line every 30 seconds."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console

if TYPE_CHECKING:  # keeps --help fast
    from offbeat.experiment.schema import Experiment
    from offbeat.running.driver import OnProgress

messages = Console(stderr=True, markup=False, emoji=False)
LINE_SECONDS = 30.0
"""Seconds between progress lines when stderr is not a terminal."""


class Run(Protocol):
    """What the bars need to know about a run of several."""

    @property
    def experiment(self) -> "Experiment":
        """The experiment."""
        ...

    @property
    def label(self) -> str:
        """The algorithm and the seed, in words."""
        ...

    @property
    def batch(self) -> int:
        """Number of runs that are carried out together."""
        ...


@contextmanager
def watched_bar(experiment: "Experiment") -> Iterator["OnProgress"]:
    """Show the bar of one run."""
    with bars() as shown, cluster_line(shown):
        bar = shown.add_task(experiment.algorithm.title, total=1.0, note="")

        def watch(fraction: float, row: dict[str, float] | None) -> None:
            fresh = {"note": note(row, experiment.target_metric)} if row is not None else {}
            shown.update(bar, completed=fraction, **fresh)

        yield watch


@contextmanager
def watched_bars() -> Iterator[Callable[[Run, float, dict[str, float] | None], None]]:
    """Show a bar for all runs together and one for each run in progress."""
    with bars() as shown, cluster_line(shown):
        tasks: dict[str, Any] = {}
        done: dict[str, float] = {}
        overall: list[Any] = []

        def watch(planned: Run, fraction: float, row: dict[str, float] | None) -> None:
            label, batch = planned.label, planned.batch
            if batch > 1:
                if not overall:
                    overall.append(shown.add_task(f"all {batch} runs", total=float(batch), note=""))
                done[label] = fraction
                ended = sum(each >= 1 for each in done.values())
                shown.update(overall[0], completed=sum(done.values()), note=f"{ended} finished")
            if label not in tasks:
                tasks[label] = shown.add_task(label, total=1.0, note="")
            fresh = {"note": note(row, planned.experiment.target_metric)} if row is not None else {}
            shown.update(tasks[label], completed=fraction, visible=fraction < 1, **fresh)

        yield watch


@contextmanager
def shown_in_notebook(watch: Any, show: Callable[[], AbstractContextManager[Any]]) -> Iterator[Any]:
    """Give the caller's own function, or bars (`show`) if there is none and this is a notebook, or else None."""
    if watch is None and messages.is_jupyter:
        with show() as bars_of_notebook:
            yield bars_of_notebook
    else:
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
        task = {"description": description, "total": total, "note": note, "completed": 0.0}
        self._tasks.append(task | {"began": 0.0, "first": None})
        return len(self._tasks) - 1

    def update(self, task: int, **what: Any) -> None:
        """Update a task; print a line per unfinished task when the interval is over."""
        self._tasks[task] |= what
        now = self._clock()
        if self._tasks[task]["first"] is None:  # a run that is resumed begins with what it had
            self._tasks[task] |= {"first": self._tasks[task]["completed"], "began": now}
        if now >= self._due:
            self._due = now + self._seconds
            for each in self._tasks:
                if each["total"] is None or each["completed"] < each["total"]:
                    self._write(_line(now=now, **each))


def _line(
    *,
    description: str,
    total: float | None,
    completed: float,
    note: str,
    began: float,
    first: float | None,
    now: float,
    **_: object,
) -> str:
    from offbeat.results.metric import duration

    share = f"{100 * completed / total:.0f} %" if total else "running"
    computed, left = completed - (first or 0.0), ""
    if total and computed > 0 and now > began:
        left = f", about {duration(round((now - began) * (total - completed) / computed))} left"
    return f"{description}: {share}{f', {note}' if note else ''}{left}"


@contextmanager
def bars() -> Iterator[Any]:
    """Show progress bars, or lines if stderr is not a terminal."""
    if not (messages.is_terminal or (messages.is_jupyter and find_spec("ipywidgets"))):  # rich needs them there
        yield ProgressLines(partial(messages.print, markup=False, highlight=False, soft_wrap=True), LINE_SECONDS)
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<24}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
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
    from offbeat.results.metric import duration

    return f"{duration(row['time'])}, version {row['version']:g}, {metric.replace('_', ' ')} {row[metric]:.3f}"
