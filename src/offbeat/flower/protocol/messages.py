"""The messages between server and devices: plain records, checked field by field when they are read.

A Flower client only replies. So an order is worked on in *legs*: `Begin` starts it, every leg ends with a reply, and
the server's next message starts the next leg, until the reply is an `UpdateReply`.

    server   Hello      Begin(order, model)      Continue      FreshResponse(model)      Notice
    device   Greeting            CheckIn | FreshRequest | UpdateReply(parameters)        NoticeReceived

A device that cannot do what it is asked replies with a `Refusal`. Messages carry the ticket and the number of the leg,
so that a lost, repeated or invented one is recognised.

On a stock node the order rests between two legs. On a persistent node it does not, and the device never checks in: the
last message without a reply stands for the order, and gets a `FreshRequest` or an `UpdateReply` when there is one. A
`Notice` reaches the device between two training steps, and so does a `FreshResponse` if its rule does not wait for it.
"""

from typing import Annotated

from msgspec import Meta, Struct

from offbeat.core.orders import Order, Plain

PROTOCOL = 3
"""The version of this protocol; to be raised when a message changes. Both ends must have the same one."""
MESSAGE_TYPE = f"train.offbeat{PROTOCOL}"
"""The Flower message type of every message, so that a client app of another version is recognised."""
Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
NAME_LENGTH = 200
"""Longest name of a device."""
EXTRAS = 64
"""Most extras of an update."""
MERGES = 1024
"""Most models merged in one order."""


class Hello(Struct, frozen=True, kw_only=True, tag="hello"):
    """Ask a device for its greeting. With `measure` the model comes along, and the device measures a step on it."""

    batch_size: int | None
    measure: bool = False


class Begin(Struct, frozen=True, kw_only=True, tag="begin"):
    """Begin an order. The model comes along."""

    device: int
    ticket: int
    order: Order
    base: int
    seed: int
    received: int
    """The last ticket of this device that the server has received. Memory from later tickets is void."""
    leg_seconds: float | None = None
    """Check in after the first slice that ends later than this; None: never."""
    experiment: str = ""
    """The identity of the run, under which a persistent node keeps the device's memory."""


class Continue(Struct, frozen=True, kw_only=True, tag="continue"):
    """The response to `CheckIn`."""

    ticket: int
    leg: int
    stop: bool


class FreshResponse(Struct, frozen=True, kw_only=True, tag="fresh response"):
    """The response to `FreshRequest`. If there is a newer model, it comes along."""

    ticket: int
    leg: int
    version: int
    newer: bool
    stop: bool


class Notice(Struct, frozen=True, kw_only=True, tag="notice"):
    """Tell a device in training to stop soon, or at once if its order was given up."""

    ticket: int
    give_up: bool = False


ToDevice = Hello | Begin | Continue | FreshResponse | Notice


class Greeting(Struct, frozen=True, kw_only=True, tag="greeting"):
    """The device's number and name, if it has any, and its number of samples.

    If it was asked to measure, a vector as large as the model comes along, so that the server sees how long
    communication takes.
    """

    device: Annotated[int, Meta(ge=0, le=2**31)] | None
    samples: Annotated[int, Meta(ge=1, le=2**40)]
    elements: Count
    """Elements of its model."""
    speed: Annotated[float, Meta(ge=1e-6, le=1e15)] | None = None
    """Samples per second through one layer, forward and backward."""
    busy: Seconds = 0.0
    """Seconds that the measurement took."""
    interruptible: bool = False
    """Whether it receives notices while it trains."""
    name: Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH)] | None = None


class OrderReply(Struct, frozen=True, kw_only=True):
    """Progress of the device with an order."""

    ticket: Count
    leg: Count
    slices: Count
    steps: Count
    seconds: Seconds
    remembered: Count
    """The ticket whose memory this order was begun with; 0: none."""


class CheckIn(OrderReply, frozen=True, kw_only=True, tag="check in"):
    """The device is still training, and asks whether to stop."""


class FreshRequest(OrderReply, frozen=True, kw_only=True, tag="fresh request"):
    """The device asks for a newer model."""


class Merge(Struct, frozen=True, kw_only=True):
    """The position in an order at which the device merged a newer model without having waited for it."""

    version: Count
    slices: Count
    """Slices that were done."""
    step: Count
    """Steps of the next slice that were done."""


class UpdateReply(OrderReply, frozen=True, kw_only=True, tag="update"):
    """The update. The parameters that it covers come along."""

    samples: Annotated[int, Meta(ge=1, le=2**40)]
    loss: float | None
    squared_loss: Annotated[float, Meta(ge=0)] | None = None
    """The mean squared loss of single samples, if the order asks for it."""
    extras: Annotated[dict[Annotated[str, Meta(max_length=64)], Plain | None], Meta(max_length=EXTRAS)] = {}
    """None stands for a number that is not finite, which JSON cannot express."""
    merges: Annotated[list[Merge], Meta(max_length=MERGES)] = []
    """Newer models that arrived within a slice."""


class Refusal(Struct, frozen=True, kw_only=True, tag="refusal"):
    """The device cannot do what it was asked."""

    reason: Annotated[str, Meta(max_length=2000)]


class NoticeReceived(Struct, frozen=True, kw_only=True, tag="notice received"):
    """The reply to `Notice`: the device's position in its order when the notice arrived."""

    ticket: Count
    slices: Count
    """Slices that were done."""
    step: Count | None
    """Steps of the next slice that were done; None between two slices, or if the device did not work on the order."""
    working: bool
    """Whether the device worked on the order."""


FromDevice = Greeting | CheckIn | FreshRequest | UpdateReply | Refusal | NoticeReceived
