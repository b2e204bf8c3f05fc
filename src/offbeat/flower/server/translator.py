"""Between what the driver says and hears, and what devices hear and say: messages of offbeat's own, or another's."""

from typing import Any, Protocol

from flwr.app import RecordDict

from offbeat.core.orders import Update
from offbeat.flower.protocol.messages import CheckIn, Delivery, Question, Refusal
from offbeat.flower.server.answer_checks import Expected, read_answer, read_update
from offbeat.flower.server.transport import OwnPacking, Packing


class Translator(Packing, Protocol):
    """What a driver needs of the language that its devices speak. Whatever is wrong with an answer is a DeviceFault."""

    def answer(self, content: RecordDict, expected: Expected) -> CheckIn | Question | Delivery | Refusal:
        """What the device says, if it is an answer to what it was sent."""
        ...

    def update(self, body: Delivery, content: RecordDict, expected: Expected) -> Update:
        """The update that was delivered."""
        ...

    def resolved(self, ticket: int, used: bool, version: int) -> None:
        """A delivery went into this version, or was given up."""
        ...

    def snapshot(self) -> Any:
        """Plain data that `restore` takes."""
        ...

    def restore(self, saved: Any) -> None:
        """Go on from a snapshot."""
        ...


class OwnMessages(OwnPacking):
    """The language of offbeat's own devices, who need nothing to be kept for them."""

    def answer(self, content: RecordDict, expected: Expected) -> CheckIn | Question | Delivery | Refusal:
        """What the device says, if it is an answer to what it was sent."""
        return read_answer(content, expected)

    def update(self, body: Delivery, content: RecordDict, expected: Expected) -> Update:
        """The update that was delivered."""
        return read_update(body, content, expected)

    def resolved(self, ticket: int, used: bool, version: int) -> None:
        """Nothing waits for this."""

    def snapshot(self) -> Any:
        """Nothing, since this translator remembers nothing."""
        return None

    def restore(self, saved: Any) -> None:
        """Do nothing, since nothing was kept."""
