"""Running a Flower app on a virtual clock: from its directory to a run directory and a result."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from logging import WARNING
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore import log
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from offbeat.core.errors import Interrupted, InvalidInput, OffbeatError
from offbeat.core.streams import stream
from offbeat.flower.virtual.app import FlowerApp, read_app
from offbeat.flower.virtual.before_messages import rounds_at_once
from offbeat.flower.virtual.clients import ClientRuns, ClientSetup, InProcess, identify, seed_generators
from offbeat.flower.virtual.devices import WorkTimes
from offbeat.flower.virtual.directory import AppDirectory
from offbeat.flower.virtual.engine import MessageEngine, RunEnded
from offbeat.flower.virtual.grid import VirtualGrid
from offbeat.flower.virtual.observation import Observation, direction_of
from offbeat.flower.virtual.settings import AppSettings
from offbeat.flower.virtual.wall_clock import AppTime, real_time_calls
from offbeat.flower.virtual.workers import WorkerProcesses
from offbeat.results.metric import TargetMetric
from offbeat.results.result import Result
from offbeat.results.rows import Row
from offbeat.results.summary import summarise

FINISHED = "the app"
"""What a run is said to be stopped by that came to its own end."""


class AppFailed(OffbeatError):
    """The ServerApp raised an exception: the run ends, and what it has left stays."""


def simulate(
    app: str | os.PathLike[str] | FlowerApp,
    settings: AppSettings | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    run_config: Sequence[str] = (),
    overwrite: bool = False,
) -> Result:
    """Run a Flower app, as it is, on a virtual clock over a simulated fleet, into a directory if one is given."""
    app = app if isinstance(app, FlowerApp) else read_app(Path(app), run_config)
    settings = settings or AppSettings()
    directory = None if out is None else AppDirectory(Path(out), overwrite=overwrite)
    simulated = SimulatedApp(app, settings)
    with closing(directory) if directory is not None else ExitStack(), closing(simulated):
        return simulated.run(directory)


class SimulatedApp:
    """One run of an app: its engine, its grid, and what is seen of it."""

    def __init__(self, app: FlowerApp, settings: AppSettings, app_time: AppTime | None = None) -> None:
        """`app_time` is what the app sees of the time, if that is installed already."""
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
            seed_generators(settings.seed)  # which can now seed torch too, if the app has imported it
        if calls := real_time_calls(app.files()):
            more = f" and {len(calls) - 3} more" if len(calls) > 3 else ""
            log(WARNING, "The app sees real time, not virtual, in %s%s", ", ".join(calls[:3]), more)
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
        """End worker processes, and leave the interpreter as it was."""
        self._stack.close()

    def run(self, directory: AppDirectory | None = None) -> Result:
        """Run the ServerApp to its end, or to a limit."""
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
            with rounds_at_once(self.grid.sleep), seen.watching(), self._app_time.by(self.grid):
                self._server_app(self.grid, self._context)
        except RunEnded as end:
            reason = end.reason
        except OffbeatError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            trouble, reason = error, f"{type(error).__name__} in the ServerApp"
        seen.flush()
        self.engine.finish()
        if not rows and trouble is None:
            write(seen.last_row())
        if not rows:
            raise self._failure(trouble, directory) from trouble
        result = self._result(rows, seen, reason, time.monotonic() - began, directory)
        if trouble is not None:
            raise self._failure(trouble, directory) from trouble
        return result

    def _given_metric(self) -> TargetMetric | None:
        given = self.settings.evaluation
        if given.target_metric is None:
            return None
        direction = given.target_direction or direction_of(given.target_metric)
        if direction is None:
            raise InvalidInput(
                f"evaluation.target_metric = {given.target_metric!r}: say with evaluation.target_direction whether a "
                "higher value is better (max) or a lower one (min)"
            )
        return TargetMetric(given.target_metric, "max" if direction == "max" else "min")

    def _failure(self, trouble: BaseException | None, directory: AppDirectory | None) -> OffbeatError:
        kept = "" if directory is None else f"; what it had come to is in {directory.path}"
        if isinstance(trouble, KeyboardInterrupt):
            return Interrupted(f"interrupted at {self.engine.now:.6g} virtual seconds{kept}")
        return AppFailed(
            f"the ServerApp of {self.app.name} raised {type(trouble).__name__} at {self.engine.now:.6g} virtual "
            f"seconds: {trouble}{kept}"
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
            targets=self.settings.evaluation.targets,
            reason=reason,
            wall_seconds=seconds,
            in_training=engine.in_flight_seconds / engine.now if engine.now else 0.0,
            metric=metric,
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
    """The arrays by name; None if they are not all arrays of numpy."""
    if not arrays or any(array.stype != "numpy.ndarray" for array in arrays.values()):
        return None
    return {name: np.ascontiguousarray(array.numpy()) for name, array in arrays.items()}


@contextmanager
def _identity(run_id: int) -> Iterator[None]:
    """Flower knows in this process whose messages it makes, and forgets it afterwards."""
    before = TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id
    identify(run_id)
    try:
        yield
    finally:
        TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id = before
