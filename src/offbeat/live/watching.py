"""What the live view shows of a results directory, read from files and cached as long as the files do not change."""

import base64
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.comparison.gathered import comparison_of, gather, unlike
from offbeat.core.errors import InvalidInput
from offbeat.live.health import alarms, facts, progress
from offbeat.results.index import Entry, GroupEntry, RunEntry, read_entry, read_index
from offbeat.results.lock import is_locked
from offbeat.results.metric import duration
from offbeat.results.orders import parse_records, read_orders
from offbeat.results.report import fragments, page_data, read_live, run_page
from offbeat.results.result import Result, read_run

FILES = ("metrics.jsonl", "orders.bin", "live.json", "summary.json", "error.txt", "config.toml")
"""Files of a run whose change the live view shows."""
ROOM = 4_000_000
"""Bytes for the fleet strips of all runs in one view."""
RECHECK_SECONDS = 5.0
"""Seconds after which a view of a running process is computed again, although its files have not changed."""

Signature = tuple[Any, ...]


class Watching:
    """The runs under a directory. Reads files only; nothing is kept that a restart would lose."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._results: dict[Path, tuple[Signature, Result]] = {}
        self._views: dict[Path, tuple[Signature, dict[str, Any]]] = {}

    def place(self, name: str) -> Path:
        """The directory of this name under the root; raises InvalidInput if it is outside."""
        path = (self.root / name).resolve()
        if not path.is_relative_to(self.root):
            raise InvalidInput(f"{name} is outside the directory that is served")
        return path

    # What has changed -------------------------------------------------------------------------------------------------

    def signature(self, path: Path | None) -> Signature:
        """A value that changes when the view of a directory, or of the whole list (None), does."""
        entries = read_index(self.root) if path is None else [entry for entry in [read_entry(path)] if entry]
        runs = [run for entry in entries for run in entry.runs]
        running = any(entry.state == "running" for entry in entries)
        moment = int(time.time() / RECHECK_SECONDS) if running else 0
        return moment, tuple(entry.state for entry in entries), tuple(_signature(run.path) for run in runs)

    # The list ---------------------------------------------------------------------------------------------------------

    def index(self) -> dict[str, Any]:
        """The list of runs and groups, running ones first."""
        entries = read_index(self.root)
        running = sum(entry.state == "running" for entry in entries)
        return {
            "title": str(self.root.name or self.root),
            "runs": [],
            "index": [self._line(entry) for entry in entries],
            "empty": f"There are no runs in {self.root} yet. Start one with: offbeat run demo",
            "facts": [("entries", str(len(entries))), ("running", str(running))],
        }

    def _line(self, entry: Entry) -> dict[str, str]:
        name = str(entry.path.relative_to(self.root))
        share = progress(entry, {})
        line = {
            "name": self.root.name if name == "." else name,
            "href": f"/view/{'' if name == '.' else name}",
            "state": entry.state,
            "progress": entry.state if share is None or entry.state == "finished" else f"{entry.state}, {share:.0%}",
        }
        if isinstance(entry, GroupEntry):
            done = sum(run.state == "finished" for run in entry.runs)
            what = f"{entry.kind} of {', '.join(entry.algorithms[:6])}: {done} of {len(entry.runs)} runs finished"
            what = what if entry.runs else f"{entry.kind}, no run yet"
            return line | {"what": what, "time": "", "value": "", "target": ""}
        target = entry.target
        return line | {
            "what": entry.algorithm if entry.seed is None else f"{entry.algorithm}, seed {entry.seed}",
            "time": duration(entry.time) + (" (real)" if entry.real else ""),
            "value": "" if entry.value is None else entry.metric.text(entry.value, 1),
            "target": "-" if target is None else f"{entry.metric.text(target[0])}: {duration(target[1])}",
        }

    # One run or group -------------------------------------------------------------------------------------------------

    def view(self, path: Path) -> dict[str, Any]:
        """Everything that the page shows of a run or group. A run without a row of metrics has only a header."""
        entry = read_entry(path)
        if entry is None:
            return {"title": path.name, "runs": [], "problems": [f"{path} holds no run yet."]}
        single = entry if isinstance(entry, RunEntry) else None
        live = read_live(path) if single is not None and single.state == "running" else {}
        header: dict[str, Any] = {"title": path.name, "alarms": _alarms(entry), "problems": []}
        problems: list[str] = []
        try:
            runs = gather([path], problems, self._read)
            comparison = comparison_of(runs, None)
        except InvalidInput as error:
            share = progress(entry, live)
            return header | {"runs": [], "facts": facts(entry, live, []), "progress": share, "problems": [f"{error}."]}
        data = page_data(comparison, ROOM, self._page)
        rows = runs[0].rows if single is not None else []
        return data | header | {
            "facts": facts(entry, live, rows),
            "progress": progress(entry, live) if entry.state != "finished" else None,
            "problems": problems + unlike(comparison),
            "html": fragments(comparison, [run.config for run in runs]),
        }  # fmt: skip

    def _read(self, path: Path) -> Result:
        signature = _signature(path)
        if path not in self._results or self._results[path][0] != signature:
            self._results[path] = (signature, read_run(path))
        return self._results[path][1]

    def _page(self, run: Result, room: int) -> dict[str, Any]:
        assert run.directory is not None
        signature = (_signature(run.directory), room)
        if run.directory not in self._views or self._views[run.directory][0] != signature:
            self._views[run.directory] = (signature, run_page(run, room))
        return dict(self._views[run.directory][1])


def _signature(path: Path) -> Signature:
    """Sizes and times of a run's files, and whether a process writes to it."""
    stats: list[Any] = [is_locked(path)]
    for name in FILES:
        try:
            known = (path / name).stat()
            stats.append((known.st_size, known.st_mtime_ns))
        except OSError:
            stats.append(None)
    return tuple(stats)


def _alarms(entry: Entry) -> list[str]:
    """The alarms of a run, or of the runs of a group that are in progress or failed."""
    several = isinstance(entry, GroupEntry)
    told: list[str] = []
    for each in entry.runs:
        if several and each.state not in ("running", "failed"):
            continue
        name = f"{each.algorithm}, seed {each.seed}: " if several else ""
        told += [name + sentence for sentence in _run_alarms(each)]
    return told


def _run_alarms(entry: RunEntry) -> Iterable[str]:
    try:
        run = read_run(entry.path)
        records = read_orders(entry.path / "orders.bin")
    except InvalidInput:
        return [f"failed: {entry.stopped_by}"] if entry.state == "failed" else []
    live = read_live(entry.path)
    closed = parse_records(b"") if records is None else records
    try:
        flying = parse_records(base64.b64decode(live.get("orders", "")))
    except ValueError:
        flying = parse_records(b"")
    return alarms(run, np.concatenate([closed, flying]), live, entry)
