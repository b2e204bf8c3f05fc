"""FedAvgM: synchronous rounds with momentum on the server.

Hsu, Qi, Brown: *Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification*, 2019
(arXiv 1909.06335).

| paper | here |
|---|---|
| beta | `momentum` |
| n_k | samples of device k |
| Delta w | the model minus the mean of the round |

    v <- beta v + Delta w
    w <- w - v

Departure: a round stops waiting for a lost device.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Action, Commit, Dispatch, Event, Uploaded
from offbeat.core.orders import Update
from offbeat.core.parameters import Vector, weighted_mean
from offbeat.core.policy import Policy, View


@dataclass
class FedAvgMState:
    """The velocity, and the updates of the current round."""

    velocity: Vector
    arrived: list[Update] = field(default_factory=list)


class FedAvgM(Policy):
    """Synchronous rounds with momentum on the server (Hsu et al. 2019)."""

    State = FedAvgMState

    cohort: Annotated[int, Field(ge=1)] = 10
    """Devices in a round."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """beta, the share of the last step that is added to the next."""

    about = About(
        name="fedavgm",
        family="synchronous",
        paper="Hsu et al., 2019",
        provenance="published",
        in_training="cohort",
        search=SearchSpace(momentum=Range(0.0, 0.95)),
    )

    def init(self, view: View) -> FedAvgMState:
        return FedAvgMState(velocity=np.zeros_like(view.parameters))

    def check(self, devices: int) -> None:
        if self.cohort > devices:
            raise InvalidInput(f"algorithm.cohort = {self.cohort}: there are only {devices} devices")

    def react(self, event: Event, state: FedAvgMState, view: View) -> Iterator[Action]:
        if isinstance(event, Uploaded):
            state.arrived.append(event.update)
        if view.in_flight:
            return
        if state.arrived:
            models = [update.parameters for update in state.arrived]
            mean = weighted_mean(models, [float(update.samples) for update in state.arrived])
            state.velocity = np.float32(self.momentum) * state.velocity + (view.parameters - mean)
            used = tuple(update.ticket for update in state.arrived)
            yield Commit(parameters=view.parameters - state.velocity, used=used)
            state.arrived = []
        for device in view.pick(self.cohort):
            yield Dispatch(device=device, order=view.order())
