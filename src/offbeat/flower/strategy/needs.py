"""Which policies can do with client apps that train in one piece, from one message to its reply.

A policy is tried out before anything starts: a small session without numbers to speak of, in which devices deliver out
of turn. What it orders there, and what it says of itself, tells what it needs of a client.
"""

from collections.abc import Iterable
from itertools import count

import numpy as np

from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Effect, Event, Started, TimerFired, Uploaded
from offbeat.core.orders import KnownOutcome, LocalWork, Order, Outcome, Progress
from offbeat.core.parameters import Layout, frozen
from offbeat.core.policy import Policy
from offbeat.core.session import Session
from offbeat.core.state import OrderInFlight
from offbeat.core.terms import Proximal

TRIAL = LocalWork(epochs=8)
"""More than one epoch, so that a policy that wants fewer of some devices shows it."""
TURNS_PER_DEVICE = 3
MOST_TURNS = 300
CLIENT = "give the devices offbeat's own client app (offbeat.flower.client_app, see docs/how-to/deployment.md)"


def check_plain(policy: Policy, devices: int) -> None:
    """Raise InvalidInput if the policy needs more of its devices than a client app of Flower's does."""
    why = why_not(policy, devices)
    if why is not None:
        raise InvalidInput(
            f"{type(policy).__name__} {why}, but a Flower app trains in one piece on what it is sent: {CLIENT}"
        )


def why_not(policy: Policy, devices: int) -> str | None:
    """What the policy needs that a client app of Flower's does not do; None if it works with any."""
    if policy.plans:
        return "plans rounds with devices whose speed was measured, layer by layer"
    if policy.notifies:
        return "stops devices in training between two epochs"
    return why_not_plain(trial_orders(policy, devices), TRIAL.epochs)


def why_not_plain(orders: Iterable[Order], slices: int = 1) -> str | None:
    """What one of these orders asks for beyond a plain training of so many slices."""
    for order in orders:
        if order.rule != "plain":
            return "has devices ask for the fresh model while they train"
        if order.unit == "layer":
            return "trains layer by layer"
        if order.width != 1.0:
            return "gives devices a part of the model's width"
        if order.budget is not None:
            return "has devices stop training by their own clock"
        if order.remembers:
            return "has devices remember something from one training to the next"
        if any(not isinstance(term, Proximal) for term in order.terms):
            return "adds terms to the loss"
        if order.slices != slices:
            return "orders a number of epochs that differs from device to device"
    return None


def trial_orders(policy: Policy, devices: int) -> list[Order]:
    """What the policy orders in a short run in which the oldest order is delivered last but one."""
    session = Session(
        policy,
        parameters=frozen(np.zeros(1)),
        layout=Layout.flat(1),
        samples=np.ones(devices, dtype=np.int64),
        local=TRIAL,
        horizon=1e6,
    )
    orders: list[Order] = []

    def tell(event: Event, at: float) -> None:
        orders.extend(_orders(session.handle(event, at)))

    tell(Started(), 0.0)
    for turn in count(1):
        flying = list(session.in_flight.values())
        if turn > min(TURNS_PER_DEVICE * devices, MOST_TURNS) or session.finished is not None:
            break
        if flying and turn % 4:
            tell(_delivery(flying[min(1, len(flying) - 1)]), session.now)
        elif session.timers:
            name, due = min(session.timers.items(), key=lambda timer: timer[1])
            tell(TimerFired(name=name), max(due, session.now))
        elif not flying:
            break
    return orders


def _orders(effects: Iterable[Effect]) -> list[Order]:
    return [effect.order for effect in effects if isinstance(effect, OrderInFlight)]


def _delivery(order: OrderInFlight) -> Uploaded:
    progress = Progress(slices=order.order.slices, steps=order.order.slices, seconds=1.0)
    outcome = KnownOutcome(Outcome(parameters=frozen(order.parameters + np.float32(1e-3)), loss=1.0))
    return Uploaded(device=order.device, ticket=order.ticket, update=order.update(1, progress, outcome, None))
