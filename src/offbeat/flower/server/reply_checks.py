"""The checks that a reply must pass before it becomes an event. A reply that fails one is a `DeviceFault`.

All checks, in this order:

1. Flower can decode the message (`transport`), and its order was not given up before (`in_time`).
2. It is a message of offbeat, of bounded length, with fields of the right type and in range (`protocol.codec.unpack`).
3. `OF_EVERY_REPLY`: ticket and leg, progress, memory, steps, number of legs. Claimed seconds are capped, not refused.
4. `OF_AN_UPDATE`: merged versions, extras, number of samples.
5. The parameters have exactly the size that the order calls for (`protocol.codec.vector`), and have not moved too far.
6. The device holds the ticket and may do this now (`core.session`); the update belongs to the order, and its numbers
   are finite (`core.state`).

Greetings are checked in `membership.Membership.admit`.
"""

from collections.abc import Callable
from math import inf, isfinite, nan, sqrt
from typing import Any, Protocol

import numpy as np
from flwr.app import RecordDict
from msgspec import Struct

from offbeat.algorithms import device_rule
from offbeat.core.combining import RunningMedian
from offbeat.core.coverage import coverage
from offbeat.core.errors import DeviceFault, Diverged
from offbeat.core.orders import KnownOutcome, Outcome, Plain, Progress, Update
from offbeat.core.parameters import Layout, Vector, distance, dot, frozen
from offbeat.core.state import OrderInFlight
from offbeat.flower.protocol.codec import unpack, vector
from offbeat.flower.protocol.messages import CheckIn, FreshRequest, FromDevice, Merge, OrderReply, Refusal, UpdateReply
from offbeat.flower.server.transport import OwnPacking, Packing, SentMessage
from offbeat.results.rows import Span

MOST_STEPS = 10**7
"""Most steps of an order: a policy may sum a learning-rate schedule over them."""
FIRST_FACTOR = 1e6
"""Bound of every update relative to the base: wide enough for a regression that starts at zero, and far below
the numbers that overflow."""
ABSURD = 1e15
"""A model with an element beyond this overflows in the training of any device."""


class PendingOrder(Struct, kw_only=True, eq=False):
    """An order in flight: what the server knows of it in addition to the session."""

    device: int
    ticket: int
    base: int
    sent: float
    samples: int
    bytes_down: int
    """Bytes of the models sent to the device for this order."""
    received: int
    """The last ticket received from the device before; its memory is the one to begin with."""
    leg: int = 0
    """Messages sent for this order."""
    progress: Progress = Progress()
    remembered: int = 0
    """The ticket whose memory the device began this order with; 0: none."""
    fresh: list[int] = []
    """Newer versions sent to the device."""
    merges: list[Merge] = []
    """Where in its training the device merged newer versions without waiting for them."""
    noticed: float | None = None
    """When a stop notice was sent to the device."""
    given_up: bool = False
    """Whether it has failed, and the session is about to be told."""
    norm: float | None = None
    """The distance of its update from the base."""

    def span(self, landed: float, outcome: str, bytes_up: int = 0) -> Span:
        """The order's line in the timeline. The server assumes that the training came last, before the upload."""
        seconds = self.progress.seconds
        return Span(
            device=self.device,
            ticket=self.ticket,
            base=self.base,
            sent=self.sent,
            arrived=max(self.sent, landed - seconds),
            landed=landed,
            slices=self.progress.slices,
            outcome=outcome,
            samples=self.samples,
            seconds=seconds,
            bytes_down=self.bytes_down,
            bytes_up=bytes_up,
            noticed=self.noticed,
        )


class Expected(Struct, frozen=True, kw_only=True, eq=False):
    """What the server knows of a reply before it is read."""

    sent: SentMessage
    pending: PendingOrder
    in_flight: OrderInFlight
    samples: int
    """The number of samples in the device's greeting."""
    layout: Layout
    limits: "NormLimits"
    now: float
    """When the reply arrived."""


class NormLimits(Struct, frozen=True, kw_only=True, eq=False):
    """How far an update may be from its base."""

    norm_bound: float | None
    """`deployment.norm_bound`."""
    norm_factor: float
    """`deployment.norm_factor`."""
    norms: RunningMedian
    finite: bool = True
    """Whether its numbers must be finite."""


