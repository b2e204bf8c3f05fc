"""`offbeat watch`: runs in the terminal while they are in progress, from their files alone."""

import csv
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offbeat.cli.base import console
from offbeat.cli.next_commands import next_step
from offbeat.core.errors import InvalidInput

if TYPE_CHECKING:
    from offbeat.results.index import Entry, RunEntry
    from offbeat.results.rows import Row

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 28
"""Characters of a sparkline."""
OUTCOMES = ("used", "discarded", "lost", "refused")
MOST_RUNS = 20
"""Runs of a comparison that are shown; running ones come first."""


def watch(
    directory: Annotated[Path, typer.Argument(help="Directory of a run, a comparison, a search, or of several.")],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between updates.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the current state and exit.")] = False,
) -> None:
    """Watch runs in the terminal: curves, devices in training, staleness, slowest devices, faults.

    Reads files only, so it may start, stop and run as often as you like, on simulated and real runs. Ends when no run
    is in progress. Without a terminal it prints the current state once.

    Example: `offbeat compare demo --out runs/demo &` and then `offbeat watch runs/demo`
    """
    views = Views(directory)
    first, running = views.draw()
    if once or not running or not console.is_terminal:
        console.print(first)
        next_step("watch", root=directory)
        return
    from rich.live import Live

    with Live(first, console=console, auto_refresh=False) as live:
        try:
            while running:
                time.sleep(every)
                drawn, running = views.draw()
                live.update(drawn, refresh=True)
        except KeyboardInterrupt:
            return
    next_step("watch", root=directory)


class Views:
    """Draws what a directory holds, and remembers how far each run's files have been read."""

    def __init__(self, directory: Path) -> None:
        from offbeat.results.index import read_index

        self._directory = directory
        self._read = read_index
        self._seconds: dict[Path, OrderSeconds] = {}

    def draw(self) -> tuple[RenderableType, bool]:
        """The view of the current state, and whether a run is in progress."""
        entries = self._read(self._directory)
        if not entries:
            raise InvalidInput(f"{self._directory} holds no run")
        running = any(entry.state == "running" for entry in entries)
        if len(entries) == 1 and len(entries[0].runs) == 1:
            return self._detailed(entries[0].runs[0]), running
        return Group(*self._overview(entries)), running

    def _overview(self, entries: "Sequence[Entry]") -> Iterator[RenderableType]:
        """One row per run, running ones first."""
        from offbeat.results.metric import duration

        runs = sorted((run for entry in entries for run in entry.runs), key=lambda run: run.state != "running")
        table = Table(box=None, padding=(0, 1), header_style="bold")
        for heading in ("run", "state", "done", "time", "version", runs[0].metric.title, ""):
            table.add_column(heading, no_wrap=True, overflow="fold")
        for run in runs[:MOST_RUNS]:
            rows = _rows(run.path)
            values = [row[run.metric.name] for row in rows if run.metric.name in row]
            table.add_row(
                Text(f"{run.algorithm} {run.seed}"),
                run.state,
                "" if run.progress is None else f"{100 * run.progress:.0f} %",
                duration(run.time),
                str(run.versions),
                Text(sparkline(values), "cyan"),
                "" if run.value is None else run.metric.text(run.value, 1),
            )
        yield table
        if len(runs) > MOST_RUNS:
            yield Text(f"and {len(runs) - MOST_RUNS} more runs")

    def _detailed(self, run: "RunEntry") -> RenderableType:
        """Curves and counts of one run."""
        from offbeat.results.metric import duration
        from offbeat.results.rows import RUN_COLUMNS

        rows = _rows(run.path)
        title = f"{run.algorithm}, seed {run.seed}: {run.state}"
        done = "" if run.progress is None else f", {100 * run.progress:.0f} % done"
        lines: list[RenderableType] = [Text(title, "bold"), Text(f"{duration(run.time)}, version {run.versions}{done}")]
        if not rows:
            return Group(*lines, Text("no evaluation yet"))
        curves, last = Table(box=None, show_header=False, padding=(0, 1)), rows[-1]
        shown = [*[name for name in last if name not in RUN_COLUMNS][:6], "in_flight", "mean_staleness"]
        for name in shown:
            values = [row[name] for row in rows if name in row]
            text = run.metric.text(last[name], 1) if name == run.metric.name else f"{last[name]:.4g}"
            curves.add_row(Text(name.replace("_", " ")), Text(sparkline(values), "cyan"), text)
        lines.append(curves)
        counts = [f"{last[key]:g} {word}" for word in OUTCOMES if (key := f"updates_{word}") in last]
        lines.append(Text(f"updates: {', '.join(counts)}"))
        if faults := {name[7:]: value for name, value in last.items() if name.startswith("faults_") and value}:
            words = ", ".join(f"{value:g} {name.replace('_', ' ')}" for name, value in faults.items())
            lines.append(Text(f"faults: {words}", "yellow"))
        if slowest := self._seconds.setdefault(run.path, OrderSeconds(run.path)).slowest():
            words = ", ".join(f"{name} ({duration(seconds)})" for name, seconds in slowest)
            lines.append(Text(f"slowest devices, seconds per order: {words}"))
        if run.state == "interrupted":
            lines.append(Text("Interrupted. Repeat the command that started it with --resume to continue."))
        return Group(*lines)


class OrderSeconds:
    """Mean seconds per order of each device: from devices.csv, or from the timeline of a run in progress."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._orders: dict[str, list[float]] = defaultdict(list)

    def slowest(self, number: int = 3) -> list[tuple[str, float]]:
        """The slowest devices with their mean seconds per order."""
        table = self._path / "devices.csv"
        means = self._from_table(table) if table.is_file() else self._from_timeline()
        return sorted(means.items(), key=lambda each: -each[1])[:number]

    def _from_table(self, file: Path) -> dict[str, float]:
        with file.open(encoding="utf-8", newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if int(row["delivered"] or 0)]
        return {
            row.get("name") or row["device"]: (float(row["training_seconds"]) + float(row["way_seconds"]))
            / int(row["delivered"])
            for row in rows
        }

    def _from_timeline(self) -> dict[str, float]:
        for event in self._new_events():
            if event.get("name") == "order (uploaded)":
                self._orders[str(event["tid"])].append(event["dur"] / 1e6)
        return {device: sum(found) / len(found) for device, found in self._orders.items()}

    def _new_events(self) -> Iterator[dict[str, Any]]:
        try:
            with (self._path / "timeline.json").open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            try:
                yield json.loads(line.rstrip(b","))
            except ValueError:  # the opening bracket, or what a killed run left
                continue


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """The values as a line of bars, the last ones of each stretch if there are more than `width`.

    >>> sparkline([0.0, 0.5, 1.0]), sparkline([2.0, 2.0])
    ('▁▅█', '▁▁')
    """
    if len(values) > width:
        values = [values[(position + 1) * len(values) // width - 1] for position in range(width)]
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in values)


def _rows(path: Path) -> "list[Row]":
    from offbeat.results.index import read_rows

    return read_rows(path / "metrics.jsonl")
