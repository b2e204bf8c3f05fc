"""The index of a results directory: which runs and comparisons it holds, and the state of each.

Reads files only, those of runs in progress too: a file that is missing, half-written or damaged leaves out what it
would tell and never raises. `read_index` walks a directory; `read_entry` reads one place again.
"""

import json
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from offbeat.results.lock import is_locked
from offbeat.results.metric import TargetMetric, time_to
from offbeat.results.rows import RUN_COLUMNS, Row

State = Literal["running", "failed", "interrupted", "finished"]
"""running: a process writes to the directory now. failed: it left an error.txt. finished: it has its results."""
Kind = Literal["comparison", "sweep", "tuning", "recommendation"]
CLOSING_FILES: dict[Kind, tuple[str, ...]] = {
    "comparison": ("comparison.csv",),
    "sweep": ("comparison.csv", "sweep.png"),
    "tuning": ("tuning.csv",),
    "recommendation": ("recommendation.md",),
}
"""The files that a group of runs writes at its end."""


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """One run, as far as its files tell."""

    path: Path
    state: State
    algorithm: str
    """The label of the run in tables; empty if unknown."""
    seed: int | None
    data: str
    """The name of the data set; empty if unknown."""
    real: bool
    """Whether the run is on real devices, with wall-clock time."""
    time: float
    """Time of the last evaluation, in seconds of the run's clock."""
    versions: int
    progress: float | None
    """The completed share (0 to 1) by the time, versions or updates that end the run; None if unknown."""
    metric: TargetMetric
    value: float | None
    """The target metric at the last evaluation."""
    target: tuple[float, float] | None
    """The best of the listed targets that was reached, and the time to it."""
    listed: tuple[float, ...]
    """The targets that the experiment lists."""
    stopped_by: str
    """Why a finished run ended, or the last line of a failed run's traceback."""
    began: float
    """When the run began, in seconds since the epoch."""
    changed: float
    """When the run last wrote a row of metrics, in seconds since the epoch."""

    @property
    def runs(self) -> "tuple[RunEntry, ...]":
        """The run itself, so that runs and groups can be treated alike."""
        return (self,)


@dataclass(frozen=True, kw_only=True)
class GroupEntry:
    """A comparison, a sweep, a tuning or a recommendation, with its runs."""

    path: Path
    kind: Kind
    state: State
    runs: tuple[RunEntry, ...]

    @property
    def algorithms(self) -> list[str]:
        """The labels of the runs, each once."""
        return list(dict.fromkeys(run.algorithm for run in self.runs))

    @property
    def changed(self) -> float:
        """When a run of the group last wrote a row of metrics, in seconds since the epoch."""
        return max((run.changed for run in self.runs), default=0.0)


Entry = RunEntry | GroupEntry


def read_index(root: Path) -> list[Entry]:
    """All runs and groups under a directory, running ones first, then the latest first."""
    return sorted(_entries(root), key=lambda entry: (entry.state != "running", -entry.changed, str(entry.path)))


def read_entry(path: Path) -> Entry | None:
    """The run or group in a directory; None if it holds neither."""
    if (path / "metrics.jsonl").is_file() or (path / "error.txt").is_file():
        return _run(path)
    runs = tuple(_run(each) for each in _run_directories(path))
    if not (path / "config.toml").is_file() or not (runs or is_locked(path)):
        return None
    kind = _kind(path)
    return GroupEntry(path=path, kind=kind, state=_group_state(path, kind, runs), runs=runs)


def _entries(path: Path) -> Iterator[Entry]:
    entry = read_entry(path)
    if entry is not None:
        yield entry
        return
    for each in _folders(path):
        yield from _entries(each)


def _folders(path: Path) -> list[Path]:
    """The directories in a directory, without hidden ones and links; empty if it cannot be read."""
    try:
        with os.scandir(path) as found:
            return sorted(
                Path(each.path)
                for each in found
                if each.is_dir(follow_symlinks=False) and not each.name.startswith(".")
            )
    except OSError:
        return []


