"""The Flower ClientApp of a device: `client_app` for a project with its own model and data, and the app of
`offbeat deploy`, which gets everything from an experiment.

On a stock node the app runs in a new process for each message, and the state of the device is kept in Flower's context.
On a persistent node its process lives on, and messages arrive in a mailbox while it trains (`WarmDevice`).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from torch import nn

from offbeat.core.errors import DeviceFault, InvalidInput, OffbeatError
from offbeat.data.samples import count
from offbeat.flower.compat import ProtoRecordDict, recorddict_from_proto, recorddict_to_proto
from offbeat.flower.device.mailbox import Mailbox, current_mailbox
from offbeat.flower.device.program import RECORDS, DeviceProgram, DeviceStore, Pace, PausedOrder, Reply
from offbeat.flower.experiment_source import AllSamples, SampleArrays, experiment_of
from offbeat.flower.protocol.codec import keep, kept, pack, unpack, vector
from offbeat.flower.protocol.messages import (
    MESSAGE_TYPE,
    NAME_LENGTH,
    Begin,
    Continue,
    FreshRequest,
    FreshResponse,
    Hello,
    Notice,
    NoticeReceived,
    Refusal,
    ToDevice,
)
from offbeat.running.assembly import ExperimentParts
from offbeat.training.factory import TrainerFactory, check_own
from offbeat.training.local_run import DeviceMemory
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
    """Make a ClientApp that trains your model on your data. `data` can tell nodes apart by `context.node_config`.

    `device` is the torch device: cpu, cuda, cuda:1, mps or auto. `device` in a node's config takes precedence.
    """

    def prepare(context: Context) -> PreparedDevice:
        x, y = data(context)
        network = model()
        check_own(task, network, x, y)
        torch_device = node_torch_device(context, device, "client_app(device=...)")
        factory = TrainerFactory(
            network=lambda: network,
            seed=0,
            task=task,
            torch_device=torch_device,
            precision=precision,
            secret_noise=True,
        )
        return PreparedDevice(factory.trainer(x, y, AllSamples(count(y))))

    return _client(prepare)


class PreparedDevice(NamedTuple):
    """What a device needs to work: its trainer, its pace if it is slowed down, and the names of all devices."""

    trainer: TorchTrainer
    pace: Pace | None = None
    names: Sequence[str] = ()


def identity(context: Context, names: Sequence[str]) -> tuple[int | None, str | None]:
    """Number and name of this node's device, as far as its config (`partition-id`, `name`) or `names` have them."""
    number, name = context.node_config.get("partition-id"), context.node_config.get("name")
    if name is not None and not 1 <= len(str(name)) <= NAME_LENGTH:
        raise InvalidInput(f"node-config name={str(name)[:40]!r}: it must have 1 to {NAME_LENGTH} characters")
    if number is not None:
        return int(number), None if name is None else str(name)
    return (names.index(name) if name in names else None), None if name is None else str(name)


def node_torch_device(context: Context, device: str, setting: str) -> str:
    """The torch device of this node: that of its config, else that of the app."""
    own = context.node_config.get("device")
    return torch_device_of(device, setting) if own is None else torch_device_of(str(own), "node-config device")


def experiment_client_app(**clock: Any) -> ClientApp:
    """Make the ClientApp of an experiment that is in the run config."""

    def prepare(context: Context) -> PreparedDevice:
        experiment = experiment_of(None, context.run_config)
        number = context.node_config.get("partition-id")
        if number is not None and not 0 <= int(number) < experiment.data.devices:
            raise InvalidInput(f"partition-id={number}: it must be 0 to {experiment.data.devices - 1}")
        parts = ExperimentParts.of(experiment)
        pace = parts.fleet().speeds.slice_seconds if experiment.deployment.paced else None
        torch_device = node_torch_device(context, experiment.execution.device, "execution.device")
        trainer = parts.trainer(torch_device, secret_noise=True)
        return PreparedDevice(trainer, pace, parts.device_names or ())

    return _client(prepare, **clock)


def _client(prepare: Callable[[Context], PreparedDevice], **clock: Any) -> ClientApp:
    app = ClientApp()
    warm: WarmDevice | None = None

    def program(context: Context, store: DeviceStore) -> DeviceProgram:
        prepared = prepare(context)
        number, name = identity(context, prepared.names)
        return DeviceProgram(prepared.trainer, store, number=number, name=name, pace=prepared.pace, **clock)

    @app.train(MESSAGE_TYPE.partition(".")[2])
    def reply_to(message: Message, context: Context) -> Message:
        nonlocal warm
        mailbox = current_mailbox()
        try:
            if mailbox is not None:
                if warm is None or warm.mailbox is not mailbox:
                    warm = WarmDevice(program(context, DeviceStore()), mailbox)
                return warm.reply_to(message)
            body = unpack(message.content, ToDevice)
            device = program(context, kept(context.state, RECORDS, DeviceStore()))
            reply = _reply(device, body, message)
            keep(context.state, device.store)
        except OffbeatError as error:
            reply = refusal(error)
        return Message(pack(*reply), reply_to=message)

    return app


def _reply(device: DeviceProgram, body: ToDevice, message: Message) -> Reply:
    content, size = message.content, device.trainer.layout.size
    match body:
        case Hello(measure=measure):
            return device.greet(body, vector(content, size) if measure else None)
        case Begin():
            return device.begin(body, vector(content, device.elements(body.order)))
        case Continue():
            return device.go_on(body)
        case FreshResponse(newer=newer):
            return device.answered(body, vector(content, size) if newer else None)
    raise DeviceFault(f"unexpected {type(body).__name__}: this is not a persistent node")


