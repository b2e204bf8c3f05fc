"""HeteroFL: slow devices train narrower models, so that they finish by the deadline.

Diao, Ding, Tarokh: *HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients*,
ICLR 2021, and its authors' code; here with rounds of T_max / R, as ADEL-FL (Goren et al. 2026) compares with it.

| paper | here |
|---|---|
| computation complexity levels, r = 1, 1/2, ... | `widths` |
| first ceil(r C) channels of each layer | `core.coverage` |
| scaler: activations / r in training | `training.submodel` |
| masked cross-entropy | `masked_loss` (`core.terms.AbsentClasses`): logits of absent classes count as 0 |

    element e of the model  <-  mean over the devices whose submodel has e,  or its old value if there is none

Only devices that finish by the deadline count. A row of the last layer belongs to a class; a device without samples of
that class returns the row unchanged and does not count as having it.

The paper assigns levels by hand. Here a device gets the largest width with which it finishes with a probability of at
least `confidence` under the exponential time model, else the smallest. A layer of width r takes r^2 of the time
(`fleet.speeds.cost_of_width`).

The paper's norm without running statistics is not reproduced: our networks have no norms, and running statistics of
other models are averaged like all other elements.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import scipy
from pydantic import Field

from offbeat.algorithms.about import Range, SearchSpace
from offbeat.algorithms.deadlines.planner.depth import Floats
from offbeat.algorithms.deadlines.rounds import FAMILY, DeadlineState, EqualDeadlines
from offbeat.core.orders import Update
from offbeat.core.parameters import Layout, Vector, by_block
from offbeat.core.policy import View
from offbeat.core.terms import AbsentClasses

Width = Annotated[float, Field(gt=0, le=1)]


class HeteroFL(EqualDeadlines):
    """Submodels whose width follows from a device's speed, averaged element by element (Diao et al. 2021).

    >>> from offbeat.testing import ScriptedSession
    >>> from offbeat.core.parameters import Layout
    >>> layers = Layout.of([("a.weight", (2, 1), True), ("b.weight", (1, 2), True)])
    >>> policy = HeteroFL(rounds=5, confidence=0.5, masked_loss=False, time_budget=10.0)
    >>> session = ScriptedSession(policy, start=[0.0] * 4, layout=layers, devices=2, speeds=[100.0, 8.0])
    >>> [given.order.width for given in session.first.orders]
    [1.0, 0.5]
    >>> _ = session.upload(2.0, 2.0, 2.0, 2.0, device=0), session.upload(4.0, 4.0, 4.0, 4.0, device=1)
    >>> _ = session.fire("deadline")
    >>> session.parameters.tolist()  # both hold the first unit of each layer, device 0 alone the second
    [3.0, 2.0, 3.0, 2.0]
    """

    widths: list[Width] = Field([1.0, 0.5, 0.25, 0.125, 0.0625], min_length=1)
    """Available widths, as shares of each layer's channels."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Least probability of finishing by the deadline that selects a width. Of 0.05, 0.2, 0.5 and 0.9 the low values did
    best on `deadlines-mlp` with a seed that is not reported; with 0.9 no device gets the whole model there."""
    masked_loss: bool = True
    """Whether the logits of classes that a device does not hold count as 0 in its loss."""

    about = replace(
        FAMILY,
        name="heterofl",
        paper="Diao et al., ICLR 2021",
        provenance="authors' code",
        search=SearchSpace(FAMILY.search, confidence=Range(0.05, 0.9)),
        local_differences=lambda policy, local: [
            *FAMILY.local_differences(policy, local),
            "narrower models on slower devices",
            *(["logits of absent classes that count as 0"] if policy.masked_loss else []),
        ],
        sums_only=False,  # which rows a device has not touched is seen in its update
    )

    def widths_of(self, deadline: float, state: DeadlineState, view: View) -> Floats:
        steps = self.local_steps * view.layout.trained_layers
        whole = super().rates(deadline, state, view)
        chosen = np.full(view.devices, min(self.widths))
        for width in sorted(self.widths):
            in_time = scipy.special.pdtrc(steps - 1, whole / width**2)  # P(at least `steps` layers are completed)
            chosen[in_time >= self.confidence] = width
        return chosen

    def rates(self, deadline: float, state: DeadlineState, view: View) -> Floats:
        return super().rates(deadline, state, view) / self.widths_of(deadline, state, view) ** 2

    @property
    def special(self) -> dict[str, Any]:
        return {"terms": (AbsentClasses(),) if self.masked_loss else (), "partial": False}

    def counts(self, update: Update) -> bool:
        return update.mask is None or update.mask.count > 0

    def aggregate(self, updates: Sequence[Update], state: DeadlineState, view: View) -> Vector:
        parameters, models = view.parameters, list[tuple[Vector, npt.NDArray[np.bool_]]]()
        for update in updates:
            held = np.ones(view.layout.size, dtype=bool) if update.mask is None else update.mask.chosen
            if self.masked_loss:
                held = held & ~untouched_rows(update, view.layout)
            models.append((update.parameters, held))

        def mean_of(block: slice) -> Floats:
            total, holders = np.zeros(block.stop - block.start), np.zeros(block.stop - block.start)
            for model, held in models:
                chosen = held[block]
                total[chosen] += model[block][chosen]
                holders += chosen
            return np.where(holders > 0, total / np.maximum(holders, 1), parameters[block])

        return by_block(view.layout.size, mean_of)


def untouched_rows(update: Update, layout: Layout) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Elements of the last layer whose whole row is unchanged: the device has no samples of that class."""
    untouched = np.zeros(layout.size, dtype=bool)
    moved = update.delta != 0
    head = layout.head
    rows = np.zeros(head[0].shape[0] if head[0].shape else 1, dtype=bool)
    for entry in head:
        rows |= moved[entry.span].reshape(len(rows), -1).any(axis=1)
    for entry in head:
        untouched[entry.span].reshape(len(rows), -1)[~rows] = True
    return untouched