def _run_directories(path: Path) -> list[Path]:
    """The directories of a group's runs: in it, or in its `runs` (the cache of a search)."""
    candidates = [each for folder in (path, path / "runs") for each in _folders(folder)]
    return [each for each in candidates if (each / "metrics.jsonl").is_file() or (each / "error.txt").is_file()]


def _kind(path: Path) -> Kind:
    if (path / "studies.db").is_file():
        return "tuning"
    if (path / "runs").is_dir():
        return "recommendation"
    return "sweep" if (path / "sweep.png").is_file() else "comparison"


def _group_state(path: Path, kind: Kind, runs: tuple[RunEntry, ...]) -> State:
    if is_locked(path):
        return "running"
    if any(run.state == "running" for run in runs):  # its process is gone, a worker still writes its checkpoint
        return "running"
    if all((path / name).is_file() for name in CLOSING_FILES[kind]):
        return "finished"
    return "failed" if runs and all(run.state == "failed" for run in runs) else "interrupted"


# One run -------------------------------------------------------------------------------------------------------------


def _run(path: Path) -> RunEntry:
    table, summary, rows = _toml(path / "config.toml"), _json(path / "summary.json"), read_rows(path / "metrics.jsonl")
    last = rows[-1] if rows else {}
    algorithm, evaluation = _table(table, "algorithm"), _table(table, "evaluation")
    metric = _metric(summary, evaluation, last)
    seed = summary.get("seed", table.get("seed"))
    return RunEntry(
        path=path,
        state=_state(path),
        algorithm=str(summary.get("label") or algorithm.get("label") or algorithm.get("name") or ""),
        seed=seed if isinstance(seed, int) else None,
        data=str(_table(table, "data").get("name", "")),
        real=(path / "record.jsonl").is_file(),
        time=float(last.get("time", 0.0)),
        versions=int(last.get("version", 0)),
        progress=1.0 if summary else _progress(_table(table, "stop"), last),
        metric=metric,
        value=last.get(metric.name),
        target=_target(rows, evaluation, metric),
        listed=_listed(evaluation, metric),
        stopped_by=str(summary.get("stopped_by") or _last_line(path / "error.txt")),
        began=_changed(path / "config.toml"),
        changed=_changed(path / "metrics.jsonl") or _changed(path / "error.txt"),
    )


def _state(path: Path) -> State:
    if is_locked(path):
        return "running"
    if (path / "summary.json").is_file():
        return "finished"
    return "failed" if (path / "error.txt").is_file() else "interrupted"


def _metric(summary: dict[str, Any], evaluation: dict[str, Any], last: Row) -> TargetMetric:
    if summary:
        return TargetMetric.of(summary)
    measured = [name for name in last if name not in RUN_COLUMNS]
    name = str(evaluation.get("target_metric") or next(iter(measured), "accuracy"))
    return TargetMetric.named(name)


def _progress(stop: dict[str, Any], last: Row) -> float | None:
    conditions = (("time", "time"), ("versions", "version"), ("updates", "updates_used"))
    shares = [last.get(column, 0.0) / stop[key] for key, column in conditions if _number(stop.get(key))]
    return min(1.0, max(shares)) if shares else None


def _listed(evaluation: dict[str, Any], metric: TargetMetric) -> tuple[float, ...]:
    """The targets that the experiment lists, or the metric's own."""
    listed = evaluation.get("targets")
    return tuple(metric.targets([each for each in listed if _number(each)] if isinstance(listed, list) else None))


def _target(rows: list[Row], evaluation: dict[str, Any], metric: TargetMetric) -> tuple[float, float] | None:
    measured = [row for row in rows if metric.name in row]
    for target in metric.best_first(_listed(evaluation, metric)):
        reached = time_to(measured, target, metric)
        if reached is not None:
            return float(target), reached
    return None


# Files that may be missing or damaged --------------------------------------------------------------------------------


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def read_rows(path: Path) -> list[Row]:
    """The whole lines of a metrics file; the last may be incomplete while a run writes it."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    rows = []
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and _number(row.get("time")):
            rows.append({name: value for name, value in row.items() if _number(value)})
    return rows


def _last_line(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
    return text.rpartition("\n")[2].strip()


def _table(table: dict[str, Any], key: str) -> dict[str, Any]:
    value = table.get(key)
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