def in_time(sent: SentMessage) -> None:
    """Check that the order was not given up before the reply came."""
    if sent.given_up:
        raise DeviceFault(f"the reply for ticket {sent.ticket} came after its deadline")


def belongs_to_what_was_sent(body: OrderReply, expected: Expected) -> None:
    """Check that ticket and leg are those of the message that was sent."""
    if (body.ticket, body.leg) != (expected.sent.ticket, expected.sent.leg):
        raise _unexpected(body, expected)


def has_come_forward(body: OrderReply, expected: Expected) -> None:
    """Check that the slices done have not decreased, and are no more than were ordered."""
    before, ordered = expected.pending.progress.slices, expected.in_flight.order.slices
    if not before <= body.slices <= ordered:
        raise DeviceFault(f"it claims {body.slices} slices done, after {before} and of {ordered} ordered")


def remembers_a_received_ticket(body: OrderReply, expected: Expected) -> None:
    """Check that the device began with the memory of the last ticket received from it, or with none."""
    received = expected.pending.received
    if body.remembered not in (0, received):
        raise DeviceFault(f"it remembers ticket {body.remembered}, but the last one received from it is {received}")


def comes_to_an_end(body: OrderReply, expected: Expected) -> None:
    """Check that the device uploads after at most as many legs as a correct one can need."""
    slices, leg = expected.in_flight.order.slices, expected.sent.leg
    if not isinstance(body, UpdateReply) and leg > 2 * (slices + 1):
        raise DeviceFault(f"no update of {slices} slices after {leg} legs")


def has_merged_what_it_was_sent(body: UpdateReply, expected: Expected) -> None:
    """Check that the versions merged within slices were sent to the device, in this order and before the end."""
    places = [(merge.slices, merge.step) for merge in body.merges]
    sent = iter(expected.pending.fresh)
    if not all(merge.version in sent for merge in body.merges) or sorted([*places, (body.slices, 0)])[:-1] != places:
        raise DeviceFault(f"it claims to have merged {body.merges}, but was sent the versions {expected.pending.fresh}")


def has_extras_of_its_rule(body: UpdateReply, expected: Expected) -> None:
    """Check that the device rule admits the extras, on which the policy relies."""
    order = expected.in_flight.order
    if not device_rule(order.rule).admits(_extras(body), order):
        raise DeviceFault(f"the rule {order.rule!r} does not allow these extras: {body.extras}")


def has_the_samples_of_its_greeting(body: UpdateReply, expected: Expected) -> None:
    """Check that the device claims no other weight than when it joined."""
    if body.samples != expected.samples:
        raise DeviceFault(f"it claims {body.samples} samples, but {expected.samples} in its greeting")


def claims_possible_steps(body: OrderReply, expected: Expected) -> None:
    """Check that the device claims at most one step per sample of each epoch, and no absurd number."""
    order = expected.in_flight.order
    possible = min(order.slices * (1 if order.unit == "step" else expected.samples), MOST_STEPS)
    if body.steps > possible:
        raise DeviceFault(f"it claims {body.steps} steps, more than the {possible} that its order can take")


def has_not_moved_too_far(parameters: Vector, expected: Expected) -> None:
    """Check the norm of an update, its Euclidean distance from the base, and note it.

    It is at most `deployment.norm_bound`, if that is set, and at most `deployment.norm_factor` times the median of the
    norms that devices reported last; in any case at most `FIRST_FACTOR` times the norm of the base, or of a vector of
    ones. Numbers that are not finite are left to the session, unless the base is to blame.
    """
    base, limits = expected.in_flight.parameters, expected.limits
    norm = distance(parameters, base)
    if not isfinite(norm):
        largest = float(np.abs(base).max())
        if largest > ABSURD:
            raise Diverged(f"version {expected.in_flight.base} has elements up to {largest:.3g}, too large to train")
        return
    expected.pending.norm = norm
    most = inf if limits.norm_factor == inf else FIRST_FACTOR * max(sqrt(dot(base, base)), sqrt(len(base)))
    if norm > most:  # it does not vote: two such devices among the first three would set the median
        raise DeviceFault(f"the update has norm {norm:.6g}, above {most:.6g}, which no training explains")
    median = limits.norms.median
    limits.norms.note(expected.sent.device, norm)
    if limits.norm_bound is not None and norm > limits.norm_bound:
        raise DeviceFault(f"the update has norm {norm:.6g}, above the bound {limits.norm_bound:g}")
    if median is not None and norm > limits.norm_factor * median:
        raise DeviceFault(
            f"the update has norm {norm:.6g}, more than {limits.norm_factor:g} times the median {median:.6g}"
        )


