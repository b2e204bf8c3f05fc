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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import exp, sqrt
from typing import Annotated

import numpy as np
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace, ServerMemory
from offbeat.algorithms.arrivals import Buffer, BufferPolicy
from offbeat.core.combining import mean_movement
from offbeat.core.orders import Update
from offbeat.core.parameters import Floats, Vector, by_block, dots, mean_of
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
        step = np.empty_like(now)

        def next_version(block: slice) -> Vector:
            model: Vector = now[block] + (eta * movement(block)).astype(np.float32)
            step[block] = model - now[block]
            return model

        model = by_block(len(now), next_version)
        if self.adapt:
            needed = {order.base for order in view.in_flight.values()}
            state.steps = {version: step for version, step in state.steps.items() if version in needed}
            state.steps[view.version + 1] = step
        return model

    def adapt_step(self, updates: Sequence[Update], state: AutoState) -> None:
        """Follow the agreement of these updates with the steps that made their bases."""
        steps = [state.steps.get(update.base) for update in updates]

        def pairs_of(block: slice) -> Iterator[tuple[Floats, Floats]]:
            parts = [update.parameters[block] - update.base_parameters[block] for update in updates]
            mean = mean_of(parts, [1.0] * len(parts)).astype(np.float32).astype(np.float64)
            yield mean, mean
            for part, step in zip(parts, steps, strict=True):
                delta = part.astype(np.float64)
                yield delta, delta
                if step is not None:
                    cause = step[block].astype(np.float64)
                    yield delta, cause
                    yield cause, cause

        products = iter(dots(len(updates[0].parameters), pairs_of))
        mean_square, squares, along = next(products), [], []
        for step in steps:
            squares.append(next(products))
            if step is not None:
                along.append((next(products), next(products)))
        found = common_square(mean_square, squares)
        state.agreement = found if state.agreement is None else (1 - MEMORY) * state.agreement + MEMORY * found
        lengths = [(product, sqrt(state.agreement * square)) for product, square in along]
        cosines = [product / length for product, length in lengths if length > 0.0]
        if cosines:
            mean = min(max(sum(cosines) / len(cosines), -1.0), 1.0)
            speed = (RISE if mean > 0 else FALL) * len(updates) / self.concurrency
            state.eta = min(max(state.eta * exp(speed * mean), LEAST), MOST)

    def weight_at(self, staleness: int) -> float:
        """The weight of an update of this staleness."""
        return 1 / sqrt(1 + staleness)

    def metrics(self, state: AutoState) -> dict[str, float]:
        return {"server_step": state.eta}


def common_square(mean_square: float, squares: Sequence[float]) -> float:
    """An estimate of |E Delta|^2 from that of the mean of at least two movements and those of each; never below 0.

    >>> common_square(9.0, [10.0, 10.0])  # [3, 1] and [3, -1]: (2 * 9 - 10) / 1
    8.0
    """
    count = len(squares)
    return max(0.0, (count * mean_square - sum(squares) / count) / (count - 1))
