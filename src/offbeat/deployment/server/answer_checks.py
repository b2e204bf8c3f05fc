"""What an answer of a device must satisfy before anything is made of it. What does not is a `DeviceFault`."""

from math import nan

import numpy as np
from flwr.app import RecordDict

from offbeat.algorithms import device_rule
from offbeat.core.coverage import coverage
from offbeat.core.errors import DeviceFault
from offbeat.core.in_flight import OrderInFlight
from offbeat.core.orders import KnownOutcome, Order, Outcome, Plain, Progress, Update
from offbeat.core.parameters import Layout, frozen
from offbeat.deployment.protocol.codec import unpack, vector
from offbeat.deployment.protocol.messages import CheckIn, Delivery, FromDevice, Leg, Question, Refusal
from offbeat.deployment.server.accounts import PendingOrder
from offbeat.deployment.server.transport import SentMessage


def read(
    content: RecordDict, sent: SentMessage, pending: PendingOrder, order: Order
) -> CheckIn | Question | Delivery | Refusal:
    """What the device says, if it is an answer to what it was sent."""
    body: FromDevice = unpack(content, FromDevice)
    if isinstance(body, Refusal):
        return body
    if not isinstance(body, Leg) or (body.ticket, body.leg) != (sent.ticket, sent.leg):
        said = f"{type(body).__name__} of ticket {getattr(body, 'ticket', '-')}, leg {getattr(body, 'leg', '-')}"
        raise DeviceFault(f"{said}, where ticket {sent.ticket}, leg {sent.leg} was to come")
    if not pending.progress.slices <= body.slices <= order.slices:
        raise DeviceFault(f"it claims {body.slices} of {order.slices} slices after {pending.progress.slices}")
    if body.remembered not in (0, pending.settled):
        raise DeviceFault(f"it remembers ticket {body.remembered}, where the last that came of it is {pending.settled}")
    if not isinstance(body, Delivery) and sent.leg > 2 * (order.slices + 1):
        raise DeviceFault(f"no delivery of {order.slices} slices after {sent.leg} legs")
    return body


def update_of(
    body: Delivery,
    content: RecordDict,
    flight: OrderInFlight,
    progress: Progress,
    samples: int,
    layout: Layout,
    norm_bound: float | None,
) -> Update:
    """What was delivered, with the parameters that did not come taken from the base."""
    order, base, extras = flight.order, flight.parameters, _extras(body)
    if not device_rule(order.rule).admits(extras, order):
        raise DeviceFault(f"the rule {order.rule!r} does not say this with an upload: {body.extras}")
    if body.samples != samples:
        raise DeviceFault(f"it claims {body.samples} samples, having greeted with {samples}")
    mask = coverage(order, body.slices, layout)
    if mask is None:
        parameters = vector(content, layout.size)
    else:
        parameters = base.copy()
        parameters[mask.chosen] = vector(content, mask.count)
    if norm_bound is not None:
        norm = float(np.linalg.norm(parameters.astype(np.float64) - base))
        if not norm <= norm_bound:
            raise DeviceFault(f"a movement of norm {norm:.6g}, where {norm_bound:g} is allowed")
    loss = nan if body.loss is None else body.loss
    return Update(
        device=flight.device,
        ticket=flight.ticket,
        base=flight.base,
        base_parameters=base,
        samples=body.samples,
        progress=progress,
        outcome=KnownOutcome(Outcome(parameters=frozen(parameters), loss=loss, extras=extras)),
        mask=mask,
    )


def _extras(body: Delivery) -> dict[str, Plain]:
    return {name: nan if value is None else value for name, value in body.extras.items()}
