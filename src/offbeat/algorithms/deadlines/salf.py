"""SALF: layer-wise aggregation of partial backward passes at fixed deadlines.

Lang, Cohen, Shlezinger: *Stragglers-Aware Low-Latency Synchronous Federated Learning via Layer-Wise Model Updates*,
IEEE Trans. Communications 2025, as restated in ADEL-FL's section II-B, and its authors' code.

| paper | here |
|---|---|
| R, T_max | `rounds`, `time_budget` |
| S | the experiment's `local.batch_size`, or with `batch = "speed"` one for each device (`BatchesBySpeed`) |
| p_t^l | `planner.miss_probabilities` |

Rounds of T_max / R. Each device uploads the layers that its backward pass has completed, and for every layer

    variant = "paper"   w^l <- ( mean over the devices that delivered it of w_u^l - p^l w^l ) / (1 - p^l)     (5)
    variant = "code"    w^l <- 1/U [ sum over the devices that delivered it of w_u^l + (U - their number) w^l ]

or w^l if no device delivered it. p^l is the product over the round's devices of Q(L + 1 - l, P_u (T - B_u) / S_u).

The correction divides by 1 - p^l, which is close to 0 for a layer that is rarely reached. We keep p^l at 0.9 or less,
so that the correction multiplies a step by at most 10.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from offbeat.algorithms.deadlines.planner import miss_probabilities
from offbeat.algorithms.deadlines.rounds import (
    FAMILY,
    BatchesBySpeed,
    DeadlineState,
    bias_corrected,
    with_absent_as_old,
)
from offbeat.core.orders import Update
from offbeat.core.parameters import Vector
from offbeat.core.policy import View

MOST_MISSED = 0.9


class Salf(BatchesBySpeed):
    """Fixed deadlines, layer-wise aggregation of partial backward passes (Lang et al. 2025).

    >>> from offbeat.testing import ScriptedSession
    >>> from offbeat.core.parameters import Layout
    >>> layers = Layout.of([("a.weight", (1,), True), ("b.weight", (1,), True)])
    >>> policy = Salf(rounds=5, variant="code")
    >>> session = ScriptedSession(policy, layout=layers, devices=2, speeds=[8.0, 8.0], horizon=10.0)
    >>> _ = session.upload(4.0, 4.0, device=0, slices=1), session.upload(4.0, 2.0, device=1)  # device 0: layer b only
    >>> _ = session.fire("deadline")
    >>> session.parameters.tolist()  # a: (0 + 4) / 2, b: (4 + 2) / 2
    [2.0, 3.0]
    """

    variant: Literal["paper", "code"] = "paper"
    """The published rule (5), or the authors' code, where an undelivered layer counts as a copy of the old one."""

    about = replace(FAMILY, name="salf", paper="Lang et al., IEEE Trans. Communications 2025", provenance="restated")

    def aggregate(self, updates: Sequence[Update], state: DeadlineState, view: View) -> Vector:
        if self.variant == "code":
            return with_absent_as_old(updates, len(state.ordered), view)
        rates = self.rates(state.deadlines[state.number], state, view)[state.ordered]
        missed = np.minimum(miss_probabilities(rates, view.layout.trained_layers), MOST_MISSED)
        return bias_corrected(updates, missed, view)
