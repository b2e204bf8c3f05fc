"""The Flower ServerApp of a run: `server_app` for a project with its own model and data, and the app of
`offbeat deploy`, which gets everything from an experiment."""

from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from offbeat.core.errors import InvalidInput, OffbeatError
from offbeat.core.parameters import Vector
from offbeat.data.samples import count, taken
from offbeat.experiment.objects import as_table
from offbeat.experiment.schema import Experiment
from offbeat.experiment.shipped import ExperimentSource
from offbeat.flower.experiment_source import AllSamples, SampleArrays, experiment_of, log_line
from offbeat.flower.server.driver import Deployment
from offbeat.flower.server.membership import Membership, wait_for_devices
from offbeat.flower.server.transport import Transport
from offbeat.models import layout_of, vector_of
from offbeat.results.fleet_facts import FleetFacts
from offbeat.results.metric import TargetMetric
from offbeat.results.rows import Row
from offbeat.results.tracking import check_trackers
from offbeat.running.assembly import (
    ExperimentParts,
    own_settings,
    session_of,
    trainer_settings,
    trusted_movement,
    trusted_split,
)
from offbeat.running.directory import RunDirectory, RunRecord
from offbeat.running.loop import run_to_end
from offbeat.running.sizing import order_seconds, sized
from offbeat.training.batches import Pipeline
from offbeat.training.factory import TrainerFactory, as_arrays, check_own
from offbeat.training.tasks import Task
from offbeat.training.torch_device import torch_device_of


@dataclass(frozen=True, kw_only=True, eq=False)
class ServerParts:
    """What the server needs in addition to the experiment."""

    network: nn.Module
    test: SampleArrays
    samples: npt.NDArray[np.int64] | None = None
    """The number of samples of each device, if the server knows it."""
    parts: ExperimentParts | None = None
    trusted: Callable[[Vector, int], Vector] | None = None
    """The movement that training on trusted samples gives a version; None if no rule needs it."""


def server_app(
    experiment: ExperimentSource | None = None,
    *,
    model: Callable[[], nn.Module],
    test_data: Callable[[], SampleArrays],
    task: Task | None = None,
    out: str | Path = "results",
) -> ServerApp:
    """Make a ServerApp that trains your model with an algorithm of offbeat.

    `data.devices` of the experiment is the largest number of devices that may take part. The task must be that of your
    ClientApp; the experiment may name it instead.
    """

    def prepare(experiment: Experiment) -> ServerParts:
        network, test = model(), test_data()
        check_own(experiment.task.task, network, *test)
        number = experiment.trust.trusted_samples
        if not number:
            return ServerParts(network=network, test=test)
        x, y = map(as_arrays, test)
        theirs, kept = trusted_split(count(y), number, experiment.seed)
        factory = _factory(experiment, partial(deepcopy, network))
        return ServerParts(
            network=network,
            test=(taken(x, kept), taken(y, kept)),
            trusted=trusted_movement(factory, (taken(x, theirs), taken(y, theirs)), experiment.local),
        )

    return _server(experiment, prepare, out, task)


def experiment_server_app() -> ServerApp:
    """Make the ServerApp of an experiment that is in the run config."""

    def prepare(experiment: Experiment) -> ServerParts:
        parts = ExperimentParts.of(experiment)
        test = (parts.dataset.test_x, parts.dataset.test_y)
        return ServerParts(
            network=parts.network, test=test, samples=parts.partition.sizes, parts=parts, trusted=parts.trusted_training
        )

    return _server(None, prepare, "results")


def _server(
    source: ExperimentSource | None,
    prepare: Callable[[Experiment], ServerParts],
    out: str | Path,
    task: Task | None = None,
) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            experiment = experiment_of(source, context.run_config)
            if task is not None:
                experiment = experiment.changed({"task": as_table("task", task)})
            serve(
                grid,
                experiment,
                prepare(experiment),
                Path(str(context.run_config.get("out", out))),
                resume=bool(context.run_config.get("resume", False)),
                overwrite=bool(context.run_config.get("overwrite", False)),
            )
        except OffbeatError as error:
            log_line(f"error: {error}")
            raise

    return app


