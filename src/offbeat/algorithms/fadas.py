"""FADAS: a buffer whose mean movement is the gradient of AMSGrad on the server, with a step that shrinks with delay.

Wang, Wang, Lu, Chen: *FADAS: Towards Federated Adaptive Asynchronous Optimization*, ICML 2024, Algorithm 1 and section
4, after its authors' code.

| paper | here |
|---|---|
| M, buffer size | `buffer` |
| M_c, concurrency | `concurrency` |
| eta | `server_learning_rate` |
| beta_1, beta_2, epsilon | `beta_1`, `beta_2`, `epsilon` |
| tau_max of the buffer, tau_c | the largest staleness in it, `delay_threshold` |

    Delta <- mean of the K movements
    m     <- beta_1 m + (1 - beta_1) Delta        v <- beta_2 v + (1 - beta_2) Delta^2        u <- max(u, v)
    w     <- w + step / (1 - beta_1^t)  m / (sqrt(u) / sqrt(1 - beta_2^t) + epsilon)

The step is eta if tau_max <= tau_c. Beyond, it is eta / tau_max (`delay_step = "code"`, as the authors' code has it) or
min(eta, 1 / tau_max) (`"paper"`); `"off"` is FADAS without delay adaptation, for which the authors use a tenth of eta.
Movements are not weighted by staleness. In the authors' code most new devices start from the previous version while
their movement is taken from the current one; here a movement starts at its own base.

`fadas-large-step` (not published) has eta = 0.01 instead of 0.001. A step of AMSGrad moves every element by about eta,
whatever the length of the movements, and 0.001 is too little for models that train for some hundred versions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace, ServerMemory
from offbeat.algorithms.arrivals import Buffer, BufferPolicy, Floats
from offbeat.core.combining import mean_movement
from offbeat.core.orders import Update
from offbeat.core.parameters import Vector, by_block
from offbeat.core.policy import View


@dataclass
class FadasState(Buffer):
    """Adds the moments, which are None before the first version."""

    first: Floats | None = None
    second: Floats | None = None
    largest: Floats | None = None
    """u, the elementwise maximum of the second moments."""


class Fadas(BufferPolicy):
    """Buffered asynchronous with AMSGrad on the server and delay-adaptive steps (Wang et al. 2024).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(Fadas(buffer=1, concurrency=1, server_learning_rate=0.5, epsilon=1e-12))
    >>> _ = session.move(4.0, -2.0)  # the first step is eta sign(Delta)
    >>> session.parameters.round(4).tolist()
    [0.5, -0.5]
    """

    State = FadasState
    combines = True

    server_learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """eta, the learning rate of the server."""
    beta_1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moment."""
    beta_2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Decay of the second moment."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """Keeps the divisor above 0."""
    delay_step: Literal["code", "paper", "off"] = "code"
    """How the step shrinks with the largest staleness in the buffer."""
    delay_threshold: Annotated[int, Field(ge=0)] = 1
    """tau_c, the largest staleness with a full step."""

    about = About(
        name="fadas",
        family="buffered",
        paper="Wang et al., ICML 2024",
        provenance="authors' code",
        in_training="concurrency",
        search=SearchSpace(
            buffer=Range(2, 20, log=True), server_learning_rate=Range(0.1, 100.0, log=True, relative=True)
        ),
        sums_only=True,
        server_memory=ServerMemory(models=6),  # three moments in float64
        smoke={"algorithm": {"buffer": 5, "concurrency": 10, "server_learning_rate": 0.03}},
    )

    def aggregate(self, updates: Sequence[Update], state: FadasState, view: View) -> Vector:
        now, version = view.parameters, view.version
        size, bases = len(now), [update.base_parameters for update in updates]
        movement = mean_movement(updates, bases, [1.0] * len(updates), len(updates), view)
        if state.first is None or state.second is None or state.largest is None:
            state.first, state.second, state.largest = np.zeros(size), np.zeros(size), np.zeros(size)
        first, second, largest = state.first, state.second, state.largest
        step = self.step(max(version - update.base for update in updates)) / (1 - self.beta_1 ** (version + 1))
        scale = 1 / sqrt(1 - self.beta_2 ** (version + 1))

        def stepped(block: slice) -> Floats:
            delta, m, v, u = movement(block), first[block], second[block], largest[block]
            m *= self.beta_1
            m += (1 - self.beta_1) * delta
            change = (1 - self.beta_2) * delta
            change *= delta
            v *= self.beta_2
            v += change
            np.maximum(u, v, out=u)
            divisor = np.sqrt(u, out=change)
            divisor *= scale
            divisor += self.epsilon
            model: Floats = step * m
            model /= divisor
            model += now[block]
            return model

        return by_block(size, stepped)

    def weight_in_sum(self, update: Update, view: View) -> float:
        return 1.0

    def step(self, staleness: int) -> float:
        """The server's step for a buffer whose largest staleness is this."""
        eta = self.server_learning_rate
        if self.delay_step == "off" or staleness <= self.delay_threshold:
            return eta
        return eta / staleness if self.delay_step == "code" else min(eta, 1 / staleness)


class FadasLargeStep(Fadas):
    """FADAS with ten times the published step, for runs that nobody tunes (not published).

    >>> FadasLargeStep().server_learning_rate / Fadas().server_learning_rate
    10.0
    """

    server_learning_rate: Annotated[float, Field(gt=0)] = 1e-2
    """eta, the learning rate of the server."""

    about = replace(Fadas.about, name="fadas-large-step", provenance="ours")
