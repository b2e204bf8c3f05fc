"""Estimate the delays and constants in the bounds on delayed gradients from an experiment.

Delays come from its fleet, constants from gradient descent of its model on its clients' data. Every constant is an
observed extreme, not a bound.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from offbeat.algorithms import Audg
from offbeat.comparison.delayed_gradients.bounds import BoundConstants, Delays
from offbeat.core.parameters import Vector
from offbeat.core.streams import stream
from offbeat.data import Partition
from offbeat.data.samples import count
from offbeat.experiment.schema import Experiment
from offbeat.fleet import BernoulliFleet
from offbeat.running.assembly import ExperimentParts
from offbeat.simulation.engine import Simulation
from offbeat.simulation.run import simulation_of

CLIENTS = 8
"""Most clients that gradients are computed for, drawn at random."""
SAMPLES = 128
"""Most samples per client that gradients are computed on.

They are the first in one permutation of all samples, so that clients with the same samples use the same."""
CONVERGED = 0.02
"""Descent ends when the gradient norm is this fraction of the first one; its end is taken as the optimum."""
TRIALS = 300
"""Most trial steps of a descent; one that needs more has not converged."""
GROWTH = 1.25
"""Factor of the step size after an accepted step, because L changes along the path."""
ORDERS = 200
"""Orders per client that are timed, where delays have no closed form."""

OnFraction = Callable[[float], None]
"""A function that is given the fraction that is done (0 to 1)."""


class BoundEstimate(NamedTuple):
    """The estimated constants of the bounds, and the quality of the estimate."""

    constants: BoundConstants
    convex: bool
    """Whether the loss was convex between all observed models; if not, mu is 0."""
    clients: int
    """Number of clients whose data were used."""
    remaining: float
    """Gradient norm at the common optimum, relative to the first one."""
    remaining_alone: float
    """Largest gradient norm of a client at its own optimum, relative to its first one."""

    @property
    def converged(self) -> bool:
        """Whether all descents converged; if not, R and phi are lower bounds."""
        return max(self.remaining, self.remaining_alone) <= CONVERGED


def median_order_seconds(experiment: Experiment) -> float:
    """The median time of an order; in an iteration of this length about half of the devices deliver."""
    with simulation_of(experiment) as simulation:
        return float(np.median(order_seconds(simulation, ORDERS // 10)))


def order_seconds(simulation: Simulation, orders: int) -> npt.NDArray[np.float64]:
    """Times of orders from dispatch to upload, [clients, orders], without availability and failures."""
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


def delays_of(experiment: Experiment, simulation: Simulation, *, reused: bool = False) -> Delays:
    """The delays of a fleet: in closed form for the Bernoulli fleet, from timed orders for others.

    With `reused` they are the ages of the gradients that PSURDG applies.
    """
    policy, session = experiment.algorithm.policy, simulation.session
    assert isinstance(policy, Audg)
    weights = np.array([policy.weight(device, session.state, session) for device in range(session.devices)])
    settings = experiment.fleet.settings
    if isinstance(settings, BernoulliFleet):
        return Delays.bernoulli(settings.probabilities(session.devices), weights, reused=reused)
    taken = np.ceil(order_seconds(simulation, ORDERS) / policy.iteration_seconds - 1e-9)
    return Delays.of_orders(np.maximum(taken, 1.0), weights, reused=reused)


def estimate(experiment: Experiment, weights: npt.NDArray[np.float64], tell: OnFraction) -> BoundEstimate:
    """L, mu, G, R and phi from gradient descent on sum_i lambda_i f_i, then on each f_i alone.

    L and mu are the largest |dg| / |dw| and the smallest <dg, dw> / |dw|^2 of a client between successive models; G is
    the largest gradient norm of a client along the path. The ends of the descents are taken as w* and w_i*: R is the
    distance from the first model to w*, and phi the largest from w* to a w_i*.
    """
    parts = ExperimentParts.of(experiment)
    rank = stream(experiment.seed, "advise-samples").permutation(count(parts.dataset.train_y))
    held = [parts.partition.samples(device) for device in range(parts.partition.devices)]
    few = Partition.of([own[np.argsort(rank[own])[:SAMPLES]] for own in held])
    trainer = replace(parts, partition=few).trainer()
    counting = np.flatnonzero((weights > 0) & (few.sizes > 0))
    chosen = stream(0, "advise").choice(counting, min(CLIENTS, len(counting)), replace=False)
    clients = sorted(int(client) for client in chosen)
    seen = _Seen()

    def look(group: Sequence[int], model: Vector) -> _Point:
        found = [trainer.loss_and_gradient(model, client, 0, 0, None) for client in group]
        shares = weights[list(group)] / weights[list(group)].sum()
        gradients = np.stack([gradient for _, gradient in found])
        mean = np.average(gradients.astype(np.float64), axis=0, weights=shares).astype(np.float32)
        return _Point(model, float(shares @ [loss for loss, _ in found]), gradients, mean)

    start, rate, total = parts.parameters, experiment.local.learning_rate, 2 * len(clients)

    def descend(group: Sequence[int], begun: int) -> tuple[Vector, float]:
        """Descend on the mean loss of a group, after `begun` of the `total` parts."""
        return _descend(partial(look, group), start, rate, seen, lambda done: tell((begun + done * len(group)) / total))

    optimum, remaining = descend(clients, 0)
    alone = [descend([client], len(clients) + place) for place, client in enumerate(clients)]
    constants = BoundConstants(
        smoothness=seen.steepest,
        convexity=min(max(seen.flattest, 0.0), seen.steepest),
        gradient=seen.longest,
        radius=_length(start - optimum),
        heterogeneity=max(_length(end - optimum) for end, _ in alone),
    )
    return BoundEstimate(constants, seen.flattest > 0, len(clients), remaining, max(rest for _, rest in alone))


class _Point(NamedTuple):
    """A model, its loss, the gradient of each client at it and their mean."""

    model: Vector
    loss: float
    gradients: npt.NDArray[np.float32]
    mean: Vector


def _descend(
    look: Callable[[Vector], _Point], start: Vector, rate: float, seen: "_Seen", tell: OnFraction
) -> tuple[Vector, float]:
    """The end of gradient descent, and its gradient norm relative to the first.

    A step is accepted if the loss falls by step/2 |g|^2, as with a step of 1/L; otherwise it is halved. So steps stay
    near 1/L.
    """
    here, step = look(start), rate
    seen.visit(here)
    first = now = _length(here.mean)
    for trial in range(TRIALS):
        if now <= CONVERGED * first:
            break
        there = look(here.model - np.float32(step) * here.mean)
        seen.compare(here, there)
        if there.loss <= here.loss - step / 2 * now**2:
            here, step = there, GROWTH * step
            seen.visit(here)
            now = _length(here.mean)
        else:
            step /= 2
        tell((trial + 1) / TRIALS)
    tell(1.0)
    return here.model, now / first if first else 0.0


class _Seen:
    """The observed extremes of gradient norm and curvature."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.steepest = 0.0
        self.flattest = float("inf")

    def visit(self, point: _Point) -> None:
        self.longest = max([self.longest, *map(_length, point.gradients)])

    def compare(self, one: _Point, other: _Point) -> None:
        """Update the extremes with the curvature of every client between two models."""
        step = (other.model - one.model).astype(np.float64)
        square = float(step @ step)
        if not (np.isfinite(other.gradients).all() and square > 0):
            return
        for change in other.gradients.astype(np.float64) - one.gradients:
            self.steepest = max(self.steepest, _length(change) / sqrt(square))
            self.flattest = min(self.flattest, float(change @ step) / square)


def _length(vector: npt.NDArray[np.floating]) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))
