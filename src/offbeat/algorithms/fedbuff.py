"""FedBuff: buffered asynchronous aggregation.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: *Federated Learning with Buffered Asynchronous Aggregation*,
AISTATS 2022, Algorithm 1 and section 5 (staleness scaling).

| paper | here |
|---|---|
| K, buffer size | `buffer` |
| M_c, concurrency | `concurrency` |
| eta_g | `server_learning_rate` |
| Delta_i | update's parameters minus the version it started from (its own base) |
| s(tau) = 1 / sqrt(1 + tau) | `scale` |

    when K updates are in the buffer:   w <- w + eta_g / K  sum_k s(tau_k) Delta_k

`normaliser = "weights"` divides by `sum_k s(tau_k)` in place of K, as the authors' later framework does by default.
The concurrency is kept full: whenever a device reports or is lost, a random idle device is ordered at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import sqrt
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from offbeat.core.actions import Action, Commit, Dispatch
from offbeat.core.errors import InvalidInput
from offbeat.core.events import Event, Uploaded
from offbeat.core.orders import Update
from offbeat.core.parameters import Vector
from offbeat.core.policy import Policy, View


@dataclass
class FedBuffState:
    updates: list[Update] = field(default_factory=list)


class FedBuff(Policy):
    """Buffered asynchronous: aggregates every K uploads, each scaled by its staleness (Nguyen et al. 2022)."""

    State = FedBuffState
    in_training_setting = "concurrency"

    buffer: Annotated[int, Field(ge=1)] = 10
    """K, uploads that make a version."""
    concurrency: Annotated[int, Field(ge=1)] = 20
    """Devices kept in training."""
    server_learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """eta_g."""
    normaliser: Literal["K", "weights"] = "K"
    """Divide the weighted sum by K (published) or by the sum of the weights."""

    def check(self, devices: int) -> None:
        if self.concurrency > devices:
            raise InvalidInput(f"algorithm.concurrency = {self.concurrency}: there are only {devices} devices")

    def react(self, event: Event, state: FedBuffState, view: View) -> Iterator[Action]:
        if isinstance(event, Uploaded):
            state.updates.append(event.update)
        if len(state.updates) >= self.buffer:
            yield Commit(
                parameters=view.parameters + self.movement(state.updates, view.version),
                used=tuple(update.ticket for update in state.updates),
            )
            state.updates = []
        for device in view.pick(self.concurrency - len(view.in_flight)):
            yield Dispatch(device=device, order=view.order())

    def movement(self, updates: list[Update], version: int) -> Vector:
        """eta_g / K sum_k s(tau_k) Delta_k."""
        weights = [self.scale(version - update.base) for update in updates]
        total = np.zeros(updates[0].base_parameters.shape, dtype=np.float64)
        for weight, update in zip(weights, updates, strict=True):
            total += weight * update.delta
        divisor = len(updates) if self.normaliser == "K" else sum(weights)
        return (self.server_learning_rate / divisor * total).astype(np.float32)

    def scale(self, staleness: int) -> float:
        return 1 / sqrt(1 + staleness)
