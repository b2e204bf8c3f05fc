"""Flower's two apps: `server_app` and `client_app` for a project with a model and data of its own, and the pair that
`offbeat deploy` ships, for which an experiment file says everything.

The experiment may come from three places, the later ones winning: the argument `experiment`, a JSON text in the run
config's `experiment`, and run config keys with a dot (`algorithm.name`, `stop.versions`).
"""

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from offbeat.core.errors import DeviceFault, InvalidInput, OffbeatError
from offbeat.core.session import Session
from offbeat.deployment.device.legs import RECORDS, DeviceProgram, DeviceStore, Pace, Reply
from offbeat.deployment.protocol.codec import keep, kept, pack, unpack, vector
from offbeat.deployment.protocol.messages import Answer, Begin, Continue, Hello, Refusal, ToDevice
from offbeat.deployment.server.driver import Deployment
from offbeat.deployment.server.membership import Membership, wait_for_devices
from offbeat.deployment.server.record import RunRecord
from offbeat.deployment.server.transport import MESSAGE_TYPE, Transport
from offbeat.device.trainer import TorchTrainer
from offbeat.models import layout_of, vector_of
from offbeat.results.files import replace_file
from offbeat.running.directory import RunDirectory
from offbeat.running.loop import run_to_end
from offbeat.settings.assembly import ExperimentParts
from offbeat.settings.schema import Experiment
from offbeat.settings.tables import merge, nested, read_toml

Arrays = tuple[npt.ArrayLike, npt.ArrayLike]
"""Samples and their labels."""
ExperimentSource = str | Path | Mapping[str, Any]
"""A file, or tables."""


# The server ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class ServerParts:
    """What the server must have beside the experiment."""

    network: nn.Module
    test: Arrays
    samples: npt.NDArray[np.int64] | None = None
    """Of each device, where the server knows."""
    parts: ExperimentParts | None = None


def server_app(
    experiment: ExperimentSource | None = None,
    *,
    model: Callable[[], nn.Module],
    test_data: Callable[[], Arrays],
    out: str | Path = "results",
) -> ServerApp:
    """A ServerApp that trains your model with an algorithm of offbeat. `data.devices` is how many may take part."""
    return _server(experiment, lambda _: ServerParts(network=model(), test=test_data()), out)


def experiment_server_app() -> ServerApp:
    """The ServerApp of an experiment that travels in the run config."""

    def stage(experiment: Experiment) -> ServerParts:
        parts = ExperimentParts.of(experiment)
        test = (parts.dataset.test_x, parts.dataset.test_y)
        return ServerParts(network=parts.network, test=test, samples=parts.partition.sizes, parts=parts)

    return _server(None, stage, "results")


def _server(source: ExperimentSource | None, stage: Callable[[Experiment], ServerParts], out: str | Path) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            experiment = experiment_of(source, context.run_config)
            serve(
                grid,
                experiment,
                stage(experiment),
                Path(str(context.run_config.get("out", out))),
                resume=bool(context.run_config.get("resume", False)),
                overwrite=bool(context.run_config.get("overwrite", False)),
            )
        except OffbeatError as error:
            log_line(f"error: {error}")
            raise

    return app


def experiment_of(source: ExperimentSource | None, run_config: Mapping[str, Any]) -> Experiment:
    """See the module's docstring."""
    table = read_toml(Path(source)) if isinstance(source, str | Path) else dict(source or {})
    try:
        table = merge(table, json.loads(str(run_config.get("experiment", "{}"))))
    except ValueError as error:
        raise InvalidInput(f"the run config's experiment is not JSON: {error}") from None
    for key, value in run_config.items():
        if "." in key or key == "seed":
            table = merge(table, nested(key, value))
    return Experiment.parse(table)


def log_line(what: str) -> None:
    """Into the run's log, which `flwr log` and `flwr run --stream` show."""
    print(f"offbeat: {what}", flush=True)


