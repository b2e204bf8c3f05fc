"""REFL: rounds that do not wait for stragglers, whose late updates count by staleness and by what they add.

Abdelmoniem, Sahu, Canini, Fahmy: *REFL: Resource-Efficient Federated Learning*, EuroSys 2023, section 4.2, and the
authors' code (ahmedcs/REFL, `core/aggregator.py`), whose constants these are.

| paper | here |
|---|---|
| N_t, participants of a round | `cohort`, less the stragglers that are still in training |
| target ratio | `target` |
| beta | `beta` |
| tau_s | `view.version - update.base` |
| Lambda_s, deviation of a stale update | L_s |

A round ends when `target` of its devices have reported, or the others are lost. With the movements u of its m fresh
updates, their mean u_F, and the stale ones that arrived meanwhile:

    fresh:  weight 1
    stale:  weight (1 - beta) / (tau_s + 1) + beta (1 - exp(-L_s / L_max) / 10)
            L_s = |(u_s + m u_F) / (m + 1) - u_F|^2 / |u_F|^2
    w <- w + eta  sum weight u / sum weight

(L_s is |u_s - u_F|^2 times a factor that all stale updates of a round share, so only that distance matters.)

Our reading: devices in training count towards the cohort (the code has it as an option), so that their number is that
of the comparison. A round whose devices are all lost makes no version; its stale updates wait for the next. The paper's
choice of devices is the selection `refl`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, exp
from typing import Annotated

import numpy as np
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace
from offbeat.core.combining import mean_movement
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Action, Commit, Dispatch, Event, Uploaded
from offbeat.core.orders import Update
from offbeat.core.parameters import Vector, by_block
from offbeat.core.policy import Policy, View


@dataclass
class ReflRound:
    """The updates since the last version, and the number of fresh ones that ends the round."""

    arrived: list[Update] = field(default_factory=list)
    wanted: int = 0


class Refl(Policy):
    """Rounds without stragglers, whose late updates count by staleness and deviation (Abdelmoniem et al. 2023).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(Refl(cohort=2, target=0.5, beta=0.0), devices=2)
    >>> _ = session.move(4.0, 0.0, ticket=1)  # the round ends with half of its devices
    >>> _ = session.move(0.0, 6.0, ticket=2), session.move(0.0, 0.0, ticket=3)  # stale by 1: weight 1/2
    >>> session.parameters.tolist()  # [4, 0] + (1/2 [0, 6] + 1 [0, 0]) / (3/2)
    [4.0, 2.0]
    """

    State = ReflRound
    combines = True

    cohort: Annotated[int, Field(ge=1)] = 10
    """Devices in training when a round begins."""
    target: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Share of the devices of a round whose updates end it."""
    beta: Annotated[float, Field(ge=0, le=1)] = 0.35
    """Share of the deviation in the weight of a stale update; the rest goes by staleness."""
    server_learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """eta, the learning rate of the server."""

    about = About(
        name="refl",
        family="synchronous",
        paper="Abdelmoniem et al., EuroSys 2023",
        provenance="authors' code",
        in_training="cohort",
        search=SearchSpace(target=Range(0.3, 1.0), beta=Range(0.0, 1.0)),
    )

    def check(self, devices: int) -> None:
        if self.cohort > devices:
            raise InvalidInput(f"algorithm.cohort = {self.cohort}: there are only {devices} devices")

    def react(self, event: Event, state: ReflRound, view: View) -> Iterator[Action]:
        if isinstance(event, Uploaded):
            state.arrived.append(event.update)
        fresh = sum(update.base == view.version for update in state.arrived)
        training = sum(order.base == view.version for order in view.in_flight.values())
        if fresh and (fresh >= state.wanted or not training):
            updates, state.arrived = state.arrived, []
            used = tuple(update.ticket for update in updates)
            yield Commit(parameters=self.aggregate(updates, view), used=used)
        elif fresh or training:
            return
        devices = view.pick(self.cohort - len(view.in_flight))
        state.wanted = ceil(round(self.target * len(devices), 9))
        for device in devices:
            yield Dispatch(device=device, order=view.order())

    def aggregate(self, updates: Sequence[Update], view: View) -> Vector:
        """The next version, from fresh and stale updates."""
        weights, bases = self.weights(updates, view.version), [update.base_parameters for update in updates]
        movement, now = mean_movement(updates, bases, weights, sum(weights), view), view.parameters
        rate = self.server_learning_rate
        return by_block(len(now), lambda block: now[block] + (rate * movement(block)).astype(np.float32))

    def weights(self, updates: Sequence[Update], version: int) -> list[float]:
        """The weight of each update, of which at least one is fresh."""
        fresh = [update.delta for update in updates if update.base == version]
        mean = np.mean(fresh, axis=0, dtype=np.float64)
        far = {
            update.ticket: float(np.square(update.delta - mean).sum()) for update in updates if update.base < version
        }
        most = max(far.values(), default=0.0)
        return [
            1.0
            if update.base == version
            else (1 - self.beta) / (version - update.base + 1)
            + self.beta * (1 - exp(-far[update.ticket] / most if most else 0.0) / 10)
            for update in updates
        ]
