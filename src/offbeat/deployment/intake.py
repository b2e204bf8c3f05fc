"""What an answer of a device must satisfy before anything is made of it. What does not is a `DeviceFault`."""

from math import nan

import numpy as np
from flwr.app import RecordDict

from offbeat.algorithms import device_rule
from offbeat.core.books import Flight
from offbeat.core.coverage import coverage
from offbeat.core.errors import DeviceFault
from offbeat.core.messages import Done, Order, Outcome, Plain, Progress, Update
from offbeat.core.parameters import Layout, frozen
from offbeat.deployment.figures import Errand
from offbeat.deployment.mail import Sent
from offbeat.deployment.talk import CheckIn, Delivery, FromDevice, Leg, Question, Refusal
from offbeat.deployment.wire import unpack, vector


def read(content: RecordDict, sent: Sent, errand: Errand, order: Order) -> CheckIn | Question | Delivery | Refusal:
    """What the device says, if it is an answer to what it was sent."""
    talk: FromDevice = unpack(content, FromDevice)
    if isinstance(talk, Refusal):
        return talk
    if not isinstance(talk, Leg) or (talk.ticket, talk.leg) != (sent.ticket, sent.leg):
        said = f"{type(talk).__name__} of ticket {getattr(talk, 'ticket', '-')}, leg {getattr(talk, 'leg', '-')}"
        raise DeviceFault(f"{said}, where ticket {sent.ticket}, leg {sent.leg} was to come")
    if not errand.progress.slices <= talk.slices <= order.slices:
        raise DeviceFault(f"it claims {talk.slices} of {order.slices} slices after {errand.progress.slices}")
    if talk.remembered not in (0, errand.settled):
        raise DeviceFault(f"it remembers ticket {talk.remembered}, where the last that came of it is {errand.settled}")
    if not isinstance(talk, Delivery) and sent.leg > 2 * (order.slices + 1):
        raise DeviceFault(f"no delivery of {order.slices} slices after {sent.leg} legs")
    return talk


def update_of(
    talk: Delivery,
    content: RecordDict,
    flight: Flight,
    progress: Progress,
    samples: int,
    layout: Layout,
    norm_bound: float | None,
) -> Update:
    """What was delivered, with the parameters that did not come taken from the base."""
    order, base, extras = flight.order, flight.parameters, _extras(talk)
    if not device_rule(order.rule).admits(extras, order):
        raise DeviceFault(f"the rule {order.rule!r} does not say this with an upload: {talk.extras}")
    if talk.samples != samples:
        raise DeviceFault(f"it claims {talk.samples} samples, having greeted with {samples}")
    mask = coverage(order, talk.slices, layout)
    if mask is None:
        parameters = vector(content, layout.size)
    else:
        parameters = base.copy()
        parameters[mask.chosen] = vector(content, mask.count)
    if norm_bound is not None:
        norm = float(np.linalg.norm(parameters.astype(np.float64) - base))
        if not norm <= norm_bound:
            raise DeviceFault(f"a movement of norm {norm:.6g}, where {norm_bound:g} is allowed")
    loss = nan if talk.loss is None else talk.loss
    return Update(
        device=flight.device,
        ticket=flight.ticket,
        base=flight.base,
        base_parameters=base,
        samples=talk.samples,
        progress=progress,
        outcome=Done(Outcome(parameters=frozen(parameters), loss=loss, extras=extras)),
        mask=mask,
    )


def _extras(talk: Delivery) -> dict[str, Plain]:
    return {name: nan if value is None else value for name, value in talk.extras.items()}
