"""A device whose process lives on: it works on an order from its beginning to its end, and hears of news on the way.

The same program as in legs (`device.legs`), but nothing is put away in between. The message that the device has not
answered yet stands for the order: it is answered with a question, and then the next one stands for it, or with the
delivery. Notices reach it between two steps of its training, and fresh models too if its rule trains on after it has
asked. What the device remembers is kept by the node under the experiment's identity, so it outlives the run.
"""

from flwr.app import Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from offbeat.core.errors import DeviceFault, OffbeatError
from offbeat.flower.device.legs import DeviceProgram, PausedOrder, Reply
from offbeat.flower.device.mailbox import Mailbox
from offbeat.flower.protocol.codec import keep, kept, pack, unpack, vector
from offbeat.flower.protocol.messages import Answer, Begin, Heard, Hello, Notice, Question, Refusal, ToDevice
from offbeat.training.local_training import DeviceMemory

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
