"""Running an experiment: from settings to a simulation, from a simulation to results."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from offbeat.config import Experiment
from offbeat.core.errors import Diverged, OffbeatError
from offbeat.core.parameters import Vector
from offbeat.core.session import Session
from offbeat.fleet import Fleet, Workload
from offbeat.models import build, flops_per_sample, layout_of, vector_of
from offbeat.results.directory import RunDirectory
from offbeat.results.summary import summarise
from offbeat.simulation.engine import Simulation
from offbeat.simulation.executors import torch_executor
from offbeat.simulation.records import Row

Watch = Callable[[float, Row | None], None]
"""Told how much of a run is done (0 to 1) and, when there is one, the newest row of metrics."""


class Flag(Protocol):
    """An event of threads or of processes."""

    def is_set(self) -> bool: ...


class Interrupted(OffbeatError):
    """The user stopped the run; it can be resumed if it has a directory."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run gives: its metrics, their summary, and the final parameters (None if it had ended before)."""

    experiment: Experiment
    rows: list[Row]
    summary: dict[str, Any]
    parameters: Vector | None
    directory: Path | None


@contextmanager
def simulation_of(experiment: Experiment) -> Iterator[Simulation]:
    """The simulation that an experiment describes; its worker processes end with the context."""
    dataset, partition = experiment.data.load(experiment.seed)
    network = build(experiment.model.name, dataset.input_shape, dataset.classes, experiment.seed)
    layout = layout_of(network)
    workload = Workload(
        devices=partition.devices,
        samples=partition.sizes,
        layers=layout.trained_layers,
        flops_per_sample=flops_per_sample(network, dataset.input_shape),
        seed=experiment.seed,
    )
    fleet = Fleet.build(
        workload, experiment.fleet.settings, experiment.network, experiment.availability, experiment.failures
    )
    stop = experiment.stop.build()
    session = Session(
        experiment.algorithm.policy,
        parameters=vector_of(network),
        layout=layout,
        samples=partition.sizes,
        training=experiment.local.build(),
        seed=experiment.seed,
        present=fleet.availability.present(0.0),
        forecast=fleet.forecast(layout.bytes),
        horizon=stop.time,
    )
    execution = experiment.execution
    in_processes = execution.executor == "processes" or execution.workers > 1
    executor = torch_executor(
        dataset,
        partition,
        model=experiment.model.name,
        seed=experiment.seed,
        arithmetic="auto" if execution.executor == "processes" else execution.executor,
        workers=execution.workers if in_processes else 0,
        training_loss=experiment.evaluation.training_loss,
    )
    try:
        yield Simulation(session, fleet, executor, stop=stop, schedule=experiment.evaluation.build(stop))
    finally:
        executor.close()


def run(
    experiment: Experiment,
    out: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    watch: Watch | None = None,
    interrupted: Flag | None = None,
) -> Result:
    """Run an experiment, into a directory if one is given.

    With `resume` a run that was stopped goes on from its checkpoint, and one that had ended is only read. The run
    stops, leaving a checkpoint, on Ctrl-C or, if `interrupted` is given, when that is set.
    """
    directory = None
    if out is not None:
        directory = RunDirectory(Path(out), experiment.table(), overwrite=overwrite, resume=resume)
    ended = directory.finished() if directory is not None else None
    if directory is not None and ended is not None:
        return Result(
            experiment=experiment, rows=ended.rows, summary=ended.summary, parameters=None, directory=directory.path
        )
    with simulation_of(experiment) as simulation, interruption(interrupted) as asked:
        rows, spent = directory.open(simulation) if directory is not None else ([], 0.0)
        started = saved = time.monotonic()
        reason = None
        try:
            for row in simulation:
                if row is not None:
                    rows.append(row)
                if directory is not None:
                    directory.write(row, simulation.spans)
                simulation.spans.clear()
                if watch is not None:
                    watch(progress_of(simulation), row)
                now = time.monotonic()
                due = asked.is_set() or now - saved > experiment.execution.checkpoint_seconds
                if directory is not None and due:
                    directory.checkpoint(simulation, spent + now - started)
                    saved = now
                if asked.is_set():
                    raise Interrupted(_interruption_sentence(directory))
        except Diverged as error:
            reason = f"diverged: {error}"
            rows.append(simulation.evaluate())
            if directory is not None:
                directory.write(rows[-1], simulation.spans)
        except BaseException:
            if directory is not None:
                directory.close()
            raise
        summary = summarise(
            rows,
            algorithm=experiment.algorithm.name,
            label=experiment.algorithm.title,
            seed=experiment.seed,
            targets=experiment.evaluation.targets,
            reason=reason or simulation.reason or "",
            wall_seconds=spent + time.monotonic() - started,
        )
        parameters, layout = simulation.session.parameters, simulation.session.layout
        if directory is not None:
            directory.finish(parameters if experiment.execution.save_model else None, layout, summary)
    return Result(
        experiment=experiment,
        rows=rows,
        summary=summary,
        parameters=parameters,
        directory=directory.path if directory is not None else None,
    )


def progress_of(simulation: Simulation) -> float:
    """How much is done, by whichever stop condition is nearest (accuracy is not foreseeable)."""
    stop, session = simulation.stop, simulation.session
    return min(
        1.0,
        max(
            simulation.now / stop.time,
            session.version / stop.versions,
            session.counters.used / stop.updates,
        ),
    )


def _interruption_sentence(directory: RunDirectory | None) -> str:
    if directory is None:
        return "interrupted; nothing was kept, because the run has no directory"
    return f"interrupted; everything so far is in {directory.path}: go on with --resume"


@contextmanager
def interruption(given: Flag | None = None) -> Iterator[Flag]:
    """A flag that Ctrl-C sets, so that a run stops between two events. A second Ctrl-C stops at once."""
    if given is not None or threading.current_thread() is not threading.main_thread():
        yield given or threading.Event()
        return
    asked = threading.Event()

    def ask(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
