"""Running an experiment in simulation: from settings to a simulation, from a simulation to results.

And replaying one that was run for real, which ends with the same model or says where it differs.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from offbeat.core.errors import InvalidInput
from offbeat.running.directory import RunDirectory, read_model
from offbeat.running.driver import OnProgress
from offbeat.running.loop import Flag, run_to_end
from offbeat.running.record import read_record
from offbeat.running.result import Result
from offbeat.settings.assembly import ExperimentParts, session_of
from offbeat.settings.schema import Experiment
from offbeat.simulation.engine import Simulation
from offbeat.simulation.executors import torch_executor
from offbeat.simulation.replay import Difference, Replay


@contextmanager
def simulation_of(experiment: Experiment) -> Iterator[Simulation]:
    """The simulation that an experiment describes; its worker processes end with the context."""
    parts = ExperimentParts.of(experiment)
    fleet, stop = parts.fleet(), experiment.stop.build()
    session = session_of(
        experiment,
        parts.network,
        samples=parts.partition.sizes,
        present=fleet.availability.present(0.0),
        forecast=fleet.forecast(parts.layout.bytes),
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
    watch: OnProgress | None = None,
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
        return run_to_end(simulation, experiment, directory, watch=watch, interrupted=interrupted)


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What was compared, and found equal."""

    versions: int
    orders: int
    final_model: bool
    """Whether the run had left its final parameters to compare with."""


def replay(path: str | os.PathLike[str], watch: Callable[[float], None] | None = None) -> Replayed:
    """Replay the real run in a directory; raises Difference if anything comes out otherwise than it did there.

    `watch` is told how much is done (0 to 1).
    """
    directory = Path(path)
    if not (directory / "record.jsonl").is_file():
        raise InvalidInput(
            f"{directory} holds no real run: it has no record.jsonl, which `offbeat deploy` and `local-cluster` leave"
        )
    experiment = Experiment.load(directory / "config.toml")
    first, lines = read_record((directory / "record.jsonl").read_text(encoding="utf-8"), "record.jsonl")
    if first.own_data:
        raise InvalidInput(f"{directory} cannot be replayed: its devices had data of their own, which are not here")
    parts = ExperimentParts.of(experiment)
    if first.samples != parts.partition.sizes.tolist():
        raise InvalidInput(f"{directory} cannot be replayed: its devices had other data than {experiment.data.name!r}")
    executor = torch_executor(
        parts.dataset,
        parts.partition,
        model=experiment.model.name,
        seed=experiment.seed,
        arithmetic="sequential",
        workers=0,
    )
    session = session_of(
        experiment,
        parts.network,
        samples=parts.partition.sizes,
        present=np.isin(np.arange(experiment.data.devices), first.present),
        forecast=first.forecast,
    )
    with closing(executor):
        replaying = Replay(session, executor, lines)
        for number, _ in enumerate(replaying, 1):
            if watch is not None:
                watch(number / len(lines))
    final = read_model(directory / "model.safetensors", parts.layout)
    if (directory / "summary.json").is_file():
        replaying.check_complete()
    if final is not None and final.tobytes() != session.parameters.tobytes():
        raise Difference("all versions are as in the record, but model.safetensors is another model")
    return Replayed(versions=session.version, orders=replaying.orders, final_model=final is not None)
