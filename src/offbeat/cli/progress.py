"""Progress bars of the command line, on standard error."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:  # so that --help is quick
    from offbeat.comparison.compare import OnRunProgress, PlannedRun

messages = Console(stderr=True)


@contextmanager
def watched_bars() -> Iterator["OnRunProgress"]:
    """A bar for each run that has begun; those that have ended give way to the next."""
    with bars() as shown:
        tasks: dict[str, Any] = {}

        def watch(planned: "PlannedRun", fraction: float, row: dict[str, float] | None) -> None:
            if planned.label not in tasks:
                tasks[planned.label] = shown.add_task(planned.label, total=1.0, note="")
            fresh = {"note": note(row)} if row is not None else {}
            shown.update(tasks[planned.label], completed=fraction, visible=fraction < 1 or len(tasks) < 20, **fresh)

        yield watch


@contextmanager
def bars() -> Iterator[Any]:
    """Progress bars for runs, on standard error."""
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


def note(row: dict[str, float]) -> str:
    """The newest row of metrics in a few words."""
    from offbeat.results.metric import metrics_in

    name = metrics_in(row)[0]
    return f"{row['time']:.5g} s, version {row['version']:g}, {name.replace('_', ' ')} {row[name]:.3f}"
