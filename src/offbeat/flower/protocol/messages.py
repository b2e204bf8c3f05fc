"""What server and devices say to each other: plain records, checked field by field when they are read.

A device only ever answers. An order is therefore worked on in *legs*: `Begin` starts it, and every leg ends with an
answer that the server replies to with the next message, until the answer is a `Delivery`.

    server   Hello      Begin(order, model)                Continue       Answer(model)      Notice
    device   Greeting            CheckIn | Question | Delivery(model)                        Heard

Messages carry the ticket and the number of the leg, so that what was lost, repeated or invented is seen for what it is.

On a node that only answers, the order rests between two legs. On a warm node it does not: the message that the device
has not answered yet is the one that stands for it, to be answered with a question or with the delivery when there is
one. A `Notice` reaches it in the midst of its training, between two steps, and so does the `Answer` to a question if
its rule does not wait for it. So it never has to check in.
"""

from typing import Annotated

from msgspec import Meta, Struct

from offbeat.core.orders import Order, Plain

MESSAGE_TYPE = "train.offbeat"
"""What Flower is told about every message of ours."""
Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
EXTRAS = 64
"""Most figures that an upload may have beside its parameters."""
MERGES = 1024
"""Most models that a device may have merged in one order."""


class Hello(Struct, frozen=True, kw_only=True, tag="hello"):
    """Who are you? With `measure` the model comes along: how long does a step on it take you?"""

    batch_size: int | None
    measure: bool = False


class Begin(Struct, frozen=True, kw_only=True, tag="begin"):
    """Work on this order; the model comes with it."""

    device: int
    ticket: int
    order: Order
    base: int
    seed: int
    received: int
    """The last ticket of this device that the server has received: what the device has remembered since is void."""
    leg_seconds: float | None = None
    """Check in between two slices after so long; None: no notice will come, or it will come by itself, so train on."""
    experiment: str = ""
    """The identity of the run's experiment, under which a warm node keeps what the device remembers."""


class Continue(Struct, frozen=True, kw_only=True, tag="go on"):
    """The answer to `CheckIn`."""

    ticket: int
    leg: int
    stop: bool


class Answer(Struct, frozen=True, kw_only=True, tag="answer"):
    """The answer to `Question`. If there is a newer model, it comes along."""

    ticket: int
    leg: int
    version: int
    newer: bool
    stop: bool


class Notice(Struct, frozen=True, kw_only=True, tag="notice"):
    """Tell a device in training to stop soon, or, if nobody waits for it any more, at once."""

    ticket: int
    give_up: bool = False


ToDevice = Hello | Begin | Continue | Answer | Notice


class Greeting(Struct, frozen=True, kw_only=True, tag="greeting"):
    """Which device this is, if it knows, and what it holds. If it was to measure, a vector like the model comes along,
    so that the server sees what communication takes."""

    device: Annotated[int, Meta(ge=0, le=2**31)] | None
    samples: Annotated[int, Meta(ge=1, le=2**40)]
    elements: Count
    """How many elements its model has."""
    speed: Annotated[float, Meta(ge=1e-6, le=1e15)] | None = None
    """Samples per second through one layer, forward and backward."""
    busy: Seconds = 0.0
    """Seconds that measuring took."""
    interruptible: bool = False
    """Whether it hears of a notice while it trains."""


class Leg(Struct, frozen=True, kw_only=True):
    """How far the device has come."""

    ticket: Count
    leg: Count
    slices: Count
    steps: Count
    seconds: Seconds
    remembered: Count
    """The ticket whose memory this order was begun with; 0: none."""


class CheckIn(Leg, frozen=True, kw_only=True, tag="check in"):
    """A device says that it is still training."""


class Question(Leg, frozen=True, kw_only=True, tag="question"):
    """Is there a newer model?"""


class Merge(Struct, frozen=True, kw_only=True):
    """Where in its order a device was when it merged a newer model for which it had not waited."""

    version: Count
    slices: Count
    """Slices that were done."""
    step: Count
    """Steps of the next slice that were done."""


class Delivery(Leg, frozen=True, kw_only=True, tag="delivery"):
    """What there is; the parameters that count come along."""

    samples: Annotated[int, Meta(ge=1, le=2**40)]
    loss: float | None
    extras: Annotated[dict[Annotated[str, Meta(max_length=64)], Plain | None], Meta(max_length=EXTRAS)] = {}
    """None is a number that is not finite: JSON has none."""
    merges: Annotated[list[Merge], Meta(max_length=MERGES)] = []
    """Newer models that came in the midst of its training."""


class Refusal(Struct, frozen=True, kw_only=True, tag="refusal"):
    """The device cannot do this, and says why."""

    reason: Annotated[str, Meta(max_length=2000)]


class Heard(Struct, frozen=True, kw_only=True, tag="heard"):
    """The answer to `Notice`: where in its order the device was when it heard."""

    ticket: Count
    slices: Count
    """Slices that were done."""
    step: Count | None
    """Steps of the next slice that were done; None between two slices, and if it was not working on the order."""
    working: bool
    """Whether it was working on the order."""


FromDevice = Greeting | CheckIn | Question | Delivery | Refusal | Heard
