"""Trackers: show a run in TensorBoard, MLflow, Weights & Biases or Prometheus while it is in progress.

A tracker gets the settings, every row of metrics on the axis of virtual time, the summary and the files of a run. Each
works in a thread of its own behind a queue: one that is slow or down loses its own data, and the run goes on.
"""

import json
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from queue import Full, Queue
from threading import Event, Lock, Thread
from typing import Any, Literal, Protocol, Self

import tomli_w

from offbeat.core.errors import InvalidInput
from offbeat.experiment.run_settings import TrackingTable
from offbeat.experiment.tables import flattened
from offbeat.results.files import replace_file
from offbeat.results.rows import Row

log = logging.getLogger("offbeat")

MODULES = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb", "prometheus": "prometheus_client"}
"""The package that each tracker needs; its extra has the tracker's name."""
FILES = ("config.toml", "metrics.jsonl", "summary.json", "devices.csv", "metrics.png")
"""Files of a run that are stored as artefacts."""
TRACKING_FILE = "tracking.json"
"""The identities of a run at its trackers, so that a resumed run continues there."""
IDENTITIES = Lock()
"""Held by the thread that reads or writes TRACKING_FILE."""
MOST_ROWS = 10_000
"""Rows that may wait for a tracker; more are dropped."""

Status = Literal["finished", "failed", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """What a tracker needs to know about a run."""

    name: str
    settings: Mapping[str, Any]
    """The tables of the experiment."""
    directory: Path | None = None
    live: Mapping[str, Callable[[], float]] = field(default_factory=dict)
    """Current values between evaluations, by name."""

    @property
    def group(self) -> str:
        """The comparison that the run belongs to; empty if it belongs to none."""
        above = None if self.directory is None else self.directory.absolute().parent
        return above.name if above is not None and (above / "config.toml").is_file() else ""

    def identity(self, tracker: str, new: Callable[[], str]) -> str:
        """The run's identity at a tracker: that of the directory, or a new one."""
        file = None if self.directory is None else self.directory / TRACKING_FILE
        if file is None:
            return new()
        with IDENTITIES:
            known: dict[str, str] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
            if tracker not in known:
                known[tracker] = new()
                replace_file(file, json.dumps(known).encode())
            return known[tracker]

    def files(self) -> list[Path]:
        """The files of the run that exist."""
        return [] if self.directory is None else [path for name in FILES if (path := self.directory / name).is_file()]


class Tracker(Protocol):
    """Receives the rows of a run, and its end."""

    def row(self, row: Row) -> None:
        """Show a row of metrics."""
        ...

    def end(self, status: Status, summary: Mapping[str, Any]) -> None:
        """Show the end of the run; the summary is empty unless it is finished."""
        ...


class TensorBoard(Tracker):
    """Event files in `tensorboard/` of the run directory. A step is a second of virtual time."""

    def __init__(self, run: TrackedRun, table: TrackingTable) -> None:
        from torch.utils.tensorboard import SummaryWriter

        assert run.directory is not None or isinstance(table.tensorboard, str)
        folder = Path(table.tensorboard) / run.name if isinstance(table.tensorboard, str) else None
        self._writer = SummaryWriter(str(folder or (run.directory or Path()) / "tensorboard"))
        self._text("config", tomli_w.dumps(run.settings))

    def _text(self, name: str, text: str) -> None:
        self._writer.add_text(name, "\n".join(f"    {line}" for line in text.splitlines()))

    def row(self, row: Row) -> None:
        for name, value in finite(row).items():
            # The wall time of an event is virtual too, so that the axis RELATIVE is exact.
            self._writer.add_scalar(name, value, round(row["time"]), walltime=row["time"])

    def end(self, status: Status, summary: Mapping[str, Any]) -> None:
        self._text("summary", json.dumps({"status": status, **summary}, indent=1))
        self._writer.close()


class MLflow(Tracker):
    """A run at an MLflow server or store; its experiment is the comparison, or `offbeat`."""

    STATUS: Mapping[Status, str] = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}

    def __init__(self, run: TrackedRun, table: TrackingTable) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._run = run
        self._client = MlflowClient(tracking_uri=table.mlflow)
        name = run.group or "offbeat"
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known is not None else self._client.create_experiment(name)
        self._id = run.identity(
            "mlflow", lambda: str(self._client.create_run(experiment, run_name=run.name).info.run_id)
        )
        self._client.set_terminated(self._id, status="RUNNING")
        parameters = [Param(key, str(value)[:6000]) for key, value in flattened(run.settings).items()]
        for start in range(0, len(parameters), 100):  # the protocol's limit
            self._client.log_batch(self._id, params=parameters[start : start + 100])

    def row(self, row: Row) -> None:
        from mlflow.entities import Metric

        step, stamp = round(row["time"]), round(1000 * row["time"])
        self._client.log_batch(
            self._id, metrics=[Metric(name, value, stamp, step) for name, value in finite(row).items()]
        )

    def end(self, status: Status, summary: Mapping[str, Any]) -> None:
        for file in self._run.files():
            self._client.log_artifact(self._id, str(file))
        self._client.set_terminated(self._id, status=self.STATUS[status])