OF_EVERY_REPLY: tuple[Callable[[OrderReply, Expected], None], ...] = (
    belongs_to_what_was_sent,
    has_come_forward,
    remembers_a_received_ticket,
    claims_possible_steps,
    comes_to_an_end,
)
OF_AN_UPDATE: tuple[Callable[[UpdateReply, Expected], None], ...] = (
    has_merged_what_it_was_sent,
    has_extras_of_its_rule,
    has_the_samples_of_its_greeting,
)


def _unexpected(body: Struct, expected: Expected) -> DeviceFault:
    said = f"{type(body).__name__} for ticket {getattr(body, 'ticket', '-')}, leg {getattr(body, 'leg', '-')}"
    return DeviceFault(f"{said}: expected ticket {expected.sent.ticket}, leg {expected.sent.leg}")


def _extras(body: UpdateReply) -> dict[str, Plain]:
    return {name: nan if value is None else value for name, value in body.extras.items()}


# Reading replies ------------------------------------------------------------------------------------------------------


class Translator(Packing, Protocol):
    """Reads the replies of one kind of client app. Every method raises DeviceFault for a reply that fails a check."""

    def reply(self, content: RecordDict, expected: Expected) -> CheckIn | FreshRequest | UpdateReply | Refusal:
        """The message in a reply, if it belongs to what was sent."""
        ...

    def update(self, body: UpdateReply, content: RecordDict, expected: Expected) -> Update:
        """The update that came with a reply."""
        ...

    def resolved(self, ticket: int, used: bool, version: int) -> None:
        """An update was used for this version, or discarded."""
        ...

    def snapshot(self) -> Any:
        """Plain data that `restore` takes."""
        ...

    def restore(self, saved: Any) -> None:
        """Go on from a snapshot."""
        ...


class OwnMessages(OwnPacking):
    """The messages of offbeat's client app. It has no state."""

    def reply(self, content: RecordDict, expected: Expected) -> CheckIn | FreshRequest | UpdateReply | Refusal:
        """The message in a reply, if it passes the checks."""
        body: FromDevice = unpack(content, FromDevice)
        if isinstance(body, Refusal):
            return body
        if not isinstance(body, CheckIn | FreshRequest | UpdateReply):
            raise _unexpected(body, expected)
        for check in OF_EVERY_REPLY:
            check(body, expected)
        return body

    def update(self, body: UpdateReply, content: RecordDict, expected: Expected) -> Update:
        """The update that came with a reply. Elements that did not come are those of the base."""
        for check in OF_AN_UPDATE:
            check(body, expected)
        given = expected.in_flight
        mask = coverage(given.order, body.slices, expected.layout)
        if mask is None:
            parameters = vector(content, expected.layout.size)
        else:
            parameters = given.parameters.copy()
            parameters[mask.chosen] = vector(content, mask.count)
        has_not_moved_too_far(parameters, expected)
        loss = nan if body.loss is None else body.loss
        squared = nan if body.squared_loss is None else body.squared_loss
        outcome = Outcome(parameters=frozen(parameters), loss=loss, squared_loss=squared, extras=_extras(body))
        return given.update(body.samples, expected.pending.progress, KnownOutcome(outcome), mask)

    def resolved(self, ticket: int, used: bool, version: int) -> None:
        """Do nothing."""

    def snapshot(self) -> Any:
        """None: there is no state."""
        return None

    def restore(self, saved: Any) -> None:
        """Do nothing."""
