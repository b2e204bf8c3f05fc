"""How a run in progress is doing, in words: its state, when it will end, and what looks wrong."""

import time
from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from offbeat.results.index import Entry, RunEntry
from offbeat.results.metric import TargetMetric, amount, duration
from offbeat.results.orders import DISCARDED, IN_FLIGHT, RECEIVED, USED, Records
from offbeat.results.result import Result
from offbeat.results.rows import Row

SILENT = 3.0
"""A device is silent after this multiple of its median time per order; a buffer is starved likewise."""
LEAST_ORDERS = 2
"""Orders of a device, or versions of a run, before their usual time is known."""
NAMED = 3
"""Most silent devices that are named."""
QUIET_SECONDS = 30.0
"""Wall-clock seconds without a sign of life after which a running process is reported."""
RISE = 1.5
"""The loss diverges if it has risen three times in a row, to this multiple of its minimum."""


def alarms(run: Result, records: Records, live: dict[str, Any], entry: RunEntry) -> list[str]:
    """Sentences on what looks wrong with a run."""
    if entry.state == "failed":
        return [f"failed: {entry.stopped_by}"]
    told = _diverging(run.rows)
    if entry.state != "running":
        return told
    now = float(live.get("time", run.rows[-1]["time"]))
    quiet = time.time() - float(live.get("written", entry.changed))
    if quiet > QUIET_SECONDS:
        told.append(f"no sign of life for {duration(quiet)}: a long training step, or the process is stuck")
    return [*told, *_starved(run, records, now), *_silent(records, now)]


