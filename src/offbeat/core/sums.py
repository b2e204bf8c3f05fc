"""The running sum of a session whose policy never sees a single update (`trust.sums_only`).

Each update is added when it arrives, with the weight that the policy gives it, and is forgotten: the server keeps one
float64 vector instead of K models, in memory and in checkpoints. `core.combining` takes the sum when the policy makes a
version. It adds the same terms in the same order as the plain mean of movements, so the bits are the same.
"""

from collections.abc import KeysView, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from offbeat.core.errors import PolicyError
from offbeat.core.orders import Update, WithheldOutcome
from offbeat.core.parameters import Vector, blockwise, frozen

Floats = npt.NDArray[np.float64]
NOTHING: Vector = frozen(np.zeros(0, dtype=np.float32))
"""The base parameters of an update that was added."""


@dataclass
class SumState:
    """The sum as a snapshot holds it."""

    total: Floats | None = None
    weights: dict[int, float] = field(default_factory=dict)


class RunningSum:
    """sum_k weight_k (w_k - base_k) over the updates since the sum was taken last. The session owns it."""

    __slots__ = ("_total", "_weights")

    def __init__(self, saved: SumState | None = None) -> None:
        saved = saved or SumState()
        self._total: Floats | None = None if saved.total is None else saved.total.copy()
        self._weights = dict(saved.weights)

    @property
    def tickets(self) -> KeysView[int]:
        """The updates in the sum."""
        return self._weights.keys()

    def add(self, update: Update, weight: float) -> Update:
        """Add an update, unless its weight is 0; returns it without its numbers."""
        if weight:
            total = self._total if self._total is not None else np.zeros(len(update.base_parameters))
            model, base = update.parameters, update.base_parameters

            def added(block: slice) -> None:
                total[block] += weight * (model[block] - base[block])

            blockwise(len(total), added)
            self._total = total
            self._weights[update.ticket] = weight
        return replace(update, outcome=WithheldOutcome(), base_parameters=NOTHING)

    def take(self, updates: Sequence[Update], weights: Sequence[float]) -> Floats:
        """The sum, which begins anew; raises PolicyError unless it has exactly these updates with these weights."""
        asked = dict(zip((update.ticket for update in updates), weights, strict=True))
        if self._total is None or asked != self._weights:
            raise PolicyError(
                f"the policy combines updates with the weights {asked} by ticket, but was given the sum with "
                f"{self._weights}: weight_in_sum must return the weight that an update has in the version"
            )
        total, self._total, self._weights = self._total, None, {}
        return total

    def snapshot(self) -> SumState:
        """The sum for a snapshot of the session."""
        return SumState(total=self._total, weights=dict(self._weights))