def serve(
    grid: Grid,
    experiment: Experiment,
    stage: ServerParts,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    **clock: Any,
) -> None:
    """Run an experiment on the nodes of a grid; the results are in the same kind of directory as a simulation's."""
    directory = RunDirectory(out, experiment.table(), overwrite=overwrite, resume=resume)
    if directory.finished() is not None:
        log_line(f"the run in {out} has ended already")
        return
    settings, training, stop = experiment.deployment, experiment.local_work, experiment.when_to_stop
    policy, layout, parameters = experiment.algorithm.policy, layout_of(stage.network), vector_of(stage.network)
    policy.check(experiment.data.devices)
    if settings.paced and stage.parts is None:
        log_line("deployment.paced is left out: the devices have data of their own, and no fleet")
    paced = stage.parts.fleet().forecast(layout.bytes) if stage.parts and settings.paced else None
    membership = Membership(
        experiment.data.devices,
        model=parameters,
        batch_size=training.batch_size,
        samples=stage.samples,
        measure=policy.plans,
        forecast=paced,
        answer_seconds=settings.answer_seconds,
    )
    transport = Transport(grid, log_line)
    wanted = min(settings.start_with or experiment.data.devices, experiment.data.devices)
    log_line(f"waiting for {wanted} of {experiment.data.devices} devices")
    wait_for_devices(membership, transport, wanted=wanted, seconds=settings.start_seconds, log=log_line, **clock)
    session = Session(
        policy,
        parameters=parameters,
        layout=layout,
        samples=membership.samples,
        training=training,
        seed=experiment.seed,
        present=membership.present,
        forecast=membership.estimate_absent(),
        horizon=stop.time,
    )
    trainer = TorchTrainer(stage.network, *stage.test, AllSamples(len(np.asarray(stage.test[1]))), experiment.seed)
    out.mkdir(parents=True, exist_ok=True)
    record = RunRecord(out / "record.jsonl")
    deployment = Deployment(
        session,
        transport,
        membership,
        partial(trainer.evaluate, x=stage.test[0], y=stage.test[1]),
        seed=experiment.seed,
        stop=stop,
        schedule=experiment.evaluation.build(stop),
        record=record,
        log=log_line,
        settings=settings,
        **clock,
    )

    def write_devices() -> None:
        replace_file(out / "devices.csv", deployment.accounts.csv().encode())

    with closing(record):
        result = run_to_end(
            deployment, experiment, directory, watch=lambda _, row: write_devices() if row is not None else None
        )
    write_devices()
    metric, summary = experiment.target_metric, result.summary
    log_line(f"ended by {summary['stopped_by']}, {metric} {summary[f'final_{metric}']:.4f}; results in {out}")


# The devices --------------------------------------------------------------------------------------------------------


def client_app(*, model: Callable[[], nn.Module], data: Callable[[Context], Arrays]) -> ClientApp:
    """A ClientApp that trains your model on your data; `data` finds in `context.node_config` which node it is on."""

    def prepare(context: Context) -> tuple[TorchTrainer, Pace | None]:
        x, y = data(context)
        return TorchTrainer(model(), x, y, AllSamples(len(np.asarray(y))), seed=0), None

    return _client(prepare)


def experiment_client_app(**clock: Any) -> ClientApp:
    """The ClientApp of an experiment that travels in the run config."""

    def prepare(context: Context) -> tuple[TorchTrainer, Pace | None]:
        experiment = experiment_of(None, context.run_config)
        number = context.node_config.get("partition-id")
        if number is not None and not 0 <= int(number) < experiment.data.devices:
            raise InvalidInput(f"partition-id={number}: there are {experiment.data.devices} devices, from 0")
        parts = ExperimentParts.of(experiment)
        data, pace = parts.dataset, None
        if experiment.deployment.paced:
            pace = parts.fleet().speeds.slice_seconds
        return TorchTrainer(parts.network, data.train_x, data.train_y, parts.partition, experiment.seed), pace

    return _client(prepare, **clock)


def _client(prepare: Callable[[Context], tuple[TorchTrainer, Pace | None]], **clock: Any) -> ClientApp:
    app = ClientApp()

    @app.train(MESSAGE_TYPE.partition(".")[2])
    def answer(message: Message, context: Context) -> Message:
        try:
            body = unpack(message.content, ToDevice)
            trainer, pace = prepare(context)
            number = context.node_config.get("partition-id")
            store = kept(context.state, RECORDS, DeviceStore())
            device = DeviceProgram(trainer, store, number=None if number is None else int(number), pace=pace, **clock)
            reply, parameters = _answer(device, body, message)
            keep(context.state, store)
        except OffbeatError as error:
            reply, parameters = Refusal(reason=str(error)[:2000]), None
        return Message(pack(reply, parameters), reply_to=message)

    return app


def _answer(device: DeviceProgram, body: ToDevice, message: Message) -> Reply:
    content, size = message.content, device.trainer.layout.size
    match body:
        case Hello(measure=measure):
            return device.greet(body, vector(content, size) if measure else None)
        case Begin():
            return device.begin(body, vector(content, device.elements(body.order)))
        case Continue():
            return device.go_on(body)
        case Answer(newer=newer):
            return device.answered(body, vector(content, size) if newer else None)
    raise DeviceFault(f"{type(body).__name__} is not a message for a device")


@dataclass(frozen=True)
class AllSamples:
    """A partition that gives any device everything there is: a real one has only its own data."""

    count: int

    def samples(self, device: int) -> npt.NDArray[np.int64]:
        return np.arange(self.count, dtype=np.int64)
