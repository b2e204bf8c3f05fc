"""FedDyn: dynamic regularisation that aligns the devices' minima with the global one.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: *Federated Learning Based on Dynamic Regularization*, ICLR
2021, Algorithm 1; scaling and server rule as in the authors' code.

| paper, code | here |
|---|---|
| alpha | `alpha` |
| alpha_k = alpha / (n_k / mean n) | `scaling = "samples"` |
| m devices, P_t of them in a round | all devices, `cohort` |
| gradient of device k's regulariser | the device's memory (`core.terms.LinearQuadratic`) |
| (1/m) sum_k h_k | `FedDynState.correction` |

    device   w_k minimises L_k(w) - <grad_k, w> + alpha_k / 2 ||w - w_o||^2,   grad_k <- grad_k - alpha_k (w_k - w_o)
    server   h <- h + (1/m) sum_{k in P} (w_k - w_o),   w <- mean_{k in P} w_k + h

The mean is unweighted, as published. A device whose upload is lost has still updated its regulariser: the server sees
the effect only in the device's later uploads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from offbeat.algorithms.about import Range, SearchSpace, ServerMemory
from offbeat.algorithms.fedavg import FedAvg, FedAvgState
from offbeat.core.orders import Order, Update
from offbeat.core.parameters import Vector, by_block, moved
from offbeat.core.policy import View
from offbeat.core.terms import LinearQuadratic


@dataclass
class FedDynState(FedAvgState):
    """FedAvg's state, and h."""

    correction: Vector | None = None
    """h, the mean drift of all devices; None before the first round."""


class FedDyn(FedAvg):
    """FedAvg with a dynamic regulariser on the devices and its correction on the server (Acar et al. 2021).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedDyn(cohort=1), devices=2)
    >>> _ = session.upload(2.0, 4.0)  # h = 1/2 [2, 4], w = [2, 4] + h
    >>> session.parameters.tolist()
    [3.0, 6.0]
    """

    State = FedDynState
    combines = False  # its correction sums all movements

    alpha: Annotated[float, Field(gt=0)] = 0.01
    """Strength of the regulariser."""
    scaling: Literal["none", "samples"] = "none"
    """"none" (paper): one alpha for all devices; "samples" (code): alpha times mean samples over the device's."""
    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a device in the mean: equal weights (published), or its number of samples."""

    about = replace(
        FedAvg.about,
        name="feddyn",
        paper="Acar et al., ICLR 2021",
        provenance="authors' code",
        search=SearchSpace(alpha=Range(0.001, 0.1, log=True)),
        local_differences=lambda policy, local: [
            f"a dynamic regulariser in the local loss (alpha = {policy.alpha:g})",
        ],
        flower=None,
        server_memory=ServerMemory(models=1),  # h
    )

    def order(self, device: int, view: View) -> Order:
        """The experiment's local training with the regulariser."""
        alpha = self.alpha
        if self.scaling == "samples":
            mean = sum(view.samples(each) for each in range(view.devices)) / view.devices
            alpha *= mean / view.samples(device)
        return view.order(terms=(LinearQuadratic(alpha=alpha),))

    def aggregate(self, updates: Sequence[Update], state: FedAvgState, view: View) -> Vector:
        """The mean of the uploads, plus the mean drift of all devices."""
        assert isinstance(state, FedDynState)
        before, devices = state.correction, np.float32(view.devices)
        ends = [(update.parameters, update.base_parameters) for update in updates]

        def corrected(block: slice) -> Vector:
            correction = np.zeros(block.stop - block.start, dtype=np.float32) if before is None else before[block]
            for after, base in ends:
                correction = correction + (after[block] - base[block]) / devices
            return correction

        state.correction = by_block(len(view.parameters), corrected)
        return moved(super().aggregate(updates, state, view), state.correction, 1.0)
