"""Runs a Flower app on a virtual clock: from the app's directory to a run directory and a result."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from logging import ERROR, WARNING
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tomli_w
from flwr.app import ArrayRecord, Context, RecordDict
from safetensors.numpy import save

from offbeat.algorithms import POLICIES
from offbeat.core.errors import Interrupted, InvalidInput, OffbeatError, OutputRefused
from offbeat.core.streams import stream
from offbeat.experiment.tables import Table
from offbeat.flower.compat import SUPERLINK_NODE_ID, Run, TaskIdentity, log
from offbeat.flower.virtual.app import FlowerApp, Scalar, place_of, read_app
from offbeat.flower.virtual.clients import (
    ClientRuns,
    ClientSetup,
    InProcess,
    WorkerProcesses,
    identify,
    seed_generators,
)
from offbeat.flower.virtual.devices import WorkTimes
from offbeat.flower.virtual.engine import MessageEngine, RunEnded
from offbeat.flower.virtual.grid import VirtualGrid
from offbeat.flower.virtual.injection import AS_WRITTEN, Injection, policy_named
from offbeat.flower.virtual.legacy_servers import rounds_at_once
from offbeat.flower.virtual.observation import TAKEN, Observation, direction_of
from offbeat.flower.virtual.settings import AppSettings
from offbeat.flower.virtual.wall_clock import AppTime, real_time_calls
from offbeat.results.files import Log, replace_file, write_json
from offbeat.results.lock import DirectoryLock, check_unlocked
from offbeat.results.metric import TargetMetric, summarise
from offbeat.results.orders import OrderLog
from offbeat.results.result import ORDER, Result
from offbeat.results.rows import Row, on_one_set
from offbeat.results.timeline import Timeline
from offbeat.running.directory import FILES, check_may_write

FINISHED = "the app"
"""Stop reason of a run whose ServerApp returned."""


class AppFailed(OffbeatError):
    """The ServerApp raised an exception. What the run wrote before that stays."""


class AppDirectory:
    """Writes the run directory of an app: the files of any run except checkpoints, as an app cannot be resumed."""

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self.path = path
        self._overwrite = overwrite
        self._lock = DirectoryLock(path)
        check_unlocked(path)
        self._check()

    def _check(self) -> None:
        if (self.path / "config.toml").is_file() and not self._overwrite:
            raise OutputRefused(f"{self.path} already holds a run", "out", "overwrite")
        check_may_write(self.path, self._overwrite)

    def open(self, table: Table) -> None:
        """Lock the directory, delete the files of an earlier run and write the settings."""
        self._lock.take()
        self._check()  # again: now no other process can change the directory
        for name in FILES:
            (self.path / name).unlink(missing_ok=True)
        self.write_config(table)
        self._metrics = Log(self.path / "metrics.jsonl")
        self._timeline = Timeline(self.path / "timeline.json")
        self._orders = OrderLog(self.path / "orders.bin")

    def write_config(self, table: Table) -> None:
        """Write config.toml."""
        replace_file(self.path / "config.toml", tomli_w.dumps(table).encode())

    def write(self, row: Row, engine: MessageEngine) -> None:
        """Write a row of metrics, and the training messages that have ended."""
        self._metrics.write(json.dumps(row))
        self._metrics.flush()
        self._write_spans(engine)

    def _write_spans(self, engine: MessageEngine) -> None:
        for span in engine.accounts.take_spans():
            self._timeline.write(span)
        self._timeline.mark(engine.version, engine.now)
        self._orders.write(engine.accounts.take_closed(), engine.now)
        self._orders.flush()

    def finish(
        self, engine: MessageEngine, summary: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[Any]] | None
    ) -> None:
        """Write devices.csv, the final model if there is one, and last the summary."""
        self._write_spans(engine)
        self._timeline.finish(engine.open_spans(), engine.now, engine.accounts.names)
        self._orders.finish(engine.accounts.received, engine.open_spans())
        if engine.accounts.per_device:
            replace_file(self.path / "devices.csv", engine.accounts.csv(engine.open_spans(), engine.now).encode())
        if tensors:
            replace_file(self.path / "model.safetensors", save(dict(tensors), {ORDER: json.dumps(list(tensors))}))
        write_json(self.path / "summary.json", dict(summary))

    def close(self) -> None:
        """Close the logs and unlock the directory."""
        for name in ("_metrics", "_timeline", "_orders"):
            if (log := getattr(self, name, None)) is not None:
                log.close()
        self._lock.release()


def simulate(
    app: str | os.PathLike[str] | FlowerApp,
    settings: AppSettings | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    run_config: Sequence[str] = (),
    overwrite: bool = False,
    injection: Injection | None = None,
) -> Result:
    """Run an unmodified Flower app on a virtual clock over a simulated fleet; write a run directory if given `out`.

    `injection` replaces its strategy.
    """
    app = app if isinstance(app, FlowerApp) else read_app(Path(app), run_config)
    settings = settings or AppSettings()
    directory = None if out is None else AppDirectory(Path(out), overwrite=overwrite)
    simulated = SimulatedApp(app, settings)
    with closing(directory) if directory is not None else ExitStack(), closing(simulated):
        return simulated.run(directory, injection)


def simulate_strategies(
    app: FlowerApp,
    settings: AppSettings,
    out: Path,
    names: Sequence[str],
    seeds: int,
    *,
    overwrite: bool = False,
    watch: Callable[[str, int], None] = lambda name, seed: None,
) -> list[Result]:
    """Run an app with several strategies and seeds; writes a directory per run.

    A name is one of offbeat's algorithms, "app" for the app as it is, or a value of `strategy` in its run config. The
    first one runs for the rounds that the app asks for, unless there is a limit of time; other algorithms of offbeat's
    get its virtual time.
    """
    own = {AS_WRITTEN: app}
    for name in names:
        if name in own or (name not in POLICIES and "strategy" in app.run_config):
            changed: dict[str, Scalar] = {"strategy": name} if name not in own else {}
            own[name] = replace(app, run_config=app.run_config | changed, overrides=app.overrides | changed)
        else:
            policy_named(name)
    runs: list[Result] = []
    for seed in range(settings.seed, settings.seed + seeds):
        limit = settings.stop.time
        for name in names:
            watch(name, seed)
            stop = settings.stop if name in own else settings.stop.model_copy(update={"time": None})
            chosen = settings.model_copy(update={"seed": seed, "label": name, "stop": stop})
            injection = None if name in own else Injection(policy_named(name), seed, limit)
            path = out / f"{name}-seed{seed}"
            runs.append(simulate(own.get(name, app), chosen, path, overwrite=overwrite, injection=injection))
            limit = limit or runs[-1].summary["time"]
    return runs


class SimulatedApp:
    """One run of an app: its engine, its grid, and the metrics that are observed."""

    def __init__(self, app: FlowerApp, settings: AppSettings, app_time: AppTime | None = None) -> None:
        """Load the app. `app_time` replaces the functions of `time`, and is given if it is installed already."""
        self.app, self.settings = app, settings
        self._app_time = app_time or AppTime(app.directory)
        self._installed = app_time is not None
        self._stack = ExitStack()
        try:
            self._prepare()
        except BaseException:
            self._stack.close()
            raise

    def _prepare(self) -> None:
        app, settings, stop = self.app, self.settings, self.settings.stop
        times, run_id = WorkTimes(app, settings), int(stream(settings.seed, "flower run").integers(1, 2**63))
        app_time = self._app_time
        for context in (
            app.importable(),
            nullcontext() if self._installed else app_time.installed(),
            _identity(run_id),
        ):
            self._stack.enter_context(context)
        with_torch = "torch" in sys.modules
        if settings.clients.seeded:
            seed_generators(settings.seed)
        self._server_app = app.server_app()
        if settings.clients.seeded and not with_torch:
            seed_generators(settings.seed)  # again: the app may have imported torch
        if calls := real_time_calls(app.files()):
            more = f" and {len(calls) - 3} more" if len(calls) > 3 else ""
            log(WARNING, "The app reads real time, not virtual time, in %s%s", ", ".join(calls[:3]), more)
        setup = ClientSetup(
            app=app, run_id=run_id, nodes=times.node_ids, seed=settings.seed, seeded=settings.clients.seeded
        )
        workers = settings.clients.workers
        clients: ClientRuns = WorkerProcesses(setup, workers) if workers else InProcess(setup, app_time)
        self._stack.callback(clients.close)
        self.engine = MessageEngine(
            times, clients, stop_time=stop.time or inf, most_messages=inf if stop.messages is None else stop.messages
        )
        run = Run.create_empty(run_id)
        run.fab_id, run.fab_version, run.override_config = app.identity, app.version, dict(app.overrides)
        self.grid = VirtualGrid(self.engine, run)
        self._context = Context(
            run_id=run_id,
            node_id=SUPERLINK_NODE_ID,
            node_config={},
            state=RecordDict(),
            run_config=dict(app.run_config),
        )

    def close(self) -> None:
        """End worker processes and undo all patches."""
        self._stack.close()

    def run(self, directory: AppDirectory | None = None, injection: Injection | None = None) -> Result:
        """Run the ServerApp until it returns or a limit is reached, with another strategy if one is injected."""
        rows: list[Row] = []

        def write(row: Row) -> None:
            rows.append(row)
            if directory is not None:
                directory.write(row, self.engine)

        seen = Observation(self.engine, write, self._given_metric())
        self.grid.on_send, self.grid.on_receive = seen.sent, seen.received
        if directory is not None:
            directory.open(self.settings.table(self.app, self.settings.label or self.app.name))
        began = time.monotonic()
        trouble: BaseException | None = None
        reason = FINISHED
        try:
            with (
                rounds_at_once(self.grid.sleep),
                seen.watching(),
                injection.injected() if injection is not None else nullcontext(),
                self._app_time.by(self.grid),
            ):
                self._server_app(self.grid, self._context)
        except RunEnded as end:
            reason = end.reason
        except OffbeatError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            trouble, reason = error, f"{type(error).__name__} in the ServerApp"
        seen.finish()
        self.engine.finish()
        if injection is not None and not injection.used and trouble is None:
            raise InvalidInput(
                f"{self.app.name} starts no strategy of Flower's that {injection.policy.__name__} could replace: it "
                "has a loop of its own, or uses offbeat.flower already"
            )
        if not rows and trouble is None:
            write(seen.last_row())
        if not rows:
            raise self._failure(trouble, directory) from trouble
        result = self._result(rows, seen, reason, time.monotonic() - began, directory)
        if trouble is not None:
            raise self._failure(trouble, directory) from trouble
        self._check_clients()
        return result

    def _check_clients(self) -> None:
        """Log how often ClientApps raised the same exception; AppFailed if all calls raised one."""
        raised, calls = self.engine.raised, self.engine.calls
        for exception, times in raised.items():
            if times > 1:
                log(ERROR, "ClientApps raised this exception in %d of %d calls: %s", times, calls, exception)
        if raised and raised.total() == calls:
            first = next(iter(raised))
            raise AppFailed(f"all {raised.total()} calls of the ClientApp raised an exception, first: {first}")

    def _given_metric(self) -> TargetMetric | None:
        given = self.settings.evaluation
        if given.target_metric is None:
            return None
        direction = given.target_direction or direction_of(given.target_metric)
        if direction is None:
            raise InvalidInput(
                f"evaluation.target_metric = {given.target_metric!r}: set evaluation.target_direction to 'max' if "
                "higher values are better, else to 'min'"
            )
        return TargetMetric(given.target_metric, "max" if direction == "max" else "min")

    def _failure(self, trouble: BaseException | None, directory: AppDirectory | None) -> OffbeatError:
        kept = "" if directory is None else f"; results so far are in {directory.path}"
        if isinstance(trouble, KeyboardInterrupt):
            return Interrupted(f"interrupted at {self.engine.now:.6g} virtual seconds{kept}")
        return AppFailed(
            f"the ServerApp of {self.app.name} raised {type(trouble).__name__} at {self.engine.now:.6g} virtual "
            f"seconds: {trouble}{place_of(trouble)}{kept}"
        )

    def _result(
        self, rows: list[Row], seen: Observation, reason: str, seconds: float, directory: AppDirectory | None
    ) -> Result:
        label = self.settings.label or seen.strategy or self.app.name
        metric, engine = seen.metric, self.engine
        assert metric is not None
        summary = summarise(
            rows,
            algorithm=seen.strategy or self.app.name,
            label=label,
            seed=self.settings.seed,
            targets=metric.targets(self.settings.evaluation.targets),
            reason=reason,
            wall_seconds=seconds,
            in_training=engine.in_flight_seconds / engine.now if engine.now else 0.0,
            metric=metric,
            metrics=[name for name in rows[-1] if name not in TAKEN],
        )
        if left_out := len(rows) - len(on_one_set(rows)):
            log(
                WARNING,
                "%d of %d evaluations were made by other nodes than the rest: times to targets and the best %s leave "
                "them out. An evaluate_fn evaluates all versions alike",
                left_out,
                len(rows),
                metric.title,
            )
        summary |= {"messages": engine.counters.messages, "faults": engine.counters.faults, "ended_at": engine.now}
        tensors = None if seen.arrays is None else tensors_in(seen.arrays)
        if directory is not None:
            directory.write_config(self.settings.table(self.app, label))
            directory.finish(engine, summary, tensors)
        return Result(
            rows=rows, summary=summary, directory=None if directory is None else directory.path, tensors=tensors
        )


def tensors_in(arrays: ArrayRecord) -> dict[str, npt.NDArray[Any]] | None:
    """Convert the arrays to numpy, by name; None if some are of another kind."""
    if not arrays or any(array.stype != "numpy.ndarray" for array in arrays.values()):
        return None
    return {name: np.ascontiguousarray(array.numpy()) for name, array in arrays.items()}


@contextmanager
def _identity(run_id: int) -> Iterator[None]:
    """Set the run that messages made in this process belong to, and restore the previous one afterwards."""
    before = TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id
    identify(run_id)
    try:
        yield
    finally:
        TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id = before
