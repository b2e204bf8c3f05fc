"""Auto: a small buffer and a server step that follows the agreement of the updates. Ours, experimental.

| symbol | here |
|---|---|
| C, devices in training | `concurrency` |
| K = C / 4, rounded up | `buffer`: follows from C |
| Delta_k, tau_k | movement of update k from its own base, and its staleness |
| u_k | the step of the server that made the base of update k |
| S | estimate of the squared length of the movement that all devices have in common |
| eta | the server's step, 1 at the start |

Whenever a device reports or is lost, a random idle device is ordered at once. When K updates are in the buffer:

    S   <- S + (max(0, (K |mean Delta|^2 - mean |Delta|^2) / (K - 1)) - S) / 10            agreement
    c   =  mean over k of <Delta_k, u_k> / (sqrt(S) |u_k|), within -1..1                      was the step too short?
    eta <- eta exp(c / 2 * K / C) if c > 0, eta exp(c K / C) otherwise, within 0.1..5         step
    w   <- w + eta / K  sum_k Delta_k / sqrt(1 + tau_k)                                       as FedBuff

Why: the derivative of the loss at the base of an update by the logarithm of the step that made the base is
<gradient, u_k>, about -<Delta_k, u_k>. If the updates from there still point along the step, it was too short; if they
point back, too long. Taking u_k at the update's own base, not the last step, keeps staleness out of the comparison:
updates of old bases would agree with the last steps however long these are. Movements of uneven data differ, so the
length of one of them says little; S is the unbiased estimate of the squared length of their mean. eta falls twice as
fast as it rises, because a step that is too long costs more than one that is too short. With eta adapted, a buffer may
be small (fresher versions, more noise), and the devices' learning rate may be off by a factor of three. With K = 1
there is no agreement to measure, and eta stays 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, sqrt
from typing import Annotated

import numpy as np
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace, ServerMemory
from offbeat.algorithms.arrivals import Buffer, BufferPolicy
from offbeat.core.combining import mean_movement
from offbeat.core.orders import Update
from offbeat.core.parameters import Vector, by_block, dot, weighted_mean
from offbeat.core.policy import View

RISE, FALL = 0.5, 1.0
"""How fast eta follows c, in units of C updates."""
LEAST, MOST = 0.1, 5.0
"""Bounds of eta."""
MEMORY = 0.1
"""Share of a buffer in S."""


@dataclass
class AutoState(Buffer):
    """Adds the server's step, the agreement, and how the bases of devices in training were made."""

    eta: float = 1.0
    agreement: float | None = None
    """S; None before the first version."""
    steps: dict[int, Vector] = field(default_factory=dict)
    """The step that made each version which is the base of an update to come."""


class Auto(BufferPolicy):
    """Buffered, nothing to tune: the server's step follows the agreement of the updates (ours, experimental).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(Auto(buffer=2, concurrency=2))
    >>> _ = session.move(2.0, 0.0), session.move(2.0, 0.0)  # eta = 1
    >>> session.parameters.tolist()
    [2.0, 0.0]
    >>> _ = session.move(2.0, 0.0, ticket=3), session.move(2.0, 0.0, ticket=4)  # staleness 1 and 0
    >>> round(session.state.eta, 4)  # the second started from the step that it agrees with: e^(1/2)
    1.6487
    """

    State = AutoState
    combines = True

    buffer: Annotated[int, Field(ge=1)] = 5
    """K, the uploads that make a version; a quarter of the devices in training."""
    adapt: bool = True
    """Whether the step follows the agreement; false keeps it at 1, for ablations."""

    about = About(
        name="auto",
        family="buffered",
        paper="offbeat",
        provenance="ours",
        in_training="concurrency",
        search=SearchSpace(buffer=Range(2, 20, log=True)),
        server_memory=ServerMemory(per_base=1),  # how each base was made
        smoke={"algorithm": {"buffer": 3, "concurrency": 10}},
    )

    def aggregate(self, updates: Sequence[Update], state: AutoState, view: View) -> Vector:
        if self.adapt and len(updates) > 1:
            self.adapt_step(updates, state)
        weights = [self.weight_at(view.version - update.base) for update in updates]
        bases = [update.base_parameters for update in updates]
        movement, now, eta = mean_movement(updates, bases, weights, len(updates), view), view.parameters, state.eta
        model = by_block(len(now), lambda block: now[block] + (eta * movement(block)).astype(np.float32))
        if self.adapt:
            needed = {order.base for order in view.in_flight.values()}
            state.steps = {version: step for version, step in state.steps.items() if version in needed}
            state.steps[view.version + 1] = model - now
        return model

    def adapt_step(self, updates: Sequence[Update], state: AutoState) -> None:
        """Follow the agreement of these updates with the steps that made their bases."""
        deltas = [update.delta for update in updates]
        found = common_square(deltas)
        state.agreement = found if state.agreement is None else (1 - MEMORY) * state.agreement + MEMORY * found
        cosines = [
            dot(delta, step) / length
            for update, delta in zip(updates, deltas, strict=True)
            if (step := state.steps.get(update.base)) is not None
            and (length := sqrt(state.agreement * dot(step, step))) > 0.0
        ]
        if cosines:
            mean = min(max(sum(cosines) / len(cosines), -1.0), 1.0)
            speed = (RISE if mean > 0 else FALL) * len(updates) / self.concurrency
            state.eta = min(max(state.eta * exp(speed * mean), LEAST), MOST)

    def weight_at(self, staleness: int) -> float:
        """The weight of an update of this staleness."""
        return 1 / sqrt(1 + staleness)

    def metrics(self, state: AutoState) -> dict[str, float]:
        return {"server_step": state.eta}


def common_square(deltas: Sequence[Vector]) -> float:
    """An estimate of |E Delta|^2 from at least two movements; unbiased, but never below 0.

    >>> common_square([np.float32([3, 1]), np.float32([3, -1])])  # mean [3, 0]: (2 * 9 - 10) / 1
    8.0
    """
    count, mean = len(deltas), weighted_mean(deltas, [1.0] * len(deltas))
    return max(0.0, (count * dot(mean, mean) - sum(dot(each, each) for each in deltas) / count) / (count - 1))
