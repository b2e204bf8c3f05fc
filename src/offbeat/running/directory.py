"""The run directory: checks that it may be written to, writes the files of a run, and resumes from them.

config.toml           the experiment with all settings
metrics.jsonl         one line per evaluation
timeline.json         what every device did, over time, for Perfetto
orders.bin            what became of every order (`results.orders`), for reports
fleet.json            what is known of the devices in advance: samples, speeds, labels
wall_seconds.txt      wall-clock seconds of the run at each line of metrics.jsonl
live.json             state and orders in flight of a run in progress, replaced every second
checkpoint/           the last state that was saved, from which the run continues or is extended
record.jsonl          events and effects of a real run (`core.record`)
devices.csv           totals per device, unless the fleet is very large
model.safetensors     the final parameters by name, if `execution.save_model` is set
summary.json          written last: its presence means that the run is finished
tracking.json         identities of the run at its trackers
error.txt             traceback of a crashed run of a comparison
"""

import base64
import hashlib
import itertools
import json
import logging
import time
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from shutil import rmtree
from typing import Any

import msgspec
import numpy as np
import tomli_w
from safetensors.numpy import save

from offbeat.core.errors import InvalidInput, OutputRefused
from offbeat.core.parameters import Layout, Vector
from offbeat.core.record import RecordLine
from offbeat.experiment.run_settings import EVALUATIONS_PER_RUN
from offbeat.experiment.tables import flattened
from offbeat.results.checkpoint import CheckpointWriter, load_checkpoint
from offbeat.results.files import Log, publish_file, replace_file, write_json
from offbeat.results.fleet_facts import FleetFacts
from offbeat.results.lock import LOCK_FILE, DirectoryLock, check_unlocked
from offbeat.results.orders import IN_FLIGHT, RECEIVED, Closed, OrderLog, records
from offbeat.results.result import ORDER, Result, read_run, read_tensors, tensors_of
from offbeat.results.rows import Row, Span
from offbeat.results.timeline import Timeline
from offbeat.results.tracking import TRACKING_FILE
from offbeat.running.device_metrics import DeviceMetrics
from offbeat.running.driver import Driver, progress_of

log = logging.getLogger("offbeat")

RAISABLE = frozenset({"time", "versions", "updates"})
"""Keys of `[stop]` that a run may raise when it is resumed."""
EVALUATION_KEYS = ("every_seconds", "every_versions")
LOGS = {"metrics": "metrics.jsonl", "timeline": "timeline.json"}
LIVE_SECONDS = 1.0
"""Seconds between two versions of live.json, and the longest delay of a record in orders.bin."""
MOST_LIVE = 5_000
"""Most orders in flight in live.json."""
ACCOUNTS = ("wall_seconds", "in_flight_seconds", "processors")
WITHOUT_EFFECT = ("execution", "tracking")
"""Tables that do not determine the results of a run."""
ERROR_FILE = "error.txt"
FILES = (
    "config.toml",
    "metrics.jsonl",
    "timeline.json",
    "orders.bin",
    "fleet.json",
    "wall_seconds.txt",
    "live.json",
    "record.jsonl",
    "devices.csv",
    "model.safetensors",
    "summary.json",
    TRACKING_FILE,
    ERROR_FILE,
)


def read_finished(path: Path) -> Result:
    """Read the results of a finished run."""
    if not (path / "summary.json").is_file():
        raise InvalidInput(f"{path} does not hold a finished run: it has no summary.json")
    return read_run(path)


def read_model(path: Path, layout: Layout) -> Vector | None:
    """Read the final parameters of a run; None if they were not saved."""
    tensors = read_tensors(path)
    if tensors is None:
        return None
    try:
        return np.concatenate([tensors[entry.name].reshape(entry.size) for entry in layout.entries])
    except (KeyError, ValueError) as error:
        raise InvalidInput(f"{path} does not hold the parameters of this model: {error}") from None


