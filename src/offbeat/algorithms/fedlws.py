"""FedLWS: FedAvg with a shrinking factor for every layer.

Shi, Zhao, Zhang, Zhou, Guo, Chang: *FedLWS: Federated Learning with Adaptive Layer-wise Weight Shrinking*, ICLR 2025.
The rule is that of the authors' code.

| code | here |
|---|---|
| beta | `shrinking` |
| 0.01, 0.2 | `least`, `most` |

For each layer, with w the model of the round, w_k the uploads and p_k their shares of the samples:

    w^    = sum_k p_k w_k
    g_k   = w_k - w,   g = mean_k g_k
    tau   = clip(beta * mean_k ||g_k - g||, least, most)
    gamma = ||w|| / (||w|| + tau ||w^ - w||)
    w     <- gamma w^

A layer of zeros has no norm to compare with and is not shrunk. Buffers are averaged without shrinking.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.algorithms.about import Range, SearchSpace
from offbeat.algorithms.fedavg import FedAvg, FedAvgState
from offbeat.core.orders import Update
from offbeat.core.parameters import Vector
from offbeat.core.policy import View


class FedLWS(FedAvg):
    """FedAvg that shrinks each layer, more where the devices disagree (Shi et al. 2025).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedLWS(cohort=2, least=3.0, most=3.0), devices=2, start=[3.0, 4.0])
    >>> _ = session.upload(6.0, 8.0), session.upload(6.0, 8.0)  # gamma = 5 / (5 + 3 * 5) = 1/4
    >>> session.parameters.tolist()
    [1.5, 2.0]
    """

    shrinking: Annotated[float, Field(gt=0)] = 0.03
    """beta, the strength of the shrinking."""
    least: Annotated[float, Field(ge=0)] = 0.01
    """Lower bound of tau."""
    most: Annotated[float, Field(gt=0)] = 0.2
    """Upper bound of tau."""

    about = replace(
        FedAvg.about,
        name="fedlws",
        paper="Shi et al., ICLR 2025",
        provenance="authors' code",
        search=SearchSpace(FedAvg.about.search, shrinking=Range(0.003, 0.3, log=True)),
        sums_only=False,
    )

    def aggregate(self, updates: Sequence[Update], state: FedAvgState, view: View) -> Vector:
        """The mean of the uploads, each layer multiplied by its gamma."""
        mean = super().aggregate(updates, state, view).copy()
        for layer in range(view.layout.trained_layers):
            chosen = view.layout.mask([layer]).chosen.copy()
            chosen[view.layout.trained_size :] = False
            mean[chosen] *= np.float32(self.gamma(view.parameters[chosen], mean[chosen], updates, chosen))
        return mean

    def gamma(self, before: Vector, mean: Vector, updates: Sequence[Update], chosen: npt.NDArray[np.bool_]) -> float:
        """The shrinking factor of one layer."""
        moved = [update.parameters[chosen].astype(np.float64) - before for update in updates]
        centre = sum(moved) / len(moved)
        spread = float(np.mean([np.linalg.norm(each - centre) for each in moved]))
        tau = min(max(self.shrinking * spread, self.least), self.most)
        norm, step = np.linalg.norm(before.astype(np.float64)), np.linalg.norm(mean.astype(np.float64) - before)
        return float(norm / (norm + tau * step)) if norm else 1.0
