"""Bounds on the influence of single devices, under every algorithm: a screen that each update passes when it arrives.

    D_k <- r^j min(1, C / ||D_k||) D_k        j: uploads of the same device among the last `repeats_window`
    n_k <- min(n_k, cap)

C is `clip`, or with "auto" `clip_factor` times the median, over devices, of the norms that they reported last (before
three devices have reported: the norm of the update's base). The movement shrinks towards the update's own base, so the
algorithm's weights stay as they are.

A clip needs the norm of every update when it arrives, so a simulation computes updates that the algorithm discards too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace
from pydantic import Field

from offbeat.core.combining import RunningMedian, Screen
from offbeat.core.orders import ScaledOutcome, Update
from offbeat.core.parameters import distance
from offbeat.core.policy import View

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Clip = Literal["off", "auto"] | Positive


@dataclass
class InfluenceState:
    """What devices reported last, and which of them uploaded lately."""

    norms: dict[int, float] = field(default_factory=dict)
    claims: dict[int, float] = field(default_factory=dict)
    recent: list[int] = field(default_factory=list)
    clipped: int = 0
    limit: float = 0.0
    received: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Device and influence of each update that is not resolved, by ticket."""
    influence: dict[int, float] = field(default_factory=dict)
    """For each device the sum over its used updates of samples times the factor on the movement."""

    def __post_init__(self) -> None:
        self.median_norm, self.median_claim = RunningMedian(self.norms), RunningMedian(self.claims)
        self.norms, self.claims = self.median_norm.last, self.median_claim.last


class InfluenceLimits(Screen):
    """Clips movements, caps claimed sample counts and discounts repeated uploads.

    >>> from offbeat.algorithms import FedBuff
    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedBuff(buffer=1, concurrency=1), screen=InfluenceLimits(clip=5.0))
    >>> _ = session.move(30.0, 40.0)  # norm 50
    >>> session.parameters.tolist()
    [3.0, 4.0]
    """

    State = InfluenceState

    clip: Clip = "off"
    """C: a number, "auto" or "off"."""
    clip_factor: Positive = 1.0
    """"auto" clips to this many times the median norm."""
    most_samples: Annotated[int, Field(ge=1)] | None = None
    """Cap of the claimed number of samples."""
    most_samples_factor: Positive | None = None
    """Cap as a multiple of the median of the claims."""
    repeats: Annotated[float, Field(gt=0, le=1)] = 1.0
    """r, the factor for each earlier upload of the device within the window."""
    repeats_window: Annotated[int, Field(ge=1)] | None = None
    """Uploads that the window holds (default: the number of devices)."""

    def capped(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        cap = inf if self.most_samples is None else self.most_samples
        if self.most_samples_factor is not None:
            cap = min(cap, self.most_samples_factor * float(np.median(samples)))
        return samples if cap == inf else np.minimum(samples, max(1, int(cap)))

    @property
    def measures(self) -> bool:
        return self.clip != "off"

    def admit(self, update: Update, norm: float, state: InfluenceState, view: View) -> Update:
        update = self._with_cap(update, state)
        factor = self._discount(update.device, state, view) if self.repeats < 1.0 else 1.0
        if self.clip != "off":
            limit = self._limit(update, norm, state) if self.clip == "auto" else self.clip
            state.clipped += norm > limit
            factor *= min(1.0, limit / norm) if norm else 1.0
        state.received[update.ticket] = (update.device, factor * update.samples)
        if factor == 1.0:
            return update
        return replace(update, outcome=ScaledOutcome(update.outcome, update.base_parameters, factor))

    def resolved(self, tickets: Sequence[int], used: bool, state: InfluenceState) -> None:
        for ticket in tickets:
            device, influence = state.received.pop(ticket)
            if used:
                state.influence[device] = state.influence.get(device, 0.0) + influence

    def _limit(self, update: Update, norm: float, state: InfluenceState) -> float:
        """The limit with "auto"; the norm counts for the next update."""
        median, base = state.median_norm.median, update.base_parameters
        state.limit = self.clip_factor * median if median else distance(base, np.zeros_like(base)) or inf
        state.median_norm.note(update.device, norm)
        return state.limit

    def _with_cap(self, update: Update, state: InfluenceState) -> Update:
        cap = inf if self.most_samples is None else float(self.most_samples)
        if self.most_samples_factor is not None:
            state.median_claim.note(update.device, float(update.samples))
            median = state.median_claim.median
            cap = min(cap, inf if median is None else self.most_samples_factor * median)
        return update if update.samples <= cap else replace(update, samples=max(1, int(cap)))

    def _discount(self, device: int, state: InfluenceState, view: View) -> float:
        earlier = state.recent.count(device)
        state.recent = [*state.recent, device][-(self.repeats_window or view.devices) :]
        return float(self.repeats**earlier)

    def metrics(self, state: InfluenceState) -> Mapping[str, float]:
        total = sum(state.influence.values())
        found = {"largest_influence": max(state.influence.values(), default=0.0) / total if total else 0.0}
        if self.clip != "off":
            found["clipped_updates"] = float(state.clipped)
        if self.clip == "auto":
            found["clip_norm"] = state.limit if state.limit < inf else 0.0
        return found

    def columns(self, state: InfluenceState, devices: int) -> Mapping[str, Sequence[float]]:
        total = sum(state.influence.values()) or 1.0
        return {"influence": [state.influence.get(device, 0.0) / total for device in range(devices)]}
