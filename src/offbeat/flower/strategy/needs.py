"""Check that a policy works with stock client apps, which train from one message to its reply.

The check is a dry run before anything starts: a small session with a model of one parameter, in which updates arrive
out of order. The policy's orders there, and its own flags, show what it needs of a client.
"""

from collections.abc import Iterable
from itertools import count

import numpy as np

from offbeat.algorithms.about import about_of
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Effect, Event, Started, TimerFired, Uploaded
from offbeat.core.orders import KnownOutcome, LocalWork, Order, Outcome, Progress
from offbeat.core.parameters import Layout, frozen
from offbeat.core.policy import Policy
from offbeat.core.session import Session
from offbeat.core.state import OrderInFlight
from offbeat.core.terms import Proximal

TRIAL = LocalWork(epochs=8)
"""Several epochs, so that a policy that orders fewer of some devices shows it."""
TURNS_PER_DEVICE = 3
MOST_TURNS = 300
CLIENT = "use offbeat's client app (offbeat.flower.client_app, see docs/how-to/deployment.md)"


def check_plain(policy: Policy, devices: int) -> None:
    """Raise InvalidInput if the policy does not work with stock client apps."""
    why = why_not(policy, devices)
    if why is not None:
        without = " and ".join(f"{key} = {value}" for key, value in (about_of(policy).flower or {}).items())
        remedy = f"set {without}, or {CLIENT}" if without else CLIENT
        raise InvalidInput(f"{type(policy).__name__} {why}, which a stock Flower client app cannot do: {remedy}")


def why_not(policy: Policy, devices: int) -> str | None:
    """What the policy needs that stock client apps do not do; None if it works with them."""
    if policy.plans:
        return "plans rounds from the measured speed of devices"
    if policy.notifies:
        return "stops devices between two epochs"
    return why_not_plain(trial_orders(policy, devices), TRIAL.epochs)


def why_not_plain(orders: Iterable[Order], slices: int = 1) -> str | None:
    """What one of these orders needs beyond plain training of `slices` epochs; None if nothing."""
    for order in orders:
        if order.rule != "plain":
            return "has devices request the fresh model while they train"
        if order.unit == "layer":
            return "trains layer by layer"
        if order.unit == "step":
            return "orders numbers of steps"
        if order.width != 1.0:
            return "trains submodels"
        if order.budget is not None:
            return "has devices stop training when a time budget is used up"
        if order.remembers:
            return "has devices keep state from one order to the next"
        if any(not isinstance(term, Proximal) for term in order.terms):
            return "adds terms to the loss"
        if order.slices != slices:
            return "orders different numbers of epochs from different devices"
    return None


def trial_orders(policy: Policy, devices: int) -> list[Order]:
    """The orders of a policy in a short run in which the second-oldest order is always the next to be uploaded."""
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
