"""Server optimisers: the devices' mean movement is used as a gradient.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: *Adaptive Federated Optimization*, ICLR 2021,
Algorithm 2; for momentum Hsu, Qi, Brown: *Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification*, 2019 (arXiv 1909.06335).

| paper | here |
|---|---|
| Delta_t, the mean movement of the devices | `movement` |
| eta | `server_learning_rate` |
| beta_1, beta_2 | `server_momentum`, `server_decay` |
| tau | `server_epsilon` |

    momentum   m <- beta_1 m + Delta                       w <- w + eta m
    adagrad    m <- beta_1 m + (1 - beta_1) Delta          v <- v + Delta^2
    adam       m as above                                  v <- beta_2 v + (1 - beta_2) Delta^2
    yogi       m as above                                  v <- v - (1 - beta_2) Delta^2 sign(v - Delta^2)
               w <- w + eta m / (sqrt(v) + tau)            for the last three

As published, m and v have no bias correction, and v starts at tau^2.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from offbeat.algorithms.about import Range, SearchSpace
from offbeat.core.combining import Floats, Movement
from offbeat.core.parameters import Vector, by_block
from offbeat.core.policy import Policy

SERVER_SEARCH = SearchSpace(server_learning_rate=Range(0.3, 3.0, log=True, relative=True))
"""What a search varies of a server optimiser."""


@dataclass
class ServerMoments:
    """The moments of a server optimiser; None before its first step."""

    first: Floats | None = None
    second: Floats | None = None


class ServerOptimised(Policy):
    """Base of policies whose aggregated step a server optimiser may take."""

    server_optimiser: Literal["none", "momentum", "adagrad", "adam", "yogi"] = "none"
    """Optimiser for the devices' mean movement; "none" (published) applies the movement itself."""
    server_learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """eta, the learning rate of the server."""
    server_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """beta_1 of a server optimiser."""
    server_decay: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """beta_2 of "adam" and "yogi"."""
    server_epsilon: Annotated[float, Field(gt=0)] = 1e-3
    """tau of "adagrad", "adam" and "yogi"; smaller values adapt more."""

    def server_step(self, parameters: Vector, movement: Movement, moments: ServerMoments) -> Vector:
        """The model after a step along the devices' mean movement; changes the moments."""
        rate, size = self.server_learning_rate, len(parameters)
        if self.server_optimiser == "none":
            return by_block(size, lambda block: parameters[block] + (rate * movement(block)).astype(np.float32))
        first = np.zeros(size) if moments.first is None else moments.first
        second = moments.second
        if second is None and self.server_optimiser != "momentum":
            second = np.full(size, self.server_epsilon**2)
        next_first, next_second = np.empty(size), None if second is None else np.empty(size)

        def step(block: slice) -> Floats:
            delta = movement(block)
            if second is None or next_second is None:
                next_first[block] = self.server_momentum * first[block] + delta
                return parameters[block] + rate * next_first[block]
            next_first[block] = self.server_momentum * first[block] + (1 - self.server_momentum) * delta
            next_second[block] = self._second_moment(second[block], delta * delta)
            direction = next_first[block] / (np.sqrt(next_second[block]) + self.server_epsilon)
            return parameters[block] + rate * direction

        stepped = by_block(size, step)
        moments.first, moments.second = next_first, next_second
        return stepped

    def _second_moment(self, before: Floats, square: Floats) -> Floats:
        match self.server_optimiser:
            case "adagrad":
                return before + square
            case "adam":
                return self.server_decay * before + (1 - self.server_decay) * square
            case _:
                return before - (1 - self.server_decay) * square * np.sign(before - square)
