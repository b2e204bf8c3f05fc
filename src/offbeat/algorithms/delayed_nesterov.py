"""Delayed Nesterov: momentum that is applied once per buffer, while every upload moves the model at once.

Liu, Chhaparia, Douillard, Kale, Rusu, Shen, Szlam, Ranzato: *Asynchronous Local-SGD Training for Language Modeling*,
2024 (arXiv 2401.09135), Algorithm 3. Restated: the rule is that of a description by others.

| paper | here |
|---|---|
| N, updates per momentum step | `buffer` |
| epsilon, outer learning rate | `server_learning_rate` |
| beta | `momentum` |
| g | -Delta, the update's base minus its parameters |

    at every upload:     w <- w - (epsilon / N) g,   sum <- sum + g
    at every N-th also:  m <- beta m + sum / N,   w <- w - epsilon beta m,   sum <- 0

Plain momentum would apply the same old direction at every upload, N times as often as in a synchronous round.

`dylu = true` (dynamic local updates): device i takes floor(v_i / v_max H) local steps, at least one, so that
all devices take about as long. H are the steps of the `[local]` table on a device of mean size, v_i the steps per
second of the device's last training, v_max the highest of them. A device takes H steps until it has uploaded.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import floor
from typing import Annotated

import numpy as np
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace, ServerMemory
from offbeat.algorithms.arrivals import ArrivalPolicy, Floats, local_steps
from offbeat.core.messages import Action, Commit
from offbeat.core.orders import LocalWork, Order, Update
from offbeat.core.parameters import by_block
from offbeat.core.policy import View

LEAST_SECONDS = 1e-9
"""Lower bound of a measured time."""


@dataclass
class NesterovState:
    """The momentum, and the movements since it last changed."""

    momentum: Floats | None = None
    total: Floats | None = None
    uploads: int = 0
    """Uploads since the momentum last changed."""
    seconds: dict[int, float] = field(default_factory=dict)
    """Seconds per step in the last training of each device, with DyLU."""
    steps: int = 0
    """H, with DyLU."""


def local_differences(policy: "DelayedNesterov", local: LocalWork) -> list[str]:
    """What its devices do differently from `[local]`."""
    return ["fewer local steps on slower devices (dylu)"] if policy.dylu else []


class DelayedNesterov(ArrivalPolicy):
    """Asynchronous: every upload moves the model, every N-th also the momentum (Liu et al. 2024; restated).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(DelayedNesterov(buffer=2, concurrency=1, momentum=0.5))
    >>> _ = session.move(4.0, 0.0)  # 1/2 [4, 0]
    >>> _ = session.move(0.0, 8.0)  # + 1/2 [0, 8], and momentum: 1/2 ([4, 0] + [0, 8]) / 2
    >>> session.parameters.tolist()
    [3.0, 6.0]
    """

    State = NesterovState

    buffer: Annotated[int, Field(ge=1)] = 5
    """N, the uploads per change of the momentum."""
    server_learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """epsilon, the outer learning rate."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """beta."""
    dylu: bool = False
    """Whether slower devices take fewer local steps, in proportion to their speed."""

    about = About(
        name="delayed-nesterov",
        family="asynchronous",
        paper="Liu et al., 2024",
        provenance="restated",
        in_training="concurrency",
        local_differences=local_differences,
        search=SearchSpace(
            buffer=Range(2, 20, log=True),
            momentum=Range(0.0, 0.95),
            server_learning_rate=Range(0.3, 3.0, log=True, relative=True),
        ),
        server_memory=ServerMemory(models=4),  # momentum and sum in float64
    )

    def init(self, view: View) -> NesterovState:
        return NesterovState(steps=local_steps(view) if self.dylu else 0)

    def order(self, device: int, state: NesterovState, view: View) -> Order:
        """The usual order, or with DyLU the number of steps that fits the device's speed."""
        if not self.dylu:
            return view.order()
        share = min(state.seconds.values()) / state.seconds[device] if device in state.seconds else 1.0
        return view.order(unit="step", slices=max(1, floor(share * state.steps + 1e-9)))

    def receive(self, update: Update, state: NesterovState, view: View) -> Iterator[Action]:
        if self.dylu:
            done = update.progress
            state.seconds[update.device] = max(done.seconds / max(done.steps, 1), LEAST_SECONDS)
        now, model, base = view.parameters, update.parameters, update.base_parameters
        state.total = total = np.zeros(len(now)) if state.total is None else state.total
        state.momentum = momentum = np.zeros(len(now)) if state.momentum is None else state.momentum
        rate, beta, number = self.server_learning_rate, self.momentum, self.buffer
        state.uploads = (state.uploads + 1) % number
        completes = state.uploads == 0

        def next_version(block: slice) -> Floats:
            delta = model[block] - base[block]
            total[block] += delta
            movement = delta / np.float64(number)
            if completes:
                momentum[block] *= beta
                momentum[block] += total[block] / number
                movement += beta * momentum[block]
                total[block] = 0.0
            result: Floats = now[block] + rate * movement
            return result

        yield Commit(parameters=by_block(len(now), next_version), used=(update.ticket,))