def clear_run(path: Path) -> None:
    """Remove the files of a run that is overwritten, and no others."""
    for name in FILES:
        (path / name).unlink(missing_ok=True)
    for name in ("checkpoint", "tensorboard"):
        rmtree(path / name, ignore_errors=True)


def check_may_write(path: Path, overwrite: bool) -> None:
    """Raise OutputRefused if a directory is not empty, unless it holds a run that may be overwritten."""
    if not path.exists() or (path.is_dir() and not any(each.name != LOCK_FILE for each in path.iterdir())):
        return
    if not (path / "config.toml").is_file():
        raise OutputRefused(f"{path} exists and is not a run directory", "out")
    if not overwrite:
        raise OutputRefused(f"{path} already holds a run", "resume", "overwrite")


def check_single_run(path: Path) -> None:
    """Raise OutputRefused if a directory holds the runs of a comparison or a search, which one run would ruin."""
    if path.is_dir() and not (path / "metrics.jsonl").exists() and any(path.glob("*/config.toml")):
        raise OutputRefused(f"{path} holds several runs (a comparison, sweep or search), not a single one", "out")


def check_same_experiment(
    path: Path, theirs: Mapping[str, Any], table: Mapping[str, Any], *, resume: bool = False, extends: bool = True
) -> None:
    """Raise OutputRefused if a directory holds runs of another experiment (`theirs`); tables without effect may differ.

    If it `extends`, a run that is resumed may have a higher `stop.time`, `stop.versions` or `stop.updates` than before.
    """
    raised = (
        extends
        and theirs.get("stop") != table.get("stop")
        and _is_raised(theirs.get("stop", {}), table.get("stop", {}))
    )
    left_out = {*WITHOUT_EFFECT} | ({"stop"} if raised else set())
    if schedule_of(theirs) == schedule_of(table):
        left_out |= {f"evaluation.{key}" for key in EVALUATION_KEYS}
    different = differences(theirs, table, left_out)
    if different:
        raise OutputRefused(f"{path} holds a run of another experiment (different: {different})", "out", "overwrite")
    if raised and not resume:
        change = differences(theirs, table, left_out - {"stop"})
        raise OutputRefused(f"{path} already holds a run with another end ({change})", "resume", "overwrite")


def read_config(path: Path) -> dict[str, Any]:
    """Read the tables of the experiment in a run directory."""
    try:
        return tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path / 'config.toml'} cannot be read: {error}") from None


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any], left_out: Collection[str] = ()) -> str:
    """Name the settings in which two experiments differ, at most three, with both values; empty if none do.

    >>> differences({"seed": 0, "fleet": {"ratio": 5.0}}, {"seed": 0, "fleet": {"ratio": 110.0}})
    'fleet.ratio, 5.0 there and 110.0 here'
    """
    there, here = flattened(theirs), flattened(ours)
    keys = [
        key
        for key in sorted(there.keys() | here.keys())
        if there.get(key) != here.get(key) and key not in left_out and key.partition(".")[0] not in left_out
    ]
    told = [f"{key}, {_value(there, key)} there and {_value(here, key)} here" for key in keys[:3]]
    return "; ".join(told + ([f"and {len(keys) - 3} more"] if len(keys) > 3 else []))


def _value(flat: Mapping[str, Any], key: str) -> str:
    text = str(flat.get(key, "not given"))
    return text if len(text) <= 40 else f"{text[:37]}..."


