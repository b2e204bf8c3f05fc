"""TiFL: devices in tiers of similar speed; a pick takes one tier.

Chai, Ali, Zawad, Truex, Anwar, Baracaldo, Zhou, Ludwig, Yan, Cheng: *TiFL: A Tier-based Federated Learning System*,
HPDC 2020, sections 4.2 to 4.4.

| paper | here |
|---|---|
| m, number of tiers | `tiers` |
| profiling | the first order of each device; devices without one are picked first |
| I, interval | `interval` |
| Credits_t | `credits` |
| A_t, test accuracy of tier t | minus the mean training loss of its devices' last uploads |

    tiers: devices by mean measured seconds, in m groups of equal number
    pick:  a tier, then devices of that tier uniformly; devices of the nearest tiers if it has too few idle ones

`choice = "uniform"` draws tiers with equal probability. With `"adaptive"`, every I versions: if the tier used last has
not improved since, the n tiers with credits left get the probabilities (n - 1)/D, (n - 2)/D, ..., 0 with
D = n (n - 1) / 2, that with the highest loss first. A pick of a tier costs one of its credits; if none has any left,
all get theirs back.

Our reading: a server has no test data of its devices, so losses stand for accuracies. Tiers follow the measured
seconds throughout the run. A device that times out is not excluded but stays in its tier.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.algorithms.about import About, Choice, Range, SearchSpace
from offbeat.core.selection import Devices, LossKind, Report, SelectionView, Selector
from offbeat.selection.utility import Floats, unknown


@dataclass
class TiflState:
    """Measured seconds and losses of the devices, and the probabilities of the tiers."""

    seconds: Floats
    """Sum over the device's uploads."""
    uploads: npt.NDArray[np.int64]
    losses: Floats
    """The loss of the last upload; nan: none."""
    probabilities: Floats
    credits: npt.NDArray[np.int64]
    used: int = -1
    """The tier used last."""
    before: dict[int, float] = field(default_factory=dict)
    """The mean loss of each tier at the last check."""


class Tifl(Selector):
    """Picks devices of one tier of similar speed (Chai et al. 2020).

    >>> from offbeat.algorithms import FedAvg
    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedAvg(cohort=4), devices=4, selector=Tifl(tiers=2))
    >>> for session.now, device in enumerate((3, 0, 2, 1)):
    ...     reaction = session.upload(device=device)
    >>> sorted(reaction.ordered[:2]) in ([0, 3], [1, 2])  # the fast two or the slow two, then the others
    True
    """

    State = TiflState

    tiers: Annotated[int, Field(ge=1)] = 5
    """m, the number of tiers."""
    choice: Literal["uniform", "adaptive"] = "uniform"
    """Tiers with equal probability, or those with large training losses more often."""
    interval: Annotated[int, Field(ge=1)] = 20
    """I, the versions between two checks of the losses (adaptive)."""
    credits: Annotated[int, Field(ge=1)] | None = None
    """Picks of each tier before all have had theirs (adaptive; default: no limit)."""

    about = About(
        name="tifl",
        paper="Chai et al., HPDC 2020",
        provenance="our reading",
        search=SearchSpace(tiers=Range(2, 10), choice=Choice("uniform", "adaptive")),
    )

    @property
    def reads(self) -> LossKind | None:
        return "mean" if self.choice == "adaptive" else None

    def init(self, view: SelectionView) -> TiflState:
        return TiflState(
            seconds=np.zeros(view.devices),
            uploads=np.zeros(view.devices, dtype=np.int64),
            losses=unknown(view.devices),
            probabilities=np.full(self.tiers, 1 / self.tiers),
            credits=np.full(self.tiers, self.credits or 0),
        )

    def uploaded(self, report: Report, state: TiflState, view: SelectionView) -> None:
        state.seconds[report.device] += report.seconds
        state.uploads[report.device] += 1
        state.losses[report.device] = report.loss

    def committed(self, state: TiflState, view: SelectionView) -> None:
        if self.choice == "adaptive" and view.version % self.interval == 0 and state.uploads.any():
            self.adapt(state)

    def adapt(self, state: TiflState) -> None:
        """Change the probabilities if the tier used last has not improved since the last check."""
        tier, measured = self.tier_of(state), state.uploads > 0
        losses = {
            each: float(np.nanmean(known))
            for each in range(self.tiers)
            if np.isfinite(known := state.losses[measured & (tier == each)]).any()
        }
        before, state.before = state.before.get(state.used), losses
        if before is None or losses.get(state.used, before) < before:
            return
        ranked = sorted((each for each in losses if self.has_credits(each, state)), key=lambda each: -losses[each])
        number = len(ranked)
        if number > 1:
            state.probabilities = np.zeros(self.tiers)
            state.probabilities[ranked] = [(number - 1 - i) / (number * (number - 1) / 2) for i in range(number)]

    def has_credits(self, tier: int, state: TiflState) -> bool:
        """Whether the tier may be used before the others have used up their credits."""
        return self.credits is None or state.credits[tier] > 0

    def tier_of(self, state: TiflState) -> npt.NDArray[np.int64]:
        """The tier of each measured device, the fastest 0; the others have -1."""
        measured = np.flatnonzero(state.uploads)
        ranked = measured[np.argsort(state.seconds[measured] / state.uploads[measured], kind="stable")]
        tiers = np.full(len(state.uploads), -1)
        tiers[ranked] = np.arange(len(ranked)) * self.tiers // max(1, len(ranked))
        return tiers

    def pick(self, count: int, idle: Devices, state: TiflState, view: SelectionView) -> list[int]:
        tiers = self.tier_of(state)[idle]
        new = view.random.permutation(idle[tiers < 0])[:count].tolist()
        if len(new) == count or len(new) == len(idle):
            return list(new)
        known, tiers = idle[tiers >= 0], tiers[tiers >= 0]
        used = self.choose(np.unique(tiers), state, view)
        shuffled = view.random.permutation(len(known))
        nearest = shuffled[np.argsort(np.abs(tiers[shuffled] - used), kind="stable")]
        return [*new, *known[nearest[: count - len(new)]].tolist()]

    def choose(self, tiers: npt.NDArray[np.int64], state: TiflState, view: SelectionView) -> int:
        """Draw one of these tiers, which have idle devices."""
        if self.credits is not None and not state.credits[tiers].any():
            state.credits[:] = self.credits
        share = state.probabilities[tiers] * [self.has_credits(tier, state) for tier in tiers.tolist()]
        if not share.any():
            share = np.ones(len(tiers))
        state.used = int(view.random.choice(tiers, p=share / share.sum()))
        state.credits[state.used] = max(0, state.credits[state.used] - 1)
        return state.used
