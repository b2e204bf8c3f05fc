"""Flower's ClientApp: `client_app` for a project with a model and data of its own, and the one that `offbeat deploy`
ships, for which an experiment file says everything."""

from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import nn

from offbeat.core.errors import DeviceFault, InvalidInput, OffbeatError
from offbeat.data.samples import count
from offbeat.flower.device.legs import RECORDS, DeviceProgram, DeviceStore, Pace, Reply
from offbeat.flower.device.mailbox import current_mailbox
from offbeat.flower.device.warm import WarmDevice, refusal
from offbeat.flower.experiment_source import AllSamples, SampleArrays, experiment_of
from offbeat.flower.protocol.codec import keep, kept, pack, unpack, vector
from offbeat.flower.protocol.messages import MESSAGE_TYPE, Answer, Begin, Continue, Hello, ToDevice
from offbeat.running.assembly import ExperimentParts
from offbeat.training.factory import TrainerFactory, check_own
from offbeat.training.tasks import CLASSIFICATION, Task
from offbeat.training.torch_device import torch_device_of
from offbeat.training.trainer import Precision, TorchTrainer


def client_app(
    *,
    model: Callable[[], nn.Module],
    data: Callable[[Context], SampleArrays],
    task: Task = CLASSIFICATION,
    device: str = "cpu",
    precision: Precision = "float32",
) -> ClientApp:
    """A ClientApp that trains your model on your data; `data` finds in `context.node_config` which node it is on.

    `device` is where it trains: cpu, cuda, cuda:1, mps or auto. A node that has `device` in its config goes by that.
    """

    def prepare(context: Context) -> tuple[TorchTrainer, Pace | None]:
        x, y = data(context)
        network = model()
        check_own(task, network, x, y)
        torch_device = node_torch_device(context, device, "client_app(device=...)")
        factory = TrainerFactory(
            network=lambda: network, seed=0, task=task, torch_device=torch_device, precision=precision
        )
        return factory.trainer(x, y, AllSamples(count(y))), None

    return _client(prepare)


def node_torch_device(context: Context, device: str, setting: str) -> str:
    """Where this node trains: its own config says so, or else the app."""
    own = context.node_config.get("device")
    return torch_device_of(device, setting) if own is None else torch_device_of(str(own), "node-config device")


def experiment_client_app(**clock: Any) -> ClientApp:
    """The ClientApp of an experiment that travels in the run config."""

    def prepare(context: Context) -> tuple[TorchTrainer, Pace | None]:
        experiment = experiment_of(None, context.run_config)
        number = context.node_config.get("partition-id")
        if number is not None and not 0 <= int(number) < experiment.data.devices:
            raise InvalidInput(f"partition-id={number}: there are {experiment.data.devices} devices, from 0")
        parts = ExperimentParts.of(experiment)
        pace = parts.fleet().speeds.slice_seconds if experiment.deployment.paced else None
        return parts.trainer(node_torch_device(context, experiment.execution.device, "execution.device")), pace

    return _client(prepare, **clock)


def _client(prepare: Callable[[Context], tuple[TorchTrainer, Pace | None]], **clock: Any) -> ClientApp:
    app = ClientApp()
    warm: WarmDevice | None = None

    def program(context: Context, store: DeviceStore) -> DeviceProgram:
        trainer, pace = prepare(context)
        number = context.node_config.get("partition-id")
        return DeviceProgram(trainer, store, number=None if number is None else int(number), pace=pace, **clock)

    @app.train(MESSAGE_TYPE.partition(".")[2])
    def answer(message: Message, context: Context) -> Message:
        nonlocal warm
        mailbox = current_mailbox()
        try:
            if mailbox is not None:
                if warm is None or warm.mailbox is not mailbox:
                    warm = WarmDevice(program(context, DeviceStore()), mailbox)
                return warm.answer(message)
            body = unpack(message.content, ToDevice)
            device = program(context, kept(context.state, RECORDS, DeviceStore()))
            reply = _answer(device, body, message)
            keep(context.state, device.store)
        except OffbeatError as error:
            reply = refusal(error)
        return Message(pack(*reply), reply_to=message)

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
    raise DeviceFault(f"{type(body).__name__} is not a message for this device")
