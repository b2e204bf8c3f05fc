"""Running an experiment in simulation: from settings to a simulation, from a simulation to results.

And replaying one that was run for real, which ends with the same model or says where it differs.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from offbeat.core.errors import InvalidInput
from offbeat.core.record import read_record
from offbeat.experiment.schema import Experiment
from offbeat.experiment.shipped import ExperimentSource, experiment_from
from offbeat.results.metric import TargetMetric
from offbeat.results.result import Result, read_run, tensors_of
from offbeat.running.assembly import ExperimentParts, session_of
from offbeat.running.directory import RunDirectory, read_model
from offbeat.running.driver import OnProgress
from offbeat.running.interruption import Flag
from offbeat.running.loop import run_to_end
from offbeat.simulation.engine import Simulation
from offbeat.simulation.replay import Difference, Replay
from offbeat.training.executor import TorchExecutor, torch_executor
from offbeat.training.stacked import Arithmetic
from offbeat.training.torch_device import torch_device_of

ARITHMETIC: dict[str, Arithmetic] = {
    "auto": "auto",
    "sequential": "sequential",
    "stacked": "stacked",
    "processes": "auto",
    "ray": "sequential",
}
"""How each executor trains several clients in one process."""


@contextmanager
def simulation_of(experiment: Experiment) -> Iterator[Simulation]:
    """The simulation that an experiment describes; its worker processes end with the context."""
    workers, torch_device = experiment.execution.processes(), torch_device_of(experiment.execution.local_torch_device)
    parts = ExperimentParts.of(experiment)
    fleet = parts.fleet()
    session = session_of(
        experiment,
        parts.network,
        samples=parts.partition.sizes,
        present=fleet.availability.present(0.0),
        forecast=fleet.forecast(parts.layout.bytes),
    )
    execution = experiment.execution
    if workers or execution.executor == "ray":
        experiment.check_importable()
    executor = torch_executor(
        parts.factory(torch_device),
        parts.dataset,
        parts.partition,
        arithmetic=ARITHMETIC[execution.executor],
        workers=workers,
        cluster=execution if execution.executor == "ray" else None,
        batch_size=experiment.local.batch_size or None,
        training_loss=experiment.evaluation.training_loss,
    )
    try:
        yield Simulation(
            session,
            fleet,
            executor,
            stop=experiment.stop,
            schedule=experiment.schedule,
            metric=TargetMetric.of_experiment(experiment),
        )
    finally:
        executor.close()


def run(
    experiment: ExperimentSource,
    out: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    watch: OnProgress | None = None,
    interrupted: Flag | None = None,
) -> Result:
    """Run an experiment (tables, a file or the name of a shipped one will do), into a directory if one is given.

    With `resume` a run that was stopped goes on from its checkpoint, and one that had ended is only read. The run
    stops, leaving a checkpoint, on Ctrl-C or, if `interrupted` is given, when that is set.
    """
    directory, experiment = None, experiment_from(experiment)
    if out is not None:
        directory = RunDirectory(Path(out), experiment.table(), overwrite=overwrite, resume=resume)
    ended = directory.finished() if directory is not None else None
    if ended is not None:
        return ended
    with simulation_of(experiment) as simulation:
        assert isinstance(simulation.executor, TorchExecutor)
        return run_to_end(
            simulation,
            experiment,
            directory,
            watch=watch,
            interrupted=interrupted,
            processors=simulation.executor.processors,
        )


def replay(path: str | os.PathLike[str], watch: Callable[[float], None] | None = None) -> Result:
    """Replay the real run in a directory; raises Difference if anything comes out otherwise than it did there.

    The result is the real run with the replay's model; its summary says what was compared, and found equal, in
    `replayed_versions`, `replayed_orders` and `replayed_model` (False: the run had left no model to compare with).
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
    executor = torch_executor(parts.factory(), parts.dataset, parts.partition, arithmetic="sequential")
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
    found = read_run(directory)
    compared = {
        "replayed_versions": session.version,
        "replayed_orders": replaying.orders,
        "replayed_model": final is not None,
    }
    return Result(
        rows=found.rows,
        summary=found.summary | compared,
        experiment=experiment,
        directory=directory,
        tensors=tensors_of(session.parameters, session.layout),
    )
