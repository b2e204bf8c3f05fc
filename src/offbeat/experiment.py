"""Running an experiment in simulation: from settings to a simulation, from a simulation to results."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from offbeat.config import Experiment
from offbeat.core.session import Session
from offbeat.driving import Flag, Result, Watch, drive
from offbeat.ingredients import Ingredients
from offbeat.results.directory import RunDirectory
from offbeat.simulation.engine import Simulation
from offbeat.simulation.executors import torch_executor


@contextmanager
def simulation_of(experiment: Experiment) -> Iterator[Simulation]:
    """The simulation that an experiment describes; its worker processes end with the context."""
    parts = Ingredients.of(experiment)
    layout, fleet, stop = parts.layout, parts.fleet(), experiment.stop.build()
    session = Session(
        experiment.algorithm.policy,
        parameters=parts.parameters,
        layout=layout,
        samples=parts.partition.sizes,
        training=experiment.local.build(),
        seed=experiment.seed,
        present=fleet.availability.present(0.0),
        forecast=fleet.forecast(layout.bytes),
        horizon=stop.time,
    )
    execution = experiment.execution
    in_processes = execution.executor == "processes" or execution.workers > 1
    executor = torch_executor(
        parts.dataset,
        parts.partition,
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
    with simulation_of(experiment) as simulation:
        return drive(simulation, experiment, directory, watch=watch, interrupted=interrupted)