def evaluation_torch_device(device: str) -> str:
    """The torch device on which the server evaluates: the one named, or the CPU if it is not available here."""
    try:
        return torch_device_of(device)
    except InvalidInput as error:
        log_line(f"the server evaluates on the CPU: {error}")
        return "cpu"


def _factory(
    experiment: Experiment, network: Callable[[], nn.Module], pipeline: Pipeline | None = None
) -> TrainerFactory:
    """The factory of trainers on the server."""
    settings = trainer_settings(experiment, evaluation_torch_device(experiment.execution.device))
    return TrainerFactory(network=network, seed=experiment.seed, pipeline=pipeline, **settings)


def serve(
    grid: Grid,
    experiment: Experiment,
    given: ServerParts,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    **clock: Any,
) -> None:
    """Run an experiment on the nodes of a grid, into a directory like that of a simulation."""
    check_trackers(experiment.tracking, directory=out)
    if experiment.attack.name != "none":
        raise InvalidInput(f"attack.name = {experiment.attack.name!r}: attacks are simulated only, leave out [attack]")
    experiment = sized(experiment, seconds=order_seconds if given.parts else None)
    directory = RunDirectory(out, experiment.table(), overwrite=overwrite, resume=resume)
    if directory.finished() is not None:
        log_line(f"the run in {out} is already finished")
        return
    settings = experiment.deployment
    policy, layout, parameters = experiment.algorithm.policy, layout_of(given.network), vector_of(given.network)
    policy.check(experiment.data.devices)
    if settings.paced and given.parts is None:
        log_line("deployment.paced is ignored: it needs the experiment's fleet, but the devices have their own data")
    fleet = given.parts.fleet() if given.parts and settings.paced else None
    names = fleet.names if fleet else given.parts.device_names if given.parts else None
    membership = Membership(
        experiment.data.devices,
        model=parameters,
        batch_size=experiment.local.batch_size or None,
        samples=given.samples,
        measure=policy.plans,
        forecast=fleet.forecast(layout.bytes) if fleet else None,
        answer_seconds=settings.answer_seconds,
        names=names,
    )
    transport = Transport(grid, log_line)
    wanted = min(settings.start_with or experiment.data.devices, experiment.data.devices)
    log_line(f"waiting for {wanted} of {experiment.data.devices} devices")
    wait_for_devices(membership, transport, wanted=wanted, seconds=settings.start_seconds, log=log_line, **clock)
    session = session_of(
        experiment,
        given.network,
        samples=membership.samples,
        present=membership.present,
        forecast=membership.estimate_absent(),
        own=own_settings(experiment, experiment.data.devices, names),
        scratch=out,
        secret=True,
        trusted=given.trusted,
    )
    factory = _factory(experiment, lambda: given.network, given.parts.dataset.pipeline if given.parts else None)
    trainer = factory.trainer(*given.test, AllSamples(count(given.test[1])))
    out.mkdir(parents=True, exist_ok=True)
    record = RunRecord(out / "record.jsonl")
    deployment = Deployment(
        session,
        transport,
        membership,
        partial(trainer.evaluate, x=given.test[0], y=given.test[1]),
        seed=experiment.seed,
        stop=experiment.stop,
        schedule=experiment.schedule,
        metric=TargetMetric.of_experiment(experiment),
        record=record,
        log=log_line,
        settings=settings,
        **clock,
    )

    def watch(progress: float, row: Row | None) -> None:
        if row is not None:
            directory.write_devices(deployment)

    def facts() -> FleetFacts:
        return FleetFacts(names=membership.names or [], samples=membership.samples.tolist())

    with closing(record):
        result = run_to_end(deployment, experiment, directory, watch=watch, fleet=facts)
    metric, summary = experiment.target_metric, result.summary
    log_line(f"stopped by {summary['stopped_by']}, {metric} {summary[f'final_{metric}']:.4f}; results in {out}")