def _silent(records: Records, now: float) -> list[str]:
    kind = records["kind"]
    ended, flying = records[np.isin(kind, (USED, DISCARDED, RECEIVED))], records[kind == IN_FLIGHT]
    order = np.lexsort((ended["landed"] - ended["sent"], ended["device"]))
    device, lengths = ended["device"][order], (ended["landed"] - ended["sent"])[order]
    first, last = (np.searchsorted(device, flying["device"], side) for side in ("left", "right"))
    found = []
    for each, low, high in zip(flying, first.tolist(), last.tolist(), strict=True):
        typical = float((lengths[(low + high - 1) // 2] + lengths[(low + high) // 2]) / 2) if high > low else 0.0
        silent = now - float(each["sent"])
        if high - low >= LEAST_ORDERS and silent > SILENT * typical > 0:
            found.append((silent / typical, int(each["device"]), silent, typical))
    found.sort(reverse=True)
    told = [
        f"device {device} silent for {factor:.1f}x its usual time ({amount(silent)} s instead of {amount(typical)} s)"
        for factor, device, silent, typical in found[:NAMED]
    ]
    return told + ([f"{len(found) - NAMED} more devices are silent"] if len(found) > NAMED else [])


def _starved(run: Result, records: Records, now: float) -> list[str]:
    used = records[records["kind"] == USED]
    commits = np.unique(used["resolved"])
    if len(commits) <= LEAST_ORDERS:
        return []
    typical, since = float(np.median(np.diff(commits[-21:]))), now - float(commits[-1])
    if since <= SILENT * typical:
        return []
    usually = f"usually {amount(typical)} s between versions"
    size = None if run.experiment is None else getattr(run.experiment.algorithm.policy, "buffer", None)
    if isinstance(size, int) and (missing := size - int((records["kind"] == RECEIVED).sum())) > 0:
        return [f"buffer starved: waiting for {missing} uploads for {amount(since)} s ({usually})"]
    return [f"no new version for {amount(since)} s ({usually})"]


def _diverging(rows: Sequence[Row]) -> list[str]:
    losses = [row["loss"] for row in rows if "loss" in row]
    if losses and not isfinite(losses[-1]):
        return ["loss diverging: it is not finite"]
    if len(losses) < 4 or not all(isfinite(loss) for loss in losses):
        return []
    least = min(losses)
    if losses[-4] < losses[-3] < losses[-2] < losses[-1] and losses[-1] > RISE * least > 0:
        return [f"loss diverging: {losses[-1]:.3g} after a minimum of {least:.3g}"]
    return []


# The header ----------------------------------------------------------------------------------------------------------


def facts(entry: Entry, live: dict[str, Any], rows: Sequence[Row]) -> list[tuple[str, str]]:
    """What the header of the live view tells, by name."""
    share = progress(entry, live)
    told = [("state", entry.state if share is None or entry.state == "finished" else f"{entry.state}, {share:.0%}")]
    if isinstance(entry, RunEntry):
        clock = "time" if entry.real else "virtual time"
        told.append((clock, duration(max(entry.time, float(live.get("time", 0.0))))))
        told.append(("versions", f"{max(entry.versions, int(live.get('version', 0))):,}"))
        if "in_flight" in live:
            told.append(("orders in flight", f"{live['in_flight']:,}"))
        told.append(("target", _target(entry, rows)))
    else:
        done = sum(run.state == "finished" for run in entry.runs)
        told.append(("runs", f"{done} of {len(entry.runs)} finished"))
    wall = _wall(entry, live)
    if wall is not None:
        told.append(("wall-clock time", duration(wall)))
    if entry.state == "running" and wall and share and share > 0.01:
        told.append(("time left", f"about {duration(wall * (1 - share) / share)}"))
    if entry.state in ("interrupted", "failed"):
        told.append(("resume", resume_command(entry)))
    return told


def progress(entry: Entry, live: dict[str, Any]) -> float | None:
    """The completed share of a run or of all runs of a group."""
    if isinstance(entry, RunEntry):
        return max(entry.progress or 0.0, float(live["progress"])) if "progress" in live else entry.progress
    shares = [run.progress or 0.0 for run in entry.runs]
    return sum(shares) / len(shares) if shares else None


def _wall(entry: Entry, live: dict[str, Any]) -> float | None:
    if "wall_seconds" in live:
        return float(live["wall_seconds"])
    began = min((run.began for run in entry.runs if run.began), default=0.0)
    return max(0.0, time.time() - began) if began and entry.state == "running" else None


def _target(entry: RunEntry, rows: Sequence[Row]) -> str:
    reached = f"{entry.metric.goal(entry.target[0])} after {duration(entry.target[1])}" if entry.target else ""
    ahead = next_target(entry.listed, entry.metric, entry.target)
    if entry.state != "running" or ahead is None:
        return reached or "not reached"
    at = forecast(rows, entry.metric, ahead)
    coming = f"{entry.metric.goal(ahead)} {'not in sight' if at is None else f'at about {duration(at)} at this pace'}"
    return f"{reached}; {coming}" if reached else coming


def next_target(listed: Sequence[float], metric: TargetMetric, reached: tuple[float, float] | None) -> float | None:
    """The easiest of the listed targets that was not reached yet."""
    easy_first = sorted(listed, reverse=metric.direction == "min")
    return next((each for each in easy_first if reached is None or not metric.reached(reached[0], each)), None)


def forecast(rows: Sequence[Row], metric: TargetMetric, target: float) -> float | None:
    """When the metric would reach the target if it went on as in the last third of the evaluations; None if never.

    >>> rows = [{"time": 10.0 * k, "accuracy": 0.1 * k} for k in range(6)]
    >>> forecast(rows, TargetMetric(), 0.8)
    80.0
    """
    known = [(row["time"], row[metric.name]) for row in rows if isfinite(row.get(metric.name, float("nan")))]
    recent = known[-max(3, len(known) // 3) :]
    if len(recent) < 3:
        return None
    times, values = np.array(recent).T
    slope, start = np.polyfit(times, values, 1)
    if slope * (target - values[-1]) <= 0:
        return None
    return float(round((target - start) / slope, 6))


def resume_command(entry: Entry) -> str:
    """The command that continues a run; of a group it is the command that started it."""
    if isinstance(entry, RunEntry) and not entry.real:
        return f"offbeat run {entry.path / 'config.toml'} --out {entry.path} --resume"
    return "repeat the command that started it with --resume"