class WeightsAndBiases(Tracker):
    """A run at Weights & Biases, with virtual time as its axis; a comparison is a group."""

    def __init__(self, run: TrackedRun, table: TrackingTable) -> None:
        import wandb

        self._run = run
        self._wandb = wandb.init(
            project=table.wandb,
            name=run.name,
            group=run.group or None,
            config=dict(run.settings),
            id=run.identity("wandb", lambda: secrets.token_hex(4)),
            resume="allow",
            dir=None if run.directory is None else str(run.directory),
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )
        self._wandb.define_metric("time")
        self._wandb.define_metric("*", step_metric="time")

    def row(self, row: Row) -> None:
        self._wandb.log(finite(row))

    def end(self, status: Status, summary: Mapping[str, Any]) -> None:
        self._wandb.summary.update(dict(summary))
        for file in self._run.files():
            self._wandb.save(str(file), base_path=str(file.parent), policy="now")
        self._wandb.finish(exit_code=1 if status == "failed" else 0)


class Prometheus(Tracker):
    """Gauges `offbeat_...` on an HTTP port, for the time of the run."""

    def __init__(self, run: TrackedRun, table: TrackingTable) -> None:
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        assert table.prometheus is not None
        self._registry, self._gauges, self._kind = CollectorRegistry(), dict[str, Any](), Gauge
        for name, value in run.live.items():
            self._gauge(name).set_function(value)
        self._live = frozenset(run.live)
        self._server, _ = start_http_server(table.prometheus, table.prometheus_host, self._registry)

    def _gauge(self, name: str) -> Any:
        if name not in self._gauges:
            self._gauges[name] = self._kind(f"offbeat_{name}", name.replace("_", " "), registry=self._registry)
        return self._gauges[name]

    def row(self, row: Row) -> None:
        for name, value in row.items():
            if name not in self._live:
                self._gauge(name).set(value)

    def end(self, status: Status, summary: Mapping[str, Any]) -> None:
        self._server.shutdown()
        self._server.server_close()


TRACKERS: dict[str, Callable[[TrackedRun, TrackingTable], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
    "prometheus": Prometheus,
}


def finite(row: Row) -> Row:
    """The values of a row that are finite: trackers draw no others."""
    return {name: float(value) for name, value in row.items() if isfinite(value)}


# Threads -------------------------------------------------------------------------------------------------------------


class TrackerThread:
    """Feeds one tracker from a queue. Its first error is logged and ends it; nothing it does delays the run."""

    def __init__(self, name: str, make: Callable[[], Tracker]) -> None:
        self._name = name
        self._make = make
        self._queue: Queue[Row | tuple[Status, Mapping[str, Any]]] = Queue(MOST_ROWS)
        self._failed = Event()
        self._dropped = 0
        self._thread = Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            tracker = self._make()
            while True:
                item = self._queue.get()
                if isinstance(item, tuple):
                    tracker.end(*item)
                    return
                tracker.row(item)
        except Exception as error:
            self._failed.set()
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            log.warning("offbeat: note: tracking.%s failed and is off for the rest of this run: %s", self._name, reason)

    def put(self, item: Row | tuple[Status, Mapping[str, Any]]) -> None:
        """Hand an item to the tracker; rows that do not fit into the queue are dropped."""
        if not self._failed.is_set():
            try:
                self._queue.put_nowait(item)
            except Full:
                self._dropped += 1

    def close(self, seconds: float) -> None:
        """Wait for the tracker to finish, but not longer than this."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            log.warning(
                "offbeat: note: tracking.%s has not finished within %g s (tracking.wait_seconds); it misses the end of "
                "this run",
                self._name,
                seconds,
            )
        elif self._dropped and not self._failed.is_set():
            log.warning(
                "offbeat: note: tracking.%s was too slow: %d of the rows are missing", self._name, self._dropped
            )


class Tracking:
    """All trackers of a run. Use it in a `with`: the trackers begin with `start` and end with the context."""

    def __init__(self, table: TrackingTable, run: TrackedRun) -> None:
        self._table = table
        self._run = run
        self._threads: list[TrackerThread] = []
        self._end: tuple[Status, Mapping[str, Any]] = ("failed", {})

    def __enter__(self) -> Self:
        return self

    def start(self) -> None:
        """Start the trackers, once the files of an earlier run are gone from the directory."""
        self._threads = [
            TrackerThread(name, partial(TRACKERS[name], self._run, self._table)) for name in self._table.chosen
        ]

    def row(self, row: Row) -> None:
        """Hand a row of metrics to all trackers."""
        for thread in self._threads:
            thread.put(dict(row))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Note the summary of a run that has finished."""
        self._end = ("finished", summary)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if getattr(error, "resumable", False):
            self._end = ("interrupted", {})
        for thread in self._threads:
            thread.put(self._end)
        for thread in self._threads:
            thread.close(self._table.wait_seconds)


def check_trackers(table: TrackingTable, *, directory: Path | None) -> None:
    """Raise InvalidInput if a tracker cannot work here: its package or its directory is missing."""
    for name in table.chosen:
        if find_spec(MODULES[name]) is None:
            raise InvalidInput(f"tracking.{name}: {MODULES[name]} is not installed: pip install 'offbeat[{name}]'")
    if table.tensorboard is True and directory is None:
        raise InvalidInput(
            "tracking.tensorboard = true writes to the directory of the run, which has none: give the run a directory, "
            'or name one for the event files (tracking.tensorboard = "DIR")'
        )
