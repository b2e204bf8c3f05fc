"""Flower's ClientApp: `client_app` for a project with a model and data of its own, and the one that `offbeat deploy`
ships, for which an experiment file says everything."""

from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from torch import nn

from offbeat.core.errors import DeviceFault, InvalidInput, OffbeatError
from offbeat.data.samples import count
from offbeat.flower.device.mailbox import Mailbox, current_mailbox
from offbeat.flower.device.program import RECORDS, DeviceProgram, DeviceStore, Pace, PausedOrder, Reply
from offbeat.flower.experiment_source import AllSamples, SampleArrays, experiment_of
from offbeat.flower.protocol.codec import keep, kept, pack, unpack, vector
from offbeat.flower.protocol.messages import (
    MESSAGE_TYPE,
    Answer,
    Begin,
    Continue,
    Heard,
    Hello,
    Notice,
    Question,
    Refusal,
    ToDevice,
)
from offbeat.running.assembly import ExperimentParts
from offbeat.training.factory import TrainerFactory, check_own
from offbeat.training.local_training import DeviceMemory
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


# Warm nodes -----------------------------------------------------------------------------------------------------------


WAIT_SECONDS = 3600.0
"""A device waits no longer than this for the answer to its question."""


class WarmDevice:
    """Works on the orders of one device."""

    def __init__(self, program: DeviceProgram, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self._program = program
        self._kept_under = ""
        self._answer: tuple[Message, Answer] | None = None
        """The answer to the device's question, if it has come in the midst of training."""
        program.listen = self._listen

    def answer(self, message: Message) -> Message:
        """Do what a message asks for; the answer to it, or to the last one of those that came for the same order."""
        standing = [message]
        try:
            reply = self._reply(standing)
        except OffbeatError as error:
            reply = refusal(error)
        return Message(pack(*reply), reply_to=standing[-1])

    def _reply(self, standing: list[Message]) -> Reply:
        """What to say in the end to the last of the messages that stand for an order."""
        (message,) = standing
        body = unpack(message.content, ToDevice)
        match body:
            case Hello(measure=measure):
                size = self._program.trainer.layout.size
                return self._program.greet(body, vector(message.content, size) if measure else None)
            case Begin():
                return self._work(body, standing)
            case Notice(ticket=ticket):
                return Heard(ticket=ticket, slices=0, step=None, working=False), None
        raise DeviceFault(f"out of step: {type(body).__name__}, having nothing")

    def _work(self, order: Begin, standing: list[Message]) -> Reply:
        program, layout, self._answer = self._program, self._program.trainer.layout, None
        self._recall(f"{order.experiment}/{order.device}")
        reply = program.begin(order, vector(standing[-1].content, program.elements(order.order)))
        while isinstance(reply[0], Question):
            self.mailbox.answer(Message(pack(*reply), reply_to=standing[-1]))
            program.train_on(lambda: self._answer is not None)
            message, answer = self._answer or self._awaited(order.ticket)
            self._answer = None
            standing.append(message)
            reply = program.answered(answer, vector(message.content, layout.size) if answer.newer else None)
        if program.store.memory.latest_ticket == order.ticket:
            self.mailbox.keep(self._kept_under, _packed(program.store.memory))
        return reply

    def _recall(self, name: str) -> None:
        """Take up what the device remembers of this experiment."""
        if name != self._kept_under:
            self._kept_under = name
            self._program.store.memory = _unpacked(self.mailbox.recall(name))

    # News ---------------------------------------------------------------------------------------------------------

    def _awaited(self, ticket: int) -> tuple[Message, Answer]:
        """The answer to a question; other news may come before it."""
        while (message := self.mailbox.take(WAIT_SECONDS)) is not None:
            body = unpack(message.content, ToDevice)
            if isinstance(body, Answer) and body.ticket == ticket:
                return message, body
            assert self._program.store.paused is not None
            self._hear(self._program.store.paused, None, message, body)
        raise DeviceFault(f"no answer to its question within {WAIT_SECONDS:.0f} s")

    def _listen(self, paused: PausedOrder, step: int | None) -> bool:
        """Take in what has come while the device was training; whether it goes on, having no newer model to merge."""
        while (message := self.mailbox.take()) is not None:
            self._hear(paused, step, message, unpack(message.content, ToDevice))
        return self._answer is None or not self._answer[1].newer

    def _hear(self, paused: PausedOrder, step: int | None, message: Message, body: ToDevice) -> None:
        ticket = paused.assignment.ticket
        match body:
            case Notice(ticket=meant, give_up=give_up):
                working = meant == ticket
                heard = Heard(ticket=meant, slices=paused.run.progress.slices, step=step, working=working)
                self.mailbox.answer(Message(pack(heard), reply_to=message))
                if working and give_up:
                    raise DeviceFault(f"the server has given up ticket {ticket}")
                if working:
                    paused.run.stop_soon()
            case Answer(ticket=meant) if meant == ticket and paused.run.asking:
                self._answer = message, body
            case Hello(measure=False):
                self.mailbox.answer(Message(pack(*self._program.greet(body, None)), reply_to=message))
            case _:  # a new order, for instance: the server knows nothing of this one any more
                self.mailbox.put_back(message)
                raise DeviceFault(f"ticket {ticket} is given up, because a {type(body).__name__} has come")


def refusal(error: OffbeatError) -> Reply:
    """That a device cannot do what it was asked."""
    return Refusal(reason=str(error)[:2000]), None


def _packed(memory: DeviceMemory) -> bytes:
    state = RecordDict()
    keep(state, memory)
    return bytes(recorddict_to_proto(state).SerializeToString(deterministic=True))


def _unpacked(content: bytes | None) -> DeviceMemory:
    """What was kept; nothing if there is none, or if it cannot be read."""
    try:
        state = recorddict_from_proto(ProtoRecordDict.FromString(content or b""))
        return kept(state, (DeviceMemory,), DeviceMemory())
    except (DecodeError, ValueError, KeyError, TypeError):
        return DeviceMemory()