# Persistent nodes -----------------------------------------------------------------------------------------------------


WAIT_SECONDS = 3600.0
"""Longest wait of a device for the response to its request, in seconds."""


class WarmDevice:
    """A device whose process lives on. It works on an order from beginning to end, and receives messages meanwhile.

    The last message without a reply stands for the order. It gets a request for a fresh model as its reply, after which
    the response to that stands for the order, or the update. Notices arrive between two training steps, as do fresh
    models if the rule trains on after a request. The node keeps the device's memory under the run's identity, so that
    it outlives this process.
    """

    __slots__ = ("_kept_under", "_program", "_response", "mailbox")

    def __init__(self, program: DeviceProgram, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self._program = program
        self._kept_under = ""
        self._response: tuple[Message, FreshResponse] | None = None
        """The response to the device's request, if it has arrived while the device trained."""
        program.listen = self._listen

    def reply_to(self, message: Message) -> Message:
        """Do what a message asks for; return the reply to the last message of its order."""
        standing = [message]
        try:
            reply = self._reply(standing)
        except OffbeatError as error:
            reply = refusal(error)
        return Message(pack(*reply), reply_to=standing[-1])

    def _reply(self, standing: list[Message]) -> Reply:
        (message,) = standing
        body = unpack(message.content, ToDevice)
        match body:
            case Hello(measure=measure):
                size = self._program.trainer.layout.size
                return self._program.greet(body, vector(message.content, size) if measure else None)
            case Begin():
                return self._work(body, standing)
            case Notice(ticket=ticket):
                return NoticeReceived(ticket=ticket, slices=0, step=None, working=False), None
        raise DeviceFault(f"unexpected {type(body).__name__}: no order in progress")

    def _work(self, order: Begin, standing: list[Message]) -> Reply:
        program, layout, self._response = self._program, self._program.trainer.layout, None
        self._recall(f"{order.experiment}/{order.device}")
        reply = program.begin(order, vector(standing[-1].content, program.elements(order.order)))
        while isinstance(reply[0], FreshRequest):
            self.mailbox.reply(Message(pack(*reply), reply_to=standing[-1]))
            program.train_on(lambda: self._response is not None)
            message, response = self._response or self._awaited(order.ticket)
            self._response = None
            standing.append(message)
            reply = program.answered(response, vector(message.content, layout.size) if response.newer else None)
        if program.store.memory.latest_ticket == order.ticket:
            self.mailbox.keep(self._kept_under, _packed(program.store.memory))
        return reply

    def _recall(self, name: str) -> None:
        """Load the device's memory of this run."""
        if name != self._kept_under:
            self._kept_under = name
            self._program.store.memory = _unpacked(self.mailbox.recall(name))

    # Messages while training -----------------------------------------------------------------------------------------

    def _awaited(self, ticket: int) -> tuple[Message, FreshResponse]:
        """Wait for the response to a request; handle other messages that arrive before it."""
        while (message := self.mailbox.take(WAIT_SECONDS)) is not None:
            body = unpack(message.content, ToDevice)
            if isinstance(body, FreshResponse) and body.ticket == ticket:
                return message, body
            assert self._program.store.paused is not None
            self._handle(self._program.store.paused, None, message, body)
        raise DeviceFault(f"no response to its request for a fresh model within {WAIT_SECONDS:.0f} s")

    def _listen(self, paused: PausedOrder, step: int | None) -> bool:
        """Handle the messages that arrived while the device trained; return whether to train on, or merge a model."""
        while (message := self.mailbox.take()) is not None:
            self._handle(paused, step, message, unpack(message.content, ToDevice))
        return self._response is None or not self._response[1].newer

    def _handle(self, paused: PausedOrder, step: int | None, message: Message, body: ToDevice) -> None:
        ticket = paused.assignment.ticket
        match body:
            case Notice(ticket=meant, give_up=give_up):
                working = meant == ticket
                heard = NoticeReceived(ticket=meant, slices=paused.run.progress.slices, step=step, working=working)
                self.mailbox.reply(Message(pack(heard), reply_to=message))
                if working and give_up:
                    raise DeviceFault(f"the server has given up ticket {ticket}")
                if working:
                    paused.run.stop_soon()
            case FreshResponse(ticket=meant) if meant == ticket and paused.run.asking:
                self._response = message, body
            case Hello(measure=False):
                self.mailbox.reply(Message(pack(*self._program.greet(body, None)), reply_to=message))
            case _:  # such as a new order: the server has forgotten this one
                self.mailbox.put_back(message)
                raise DeviceFault(f"ticket {ticket} is given up: {type(body).__name__} arrived")


def refusal(error: OffbeatError) -> Reply:
    """The reply of a device that cannot do what it was asked."""
    return Refusal(reason=str(error)[:2000]), None


def _packed(memory: DeviceMemory) -> bytes:
    state = RecordDict()
    keep(state, memory)
    return bytes(recorddict_to_proto(state).SerializeToString(deterministic=True))


def _unpacked(content: bytes | None) -> DeviceMemory:
    """The memory that was kept; an empty one if there is none, or if it cannot be read."""
    try:
        state = recorddict_from_proto(ProtoRecordDict.FromString(content or b""))
        return kept(state, (DeviceMemory,), DeviceMemory())
    except (DecodeError, ValueError, KeyError, TypeError):
        return DeviceMemory()
