"""Rules that compare updates with the server's own: AFLGuard and Zeno++.

The server trains the current version on `trusted_samples` of the test data, which are then no longer evaluated on; v is
the movement that this gives. An update that fails the test counts as no movement; the policy's weights stay.

    AFLGuard   accepts D_k if  ||D_k - v|| <= tolerance ||v||
    Zeno++     scales D_k to the norm of v, and accepts it if  <v, D_k> - rho ||D_k||^2 >= -epsilon ||v||^2

AFLGuard: Fang, Liu, Gong, Bentley, ACSAC 2022. Zeno++: Xie, Koyejo, Gupta, ICML 2020. Both are about one gradient at
a time; here they test each movement of a buffer (our reading), with the movement of whole local training as the
server's gradient. A policy that uses one update at a time gives D_k = w_k - w, the movement from the current version.
The epsilon of Zeno++ is relative to ||v||^2. The default tolerance was chosen on seeds that no study reports: 1.5
rejects a third of honest non-IID updates, and 3 lets collusion pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from offbeat.core.combining import Contributions, Floats, Movement
from offbeat.core.parameters import Vector, blockwise
from offbeat.core.policy import View
from offbeat.trust.robust import RobustRule


@dataclass
class Rejections:
    """How many updates failed the test."""

    rejected: int = 0


class TrustedRule(RobustRule):
    """Base of rules for which the server has trusted samples."""

    State = Rejections
    singly = True
    provenance = "our reading"

    trusted_samples: Annotated[int, Field(ge=1)] = 100
    """Number of test samples that the server trains on."""

    def factor(self, norm: float, inner: float, reference: float) -> float:
        """The factor on a movement of this norm; `inner` is its product with v, `reference` the norm of v."""
        raise TypeError(f"{type(self).__name__} does not define factor")

    def combine(self, contributions: Contributions, state: Rejections, view: View) -> Movement:
        trusted = view.trusted_movement()
        reference = float(np.sqrt(np.einsum("i,i->", trusted, trusted, dtype=np.float64)))
        squares, inner = products(contributions, trusted)
        factors = [self.factor(float(np.sqrt(a)), float(b), reference) for a, b in zip(squares, inner, strict=True)]
        state.rejected += sum(factor == 0.0 for factor in factors)
        weights = [factor * w / contributions.divisor for factor, w in zip(factors, contributions.weights, strict=True)]

        def combined(block: slice) -> Floats:
            total = np.zeros(block.stop - block.start)
            for number, weight in enumerate(weights):
                if weight:
                    total += weight * contributions.one(number, block)
            return total

        return combined

    def metrics(self, state: Rejections) -> Mapping[str, float]:
        return {"rejected_updates": float(state.rejected)}


class AflGuard(TrustedRule):
    """Leaves out movements that differ from the server's own by more than `tolerance` times its norm (AFLGuard)."""

    paper = "Fang et al., ACSAC 2022"

    tolerance: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0
    """lambda, the largest relative difference."""

    def factor(self, norm: float, inner: float, reference: float) -> float:
        apart = max(0.0, norm * norm - 2 * inner + reference * reference)
        return float(apart <= (self.tolerance * reference) ** 2)


class ZenoPlusPlus(TrustedRule):
    """Scales movements to the norm of the server's own and leaves out those that point away from it (Zeno++)."""

    paper = "Xie et al., ICML 2020"

    rho: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.002
    """Penalty on the norm."""
    epsilon: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    """How far below zero the score may be."""

    def factor(self, norm: float, inner: float, reference: float) -> float:
        if not norm or not reference:
            return 0.0
        scale = reference / norm
        score = scale * inner - self.rho * reference**2
        return scale if score >= -self.epsilon * reference**2 else 0.0


def products(contributions: Contributions, other: Vector) -> tuple[Floats, Floats]:
    """The squared norm of each movement, and its product with another vector."""
    found: dict[int, tuple[Floats, Floats]] = {}

    def add(block: slice) -> None:
        rows = contributions.block(block)
        along = np.einsum("ij,j->i", rows, other[block].astype(np.float64))
        found[block.start] = (np.einsum("ij,ij->i", rows, rows), along)

    blockwise(contributions.size, add)
    parts = [found[start] for start in sorted(found)]
    return np.sum([a for a, _ in parts], axis=0), np.sum([b for _, b in parts], axis=0)
