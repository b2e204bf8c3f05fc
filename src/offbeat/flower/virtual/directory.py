"""The run directory of an app: the same files as of any run, but for checkpoints, since an app cannot be resumed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import tomli_w
from safetensors.numpy import save

from offbeat.core.errors import InvalidInput
from offbeat.experiment.tables import Table
from offbeat.flower.virtual.engine import MessageEngine
from offbeat.results.files import Log, replace_file, write_json
from offbeat.results.result import ORDER
from offbeat.results.rows import Row
from offbeat.results.timeline import Timeline
from offbeat.running.directory import FILES, check_may_write
from offbeat.running.lock import DirectoryLock, check_unlocked


class AppDirectory:
    """Takes a directory for one run, and writes what the run gives it."""

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self.path = path
        self._overwrite = overwrite
        self._lock = DirectoryLock(path)
        check_unlocked(path)
        self._check()

    def _check(self) -> None:
        if (self.path / "config.toml").is_file() and not self._overwrite:
            raise InvalidInput(f"{self.path} holds a run: choose another --out, or --overwrite to replace it")
        check_may_write(self.path, self._overwrite)

    def open(self, table: Table) -> None:
        """Begin: what was there is gone."""
        self._lock.take()
        self._check()  # again: now nobody else can change what is there
        for name in FILES:
            (self.path / name).unlink(missing_ok=True)
        self.write_config(table)
        self._metrics = Log(self.path / "metrics.jsonl")
        self._timeline = Timeline(self.path / "timeline.json")

    def write_config(self, table: Table) -> None:
        """Write the settings."""
        replace_file(self.path / "config.toml", tomli_w.dumps(table).encode())

    def write(self, row: Row, engine: MessageEngine) -> None:
        """Write a row of metrics, and the trainings that have ended."""
        self._metrics.write(json.dumps(row))
        self._metrics.flush()
        self._write_spans(engine)

    def _write_spans(self, engine: MessageEngine) -> None:
        for span in engine.accounts.take_spans():
            self._timeline.write(span)
        self._timeline.mark(engine.version, engine.now)

    def finish(
        self, engine: MessageEngine, summary: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[Any]] | None
    ) -> None:
        """Write the devices' accounts, the final model if there is one, and last the summary."""
        self._write_spans(engine)
        self._timeline.finish(engine.open_spans(), engine.now)
        if engine.accounts.per_device:
            replace_file(self.path / "devices.csv", engine.accounts.csv(engine.open_spans()).encode())
        if tensors:
            replace_file(self.path / "model.safetensors", save(dict(tensors), {ORDER: json.dumps(list(tensors))}))
        write_json(self.path / "summary.json", dict(summary))

    def close(self) -> None:
        """Let go of the logs and of the directory."""
        for name in ("_metrics", "_timeline"):
            if (log := getattr(self, name, None)) is not None:
                log.close()
        self._lock.release()
