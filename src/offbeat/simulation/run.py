"""Runs an experiment in simulation: from settings to a simulation, from a simulation to results."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from offbeat.core.errors import checks_keywords
from offbeat.experiment.schema import Experiment
from offbeat.experiment.shipped import ExperimentSource, experiment_from
from offbeat.results.metric import TargetMetric
from offbeat.results.result import Result
from offbeat.results.tracking import check_trackers
from offbeat.running.assembly import ExperimentParts, own_settings, session_of
from offbeat.running.device_metrics import device_metrics, groups_of
from offbeat.running.directory import RunDirectory
from offbeat.running.driver import OnProgress
from offbeat.running.interruption import Flag
from offbeat.running.loop import run_to_end
from offbeat.running.progress import shown_in_notebook, watched_bar
from offbeat.running.sizing import sized
from offbeat.simulation.attacks import Attackers, poisoned
from offbeat.simulation.engine import Simulation
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
"""How each executor trains several devices within one process."""


@contextmanager
def simulation_of(experiment: Experiment) -> Iterator[Simulation]:
    """Build the simulation of an experiment; its worker processes end with the context."""
    with _built(experiment) as (simulation, _):
        yield simulation


@contextmanager
def _built(experiment: Experiment, scratch: Path | None = None) -> Iterator[tuple[Simulation, ExperimentParts]]:
    """Build the simulation of an experiment, and the parts that it consists of."""
    experiment = sized(experiment)
    workers, torch_device = experiment.execution.processes(), torch_device_of(experiment.execution.local_torch_device)
    parts = ExperimentParts.of(experiment)
    fleet = parts.fleet()
    attackers = None
    if experiment.attack.name != "none":
        attackers = Attackers(experiment.attack, parts.partition.devices, experiment.seed)
        parts = replace(parts, dataset=poisoned(parts.dataset, parts.partition, attackers))
        fleet = attackers.hastened(fleet)
    session = session_of(
        experiment,
        parts.network,
        samples=parts.partition.sizes,
        present=fleet.availability.present(0.0),
        secret=False,
        forecast=fleet.forecast(parts.layout.bytes),
        own=own_settings(experiment, parts.partition.devices, fleet.names),
        scratch=scratch,
        trusted=parts.trusted_training,
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
        simulation = Simulation(
            session,
            fleet,
            executor,
            stop=experiment.stop,
            schedule=experiment.schedule,
            metric=TargetMetric.of_experiment(experiment),
            attackers=attackers,
            evaluate=None if attackers is None else attackers.evaluation(executor, parts),
        )
        yield simulation, parts
    finally:
        executor.close()


@checks_keywords
def run(
    experiment: ExperimentSource,
    out: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    watch: OnProgress | None = None,
    interrupted: Flag | None = None,
) -> Result:
    """Run an experiment (an `Experiment`, tables, a file or a shipped name), into the directory `out` if given.

    With `resume`, a stopped run continues from its checkpoint and a finished one is only read. Ctrl-C, or setting
    `interrupted` if that is given, stops the run and leaves a checkpoint.
    """
    directory, experiment = None, sized(experiment_from(experiment))
    check_trackers(experiment.tracking, directory=None if out is None else Path(out))
    if out is not None:
        directory = RunDirectory(Path(out), experiment.table(), overwrite=overwrite, resume=resume)
    ended = directory.finished() if directory is not None else None
    if ended is not None:
        return ended
    shown = shown_in_notebook(watch, lambda: watched_bar(experiment))
    with _built(experiment, None if out is None else Path(out)) as (simulation, parts), shown as watch:
        assert isinstance(simulation.executor, TorchExecutor)
        groups = groups_of(parts, simulation.fleet) if experiment.evaluation.per_device else None
        return run_to_end(
            simulation,
            experiment,
            directory,
            watch=watch,
            interrupted=interrupted,
            processors=simulation.executor.processors,
            fleet=lambda: parts.fleet_facts(simulation.fleet),
            per_device=None if groups is None else lambda parameters: device_metrics(parts, groups, parameters),
        )