def _is_raised(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Whether a run that ended, or would end, under their stop goes on under ours."""
    later = all(theirs[key] <= ours.get(key, inf) for key in RAISABLE if key in theirs)
    return later and all(theirs.get(key) == ours.get(key) for key in {*theirs, *ours} - {*RAISABLE & theirs.keys()})


def schedule_of(table: Mapping[str, Any]) -> dict[str, float]:
    """The interval between evaluations, with the default filled in."""
    given = {key: value for key, value in table.get("evaluation", {}).items() if key in EVALUATION_KEYS}
    time = table.get("stop", {}).get("time")
    return given or ({"every_versions": 10} if time is None else {"every_seconds": time / EVALUATIONS_PER_RUN})


def check_length(path: Path, position: int) -> None:
    """Raise OutputRefused if a log is shorter than at the time of the checkpoint."""
    if not path.is_file() or path.stat().st_size < position:
        raise OutputRefused(f"{path} has lost lines since the checkpoint of the run", "overwrite")


def _length_of_lines(path: Path, count: int) -> int:
    """Length in bytes of the first lines of a file; 0 if there is no file."""
    if not path.is_file():
        return 0
    with path.open("rb") as lines:
        return sum(len(line) for line in itertools.islice(lines, count))


@dataclass(kw_only=True)
class Beginning:
    """What a run starts with: nothing, or the results up to its last checkpoint."""

    rows: list[Row] = field(default_factory=list)
    wall_seconds: float = 0.0
    """Wall-clock seconds of the run so far."""
    in_flight_seconds: float = 0.0
    """Seconds in flight, summed over all orders."""
    processors: Collection[str] = ()
    """The kinds of processors that have computed the run."""


class RunDirectory:
    """Opens a directory for a new or resumed run of an experiment (its tables), and writes the files of the run."""

    __slots__ = (
        "_driver",
        "_live_due",
        "_lock",
        "_metrics",
        "_orders",
        "_overwrite",
        "_resume",
        "_timeline",
        "_wall",
        "_writer",
        "path",
        "table",
    )

    def __init__(self, path: Path, table: Mapping[str, Any], *, overwrite: bool = False, resume: bool = False) -> None:
        self.path = path
        self.table = table
        self._overwrite = overwrite
        self._resume = resume
        if overwrite and resume:
            raise InvalidInput("a run is either resumed or overwritten: choose one of the two")
        self._lock = DirectoryLock(path)
        check_unlocked(path)
        self._check()
        self._metrics: Log | None = None
        self._timeline: Timeline | None = None
        self._orders: OrderLog | None = None
        self._wall: Log | None = None
        self._live_due = 0.0
        self._driver: Driver | None = None
        self._writer = CheckpointWriter(self._checkpoint, self.fingerprint)

    @property
    def _resuming(self) -> bool:
        return self._resume and (self.path / "config.toml").is_file()

    def _check(self) -> None:
        """Raise OutputRefused if the directory must not be written to."""
        check_single_run(self.path)
        if (self.path / "config.toml").is_file() and (self._resume or not self._overwrite):
            check_same_experiment(self.path, read_config(self.path), self.table, resume=self._resume)
        if not self._resuming:
            check_may_write(self.path, self._overwrite)
        elif self._extends and (self.path / "record.jsonl").is_file() and not self._checkpoint.is_file():
            raise OutputRefused(f"{self.path} holds a finished real run without a checkpoint to extend it from", "out")

    @property
    def _extends(self) -> bool:
        """Whether the run is resumed with a later end than it has, or had."""
        return self._resuming and read_config(self.path).get("stop") != self.table.get("stop")

    @property
    def fingerprint(self) -> str:
        """A hash of the settings that determine the results, except for the end of the run."""
        table = {key: value for key, value in self.table.items() if key not in (*WITHOUT_EFFECT, "stop")}
        evaluation = {key: value for key, value in table.get("evaluation", {}).items() if key not in EVALUATION_KEYS}
        table["evaluation"] = evaluation | schedule_of(self.table)
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint" / "latest.safetensors"

    def finished(self) -> Result | None:
        """The results, if a run that is already finished is resumed; else None."""
        return read_finished(self.path) if self.is_finished else None

    @property
    def is_finished(self) -> bool:
        """Whether the run is resumed, but needs nothing more: it is finished and its end is not raised."""
        return self._resuming and (self.path / "summary.json").is_file() and not self._extends

    def open(self, driver: Driver) -> Beginning:
        """Open the files for a new run, or restore the driver from the last checkpoint."""
        self._lock.take()
        self._check()  # again, now that no other process can write
        if self.is_finished:
            raise InvalidInput(f"another process has just finished the run in {self.path}")
        self._driver = driver
        saved = self._saved(driver)
        if saved is not None:
            try:
                for name in ("metrics", "timeline"):
                    check_length(self.path / LOGS[name], saved[name])
                driver.restore(saved["driver"])
                _ = saved["timeline_state"], [saved[name] for name in ACCOUNTS]
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise OutputRefused(
                    f"the run cannot be resumed, {self._checkpoint} does not hold its state ({type(error).__name__})",
                    "overwrite",
                ) from None
            (self.path / "summary.json").unlink(missing_ok=True)  # first: a crash leaves an unfinished run
            replace_file(self.path / "config.toml", tomli_w.dumps(self.table).encode())
            self._metrics = Log(self.path / "metrics.jsonl", saved["metrics"])
            self._timeline = Timeline(self.path / "timeline.json", saved["timeline"], saved["timeline_state"])
            self._orders = OrderLog(self.path / "orders.bin", saved.get("orders", 0))  # absent in version 0.1
            (self.path / ERROR_FILE).unlink(missing_ok=True)
            rows = self._rows()
            self._wall = Log(
                self.path / "wall_seconds.txt", _length_of_lines(self.path / "wall_seconds.txt", len(rows))
            )
            return Beginning(rows=rows, **{name: saved[name] for name in ACCOUNTS})
        clear_run(self.path)
        replace_file(self.path / "config.toml", tomli_w.dumps(self.table).encode())
        self._metrics = Log(self.path / "metrics.jsonl")
        self._timeline = Timeline(self.path / "timeline.json")
        self._orders = OrderLog(self.path / "orders.bin")
        self._wall = Log(self.path / "wall_seconds.txt")
        return Beginning()

    def _saved(self, driver: Driver) -> dict[str, Any] | None:
        """The checkpoint to continue from; None if there is none, or if a longer run would have gone another way."""
        if not self._resuming:
            return None
        if self._extends and schedule_of(read_config(self.path)) != schedule_of(self.table):
            why = "evaluations are at other times, because evaluation.every_seconds is not set"
        elif not self._checkpoint.is_file():
            why = "it left no checkpoint"
        else:
            saved: dict[str, Any] = load_checkpoint(self._checkpoint, self.fingerprint, driver.snapshot_types)
            if not self._extends or not (saved["horizon_read"] or saved["ended"]):
                return saved
            why = "its last checkpoint is of its end" if saved["ended"] else "its algorithm plans up to its end"
        if self._extends:
            log.warning("offbeat: note: %s is computed again from the start: %s", self.path, why)
        return None

    def _rows(self) -> list[Row]:
        with (self.path / "metrics.jsonl").open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    def write(self, row: Row | None, spans: Iterable[Span], closed: Sequence[Closed], wall_seconds: float) -> None:
        """Write a row of metrics, if there is one, the orders that ended and those that were resolved or lost."""
        driver = self._driver
        assert self._metrics is not None and self._timeline is not None and self._orders is not None
        assert self._wall is not None and driver is not None
        if row is not None:
            self._wall.write(f"{wall_seconds:.3f}")  # before the row, so that every row has its line
            self._wall.flush()
            self._metrics.write(json.dumps(row))
            self._metrics.flush()
        for span in spans:
            self._timeline.write(span)
        self._timeline.mark(driver.session.version, driver.now)
        if closed:
            self._orders.write(closed, driver.now)
        if wall_seconds >= self._live_due:
            self._live_due = wall_seconds + LIVE_SECONDS
            self._show(driver, wall_seconds)

    def _show(self, driver: Driver, wall_seconds: float) -> None:
        """Write what a live view needs of the run in progress."""
        assert self._orders is not None
        self._orders.flush()
        in_flight = driver.open_spans()
        orders = records(driver.accounts.received[:MOST_LIVE], RECEIVED) + records(in_flight[:MOST_LIVE], IN_FLIGHT)
        live = {
            "time": driver.now,
            "version": driver.session.version,
            "wall_seconds": wall_seconds,
            "written": time.time(),
            "progress": progress_of(driver),
            "in_flight": len(in_flight),
            "orders": base64.b64encode(orders).decode(),
        }
        publish_file(self.path / "live.json", json.dumps(live).encode())

    def write_fleet(self, facts: FleetFacts) -> None:
        """Write what is known of the devices in advance."""
        publish_file(self.path / "fleet.json", facts.encode())

    def write_devices(self, driver: Driver, measured: DeviceMetrics | None = None) -> None:
        """Write the totals per device, and its metrics if they were measured, unless the fleet is very large."""
        if driver.accounts.per_device:
            columns = {**driver.session.influence_columns, **({} if measured is None else measured.columns)}
            replace_file(
                self.path / "devices.csv", driver.accounts.csv(driver.open_spans(), driver.now, columns).encode()
            )

    def checkpoint(
        self, driver: Driver, wall_seconds: float, in_flight_seconds: float, processors: Collection[str] = ()
    ) -> None:
        """Save the state of the run, in place of the previous checkpoint."""
        assert self._metrics is not None and self._timeline is not None and self._orders is not None
        state = {
            "driver": driver.snapshot(),
            "metrics": self._metrics.position,
            "timeline": self._timeline.position,
            "timeline_state": self._timeline.state,
            "orders": self._orders.position,
            "wall_seconds": wall_seconds,
            "in_flight_seconds": in_flight_seconds,
            "processors": sorted(processors),
            "horizon_read": driver.session.horizon_read,
            "ended": driver.reason is not None,
        }
        self._writer.save(state)

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint is being written; another one would have to wait."""
        return self._writer.busy

    def wait_until_saved(self) -> None:
        """Wait until the last checkpoint is on disk."""
        self._writer.wait()

    def close(self) -> None:
        """Close the logs and release the directory."""
        try:
            self._writer.wait()
        finally:
            for log in (self._metrics, self._timeline, self._orders, self._wall):
                if log is not None:
                    log.close()
            self._lock.release()

    def finish(self, parameters: Vector | None, layout: Layout, summary: dict[str, Any]) -> None:
        """Write the model and the summary. The last checkpoint stays: a longer run can continue from it."""
        assert self._timeline is not None and self._orders is not None and self._driver is not None
        self._writer.wait()
        driver = self._driver
        self._timeline.finish(driver.open_spans(), driver.now, driver.accounts.names)
        self._orders.finish(self._driver.accounts.received, self._driver.open_spans())
        self._orders.flush()
        (self.path / "live.json").unlink(missing_ok=True)
        if parameters is not None:
            tensors = tensors_of(parameters, layout)
            replace_file(self.path / "model.safetensors", save(tensors, {ORDER: json.dumps(list(tensors))}))
        write_json(self.path / "summary.json", summary)
        self.close()


class RunRecord:
    """Writes `record.jsonl`. Opened when the run starts or resumes, after its directory was cleared."""

    __slots__ = ("_log", "_path")

    def __init__(self, path: Path | None) -> None:
        """Prepare the record at a path; without a path nothing is written."""
        self._path = path
        self._log: Log | None = None

    def open(self, position: int = 0) -> None:
        """Open the file and truncate it to this position."""
        self._log = None if self._path is None else Log(self._path, position)

    def write(self, line: RecordLine) -> None:
        """Append a line."""
        if self._path is None:
            return
        assert self._log is not None
        self._log.write(msgspec.json.encode(line).decode())

    @property
    def position(self) -> int:
        """Bytes written so far."""
        return 0 if self._log is None else self._log.position

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()
