"""The run directory: checks that it may be written to, writes the files of a run, and resumes from them.

config.toml           the experiment with all settings
metrics.jsonl         one line per evaluation
timeline.json         what every device did, over time
checkpoint/           the state of an unfinished run
record.jsonl          events and effects of a real run (`core.record`)
devices.csv           totals per device, unless the fleet is very large
model.safetensors     the final parameters by name, if `execution.save_model` is set
summary.json          written last: its presence means that the run is finished
tracking.json         identities of the run at its trackers
error.txt             traceback of a crashed run of a comparison
"""

import hashlib
import json
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
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
from offbeat.results.checkpoint import CheckpointWriter, load_checkpoint
from offbeat.results.files import Log, replace_file, write_json
from offbeat.results.lock import LOCK_FILE, DirectoryLock, check_unlocked
from offbeat.results.result import ORDER, Result, read_run, read_tensors, tensors_of
from offbeat.results.rows import Row, Span
from offbeat.results.timeline import Timeline
from offbeat.results.tracking import TRACKING_FILE
from offbeat.running.driver import Driver

LOGS = {"metrics": "metrics.jsonl", "timeline": "timeline.json"}
ACCOUNTS = ("wall_seconds", "in_flight_seconds", "processors")
WITHOUT_EFFECT = ("execution", "tracking")
"""Tables that do not determine the results of a run."""
ERROR_FILE = "error.txt"
FILES = (
    "config.toml",
    "metrics.jsonl",
    "timeline.json",
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


def check_same_experiment(path: Path, table: Mapping[str, Any]) -> None:
    """Raise OutputRefused if a directory holds a run of another experiment, apart from tables without effect."""
    try:
        theirs = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path / 'config.toml'} cannot be read: {error}") from None
    sections = (section for section in theirs.keys() | table.keys() if section not in WITHOUT_EFFECT)
    different = [section for section in sorted(sections) if theirs.get(section) != table.get(section)]
    if different:
        raise OutputRefused(
            f"{path} holds a run of another experiment (different: {', '.join(different)})", "out", "overwrite"
        )


def check_length(path: Path, position: int) -> None:
    """Raise OutputRefused if a log is shorter than at the time of the checkpoint."""
    if not path.is_file() or path.stat().st_size < position:
        raise OutputRefused(f"{path} has lost lines since the checkpoint of the run", "overwrite")


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

    __slots__ = ("_driver", "_lock", "_metrics", "_overwrite", "_resume", "_timeline", "_writer", "path", "table")

    def __init__(self, path: Path, table: Mapping[str, Any], *, overwrite: bool = False, resume: bool = False) -> None:
        self.path = path
        self.table = table
        self._overwrite = overwrite
        self._resume = resume
        self._lock = DirectoryLock(path)
        check_unlocked(path)
        self._check()
        self._metrics: Log | None = None
        self._timeline: Timeline | None = None
        self._driver: Driver | None = None
        self._writer = CheckpointWriter(self._checkpoint, self.fingerprint)

    @property
    def _resuming(self) -> bool:
        return self._resume and (self.path / "config.toml").is_file()

    def _check(self) -> None:
        """Raise OutputRefused if the directory must not be written to."""
        if (self.path / "config.toml").is_file() and (self._resume or not self._overwrite):
            check_same_experiment(self.path, self.table)
        if not self._resuming:
            check_may_write(self.path, self._overwrite)

    @property
    def fingerprint(self) -> str:
        """A hash of the settings that determine the results."""
        table = {key: value for key, value in self.table.items() if key not in WITHOUT_EFFECT}
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint" / "latest.safetensors"

    def finished(self) -> Result | None:
        """The results, if a run that is already finished is resumed; else None."""
        if not self._resuming or not (self.path / "summary.json").is_file():
            return None
        return read_finished(self.path)

    def open(self, driver: Driver) -> Beginning:
        """Open the files for a new run, or restore the driver from the last checkpoint."""
        self._lock.take()
        self._check()  # again, now that no other process can write
        if self.finished() is not None:
            raise InvalidInput(f"another process has just finished the run in {self.path}")
        self._driver = driver
        if self._resuming and self._checkpoint.is_file():
            saved = load_checkpoint(self._checkpoint, self.fingerprint, driver.snapshot_types)
            for name in ("metrics", "timeline"):
                check_length(self.path / LOGS[name], saved[name])
            driver.restore(saved["driver"])
            self._metrics = Log(self.path / "metrics.jsonl", saved["metrics"])
            self._timeline = Timeline(self.path / "timeline.json", saved["timeline"], saved["timeline_state"])
            (self.path / ERROR_FILE).unlink(missing_ok=True)
            return Beginning(rows=self._rows(), **{name: saved[name] for name in ACCOUNTS})
        clear_run(self.path)
        replace_file(self.path / "config.toml", tomli_w.dumps(self.table).encode())
        self._metrics = Log(self.path / "metrics.jsonl")
        self._timeline = Timeline(self.path / "timeline.json")
        return Beginning()

    def _rows(self) -> list[Row]:
        with (self.path / "metrics.jsonl").open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    def write(self, row: Row | None, spans: list[Span]) -> None:
        """Write a row of metrics, if there is one, and the orders that ended."""
        assert self._metrics is not None and self._timeline is not None
        if row is not None:
            self._metrics.write(json.dumps(row))
            self._metrics.flush()
        for span in spans:
            self._timeline.write(span)
        assert self._driver is not None
        self._timeline.mark(self._driver.session.version, self._driver.now)

    def write_devices(self, driver: Driver) -> None:
        """Write the totals per device, unless the fleet is very large."""
        if driver.accounts.per_device:
            replace_file(self.path / "devices.csv", driver.accounts.csv(driver.open_spans()).encode())

    def checkpoint(
        self, driver: Driver, wall_seconds: float, in_flight_seconds: float, processors: Collection[str] = ()
    ) -> None:
        """Save the state of the run, in place of the previous checkpoint."""
        assert self._metrics is not None and self._timeline is not None
        state = {
            "driver": driver.snapshot(),
            "metrics": self._metrics.position,
            "timeline": self._timeline.position,
            "timeline_state": self._timeline.state,
            "wall_seconds": wall_seconds,
            "in_flight_seconds": in_flight_seconds,
            "processors": sorted(processors),
        }
        self._writer.save(state)

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint is being written; another one would have to wait."""
        return self._writer.busy

    def close(self) -> None:
        """Close the logs and release the directory."""
        try:
            self._writer.wait()
        finally:
            for log in (self._metrics, self._timeline):
                if log is not None:
                    log.close()
            self._lock.release()

    def finish(self, parameters: Vector | None, layout: Layout, summary: dict[str, Any]) -> None:
        """Write the model and the summary, and remove the checkpoint."""
        assert self._metrics is not None and self._timeline is not None
        assert self._driver is not None
        self._writer.wait()
        self._timeline.finish(self._driver.open_spans(), self._driver.now)
        if parameters is not None:
            tensors = tensors_of(parameters, layout)
            replace_file(self.path / "model.safetensors", save(tensors, {ORDER: json.dumps(list(tensors))}))
        write_json(self.path / "summary.json", summary)
        rmtree(self.path / "checkpoint", ignore_errors=True)
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
