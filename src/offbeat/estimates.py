"""What the theory of delayed gradients (`offbeat.theory`) needs to know, estimated from an experiment.

Delays come from its fleet, constants from a few gradients of its model on its clients' data. Every constant is an
extreme of what was seen on a short path, so a sample and not a bound.
"""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from offbeat.algorithms import Audg
from offbeat.config import Experiment
from offbeat.core.parameters import Vector
from offbeat.core.streams import stream
from offbeat.experiment import simulation_of
from offbeat.fleet import BernoulliFleet
from offbeat.simulation.engine import Simulation
from offbeat.theory import Constants, Delays

CLIENTS = 8
"""Gradients are taken on so many clients at most, drawn at random."""
SAMPLES = 128
"""And on so many samples of each."""
WARM_UP = 30
"""Steps of gradient descent, of all clients together and then of each one alone, whose ends stand for the optima."""
ORDERS = 200
"""Orders of each client that are timed, where delays have no closed form."""

Watch = Callable[[float], None]
"""Told how much is done, from 0 to 1."""


class Estimate(NamedTuple):
    constants: Constants
    convex: bool
    """Whether the loss looked convex all along; if not, mu counts as 0."""
    clients: int
    """On whose data the constants were estimated."""


def median_order_seconds(experiment: Experiment) -> float:
    """The median time of an order: in an iteration of that length about half of the devices deliver."""
    with simulation_of(experiment) as simulation:
        return float(np.median(order_seconds(simulation, ORDERS // 10)))


def order_seconds(simulation: Simulation, orders: int) -> npt.NDArray[np.float64]:
    """The time there and back of orders, [clients, orders]; failures are left out."""
    session, fleet = simulation.session, simulation.fleet
    order, size = session.order(), session.layout.bytes
    return np.array(
        [
            [
                fleet.links.down_seconds(device, size)
                + sum(fleet.speeds.slice_seconds(device, ticket, order))
                + fleet.links.up_seconds(device, size)
                for ticket in range(1, orders + 1)
            ]
            for device in range(session.devices)
        ]
    )


def delays_of(experiment: Experiment, simulation: Simulation) -> Delays:
    """In closed form for the Bernoulli fleet, from timed orders for others."""
    policy, session = experiment.algorithm.policy, simulation.session
    assert isinstance(policy, Audg)
    weights = np.array([policy.weight(device, session.state, session) for device in range(session.devices)])
    settings = experiment.fleet.settings
    if isinstance(settings, BernoulliFleet):
        return Delays.bernoulli(settings.probabilities(session.devices), weights)
    taken = np.ceil(order_seconds(simulation, ORDERS) / policy.iteration_seconds - 1e-9)
    return Delays.of_orders(np.maximum(taken, 1.0), weights)


def estimate(simulation: Simulation, tell: Watch) -> Estimate:
    """L, mu, G, R and phi from gradient descent of all clients together, then of each one alone.

    L and mu are the largest and smallest curvature <dg, dw> / |dw|^2, or |dg| / |dw| for L, between neighbouring models
    of a path; G is the longest gradient seen. The models at the ends of the paths stand for w* and w_i*, R is the
    largest distance from the common path to its end, and phi that of a client's end to the common one.
    """
    session = simulation.session
    chosen = stream(0, "advise").choice(session.devices, min(CLIENTS, session.devices), replace=False)
    clients = sorted(int(client) for client in chosen)
    weights = np.array([session.samples(client) for client in clients], dtype=np.float64)
    rate = np.float32(session.order().learning_rate)
    seen = _Seen()
    total = WARM_UP * 2 * len(clients)

    def gradient(client: int, model: Vector) -> Vector:
        """On always the same samples of this client."""
        size = min(SAMPLES, session.samples(client))
        found = simulation.executor.loss_and_gradient(model, client, 0, 0, size)[1]
        seen.count += 1
        tell(seen.count / total)
        return found

    path = [session.parameters]
    before: dict[int, Vector] = {}
    for _ in range(WARM_UP):
        gradients = {client: gradient(client, path[-1]) for client in clients}
        for client, found in gradients.items():
            seen.note(found, before.get(client), path)
        before = gradients
        mean = np.average(np.stack(list(gradients.values())), axis=0, weights=weights).astype(np.float32)
        path.append(path[-1] - rate * mean)
    optimum = path[-1]
    ends = []
    for client in clients:
        own = [session.parameters]
        last: Vector | None = None
        for _ in range(WARM_UP):
            found = gradient(client, own[-1])
            seen.note(found, last, own)
            own.append(own[-1] - rate * found)
            last, own = found, own[-2:]
        ends.append(own[-1])
    radius = max(_length(model - optimum) for model in path)
    constants = Constants(
        smoothness=seen.steepest,
        convexity=min(max(seen.flattest, 0.0), seen.steepest),
        gradient=seen.longest,
        radius=radius,
        heterogeneity=max(_length(end - optimum) for end in ends),
    )
    return Estimate(constants, seen.flattest > 0, len(clients))


class _Seen:
    """The extremes of what was seen."""

    def __init__(self) -> None:
        self.count = 0
        self.longest = 0.0
        self.steepest = 0.0
        self.flattest = float("inf")

    def note(self, gradient: Vector, before: Vector | None, path: Sequence[Vector]) -> None:
        """A gradient at the end of a path, and the one before it there."""
        self.longest = max(self.longest, _length(gradient))
        if before is None:
            return
        step, change = (path[-1] - path[-2]).astype(np.float64), (gradient - before).astype(np.float64)
        square = float(step @ step)
        if square > 0:
            self.steepest = max(self.steepest, _length(change) / sqrt(square))
            self.flattest = min(self.flattest, float(change @ step) / square)


def _length(vector: npt.NDArray[np.floating]) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))
