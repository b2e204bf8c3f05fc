"""Oort: devices whose samples have large losses, unless they are slow.

Lai, Zhu, Madhyastha, Chowdhury: *Oort: Efficient Federated Learning via Guided Participant Selection*, OSDI 2021, and
the authors' code (SymbioticLab/Oort, `oort/oort.py`), whose constants these are.

| paper | here |
|---|---|
| U(i), statistical utility | `samples * sqrt(mean squared loss)` of the device's last upload |
| epsilon, exploration factor | `exploration`, `exploration_decay`, `least_exploration` |
| c, cut-off of the utility | `cut_off` |
| alpha, penalty of slow devices | `penalty` |
| T, preferred duration | the `percentile` of the measured durations |
| W, Delta, step of the pacer | `pacer_rounds`, `pacer_step` |

    score(i) = (min(U(i), q) - .999 U_min) / (U_max - .999 U_min) + sqrt(0.1 ln t / t_i)   q: the .98 quantile of U
               times (T / s_i)^alpha  if the device's order took s_i > T seconds

t is the current round, t_i that of the device's last upload. Of a pick, `1 - epsilon` is drawn by score among the
devices that have uploaded and have at least `cut_off` times the score of the last one that would just be taken; the
rest are devices that never uploaded, by their number of samples. Every `pacer_rounds` rounds the percentile rises by
`pacer_step` if the summed utility of devices picked by score changed by at most 10 %, and falls if it changed fivefold.

Our reading: a round is a version, so that it works with asynchronous algorithms. Picks of one device explore with
probability epsilon (the number is rounded at random; the code would never exploit). Durations are measured only, so
devices that never uploaded are not ranked by speed, and U_min to q are over idle devices that have uploaded.
"""

from dataclasses import dataclass, field
from math import inf, log
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace
from offbeat.core.selection import Devices, Report, SelectionView
from offbeat.selection.utility import Floats, LossSelector, Share, drawn, rounded_at_random, unknown, utility_of


@dataclass
class OortState:
    """What is known of each device, and the pacer."""

    utility: Floats
    """U(i) of the last upload; nan: never uploaded."""
    seconds: Floats
    round: npt.NDArray[np.int64]
    """t_i, the round of the last upload."""
    by_score: npt.NDArray[np.bool_]
    """Whether the device was last picked by score."""
    exploration: float
    percentile: float
    gained: list[float] = field(default_factory=list)
    """U(i) of the uploads of this round whose devices were picked by score."""
    history: list[float] = field(default_factory=list)
    """The mean of `gained` in earlier rounds, as many as the pacer compares."""
    rounds: int = 0


class Oort(LossSelector):
    """Prefers devices with large training losses that are not slow (Lai et al. 2021).

    >>> from offbeat.algorithms import FedAvg
    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedAvg(cohort=1), devices=2, selector=Oort(exploration=1.0, exploration_decay=1.0))
    >>> first = session.first.ordered[0]
    >>> session.upload(loss=1.0).ordered == [1 - first]  # the other device has never uploaded
    True
    >>> session.upload(loss=5.0).ordered == [1 - first]  # U = 10 and 50: the first device's score is below the cut-off
    True
    """

    State = OortState

    exploration: Share = 0.9
    """epsilon at the start: the share of a pick that goes to devices that never uploaded."""
    exploration_decay: Share = 0.95
    """Factor of epsilon per version."""
    least_exploration: Share = 0.2
    """Lower limit of epsilon, as long as there are devices that never uploaded."""
    cut_off: Share = 0.7
    """c: devices with at least this share of the lowest score to be taken may be drawn."""
    clip: Share = 0.98
    """Quantile at which utilities are clipped."""
    penalty: Annotated[float, Field(ge=0)] = 2.0
    """alpha, the exponent of the penalty of slow devices; 0: no penalty."""
    percentile: Annotated[float, Field(gt=0, le=100)] = 10.0
    """Percentile of the durations that is preferred at the start; 100: all."""
    pacer_rounds: Annotated[int, Field(ge=1)] = 20
    """Versions after which the pacer compares utilities."""
    pacer_step: Annotated[float, Field(gt=0, le=100)] = 5.0
    """Step of the pacer, in percentiles."""
    window: Annotated[float, Field(ge=1)] = 5.0
    """Exploration draws among this many times the devices needed, those with the most samples."""

    about = About(
        name="oort",
        paper="Lai et al., OSDI 2021",
        provenance="authors' code",
        search=SearchSpace(penalty=Range(0.0, 4.0), percentile=Range(5.0, 100.0), cut_off=Range(0.4, 0.95)),
    )

    def init(self, view: SelectionView) -> OortState:
        return OortState(
            utility=unknown(view.devices),
            seconds=unknown(view.devices),
            round=np.ones(view.devices, dtype=np.int64),
            by_score=np.zeros(view.devices, dtype=bool),
            exploration=max(self.exploration, self.least_exploration),
            percentile=self.percentile,
        )

    def uploaded(self, report: Report, state: OortState, view: SelectionView) -> None:
        device = report.device
        state.utility[device], state.seconds[device] = utility_of(report), report.seconds
        state.round[device] = report.version + 1
        if state.by_score[device]:
            state.gained.append(float(state.utility[device]))

    def committed(self, state: OortState, view: SelectionView) -> None:
        state.exploration = max(state.exploration * self.exploration_decay, self.least_exploration)
        self.pace(state)

    def pace(self, state: OortState) -> None:
        """End a round: move the percentile if the utility of the last rounds is flat, or changes sharply."""
        length = self.pacer_rounds
        state.history = [*state.history, sum(state.gained) / max(1, len(state.gained))][-2 * length :]
        state.gained, state.rounds = [], state.rounds + 1
        if state.rounds >= 2 * length and state.rounds % length == 0:
            before, now = sum(state.history[:length]), sum(state.history[length:])
            if abs(now - before) <= 0.1 * before:
                state.percentile = min(100.0, state.percentile + self.pacer_step)
            elif abs(now - before) >= 5 * before:
                state.percentile = max(self.pacer_step, state.percentile - self.pacer_step)

    def pick(self, count: int, idle: Devices, state: OortState, view: SelectionView) -> list[int]:
        new = np.isnan(state.utility[idle])
        share = state.exploration if np.isnan(state.utility).any() else 0.0
        count = min(count, len(idle))
        exploited = min(rounded_at_random(count * (1 - share), view.random), int((~new).sum()))
        picked = self.exploit(exploited, idle[~new], state, view)
        explored = self.explore(count - len(picked), idle[new], view)
        state.by_score[idle[np.isin(idle, explored)]] = False
        state.by_score[picked] = True
        rest = np.setdiff1d(idle, [*picked, *explored])
        missing = count - len(picked) - len(explored)
        return [*picked, *explored, *view.random.choice(rest, missing, replace=False).tolist()]

    def exploit(self, count: int, devices: Devices, state: OortState, view: SelectionView) -> list[int]:
        """Draw by score among the devices above the cut-off."""
        if not count:
            return []
        scores = self.scores(devices, state, view.version + 1)
        eligible = scores >= self.cut_off * np.sort(scores)[-count]
        return drawn(count, devices[eligible], scores[eligible], view)

    def explore(self, count: int, devices: Devices, view: SelectionView) -> list[int]:
        """Draw among the devices with the most samples, by their number of samples."""
        if not count or not len(devices):
            return []
        samples = np.array([view.samples(device) for device in devices.tolist()], dtype=np.float64)
        largest = np.argsort(-samples, kind="stable")[: max(1, int(self.window * min(count, len(devices))))]
        return drawn(count, devices[largest], samples[largest], view)

    def scores(self, devices: Devices, state: OortState, now: int) -> Floats:
        """The score of each device, which has uploaded before, in round `now`."""
        utility = state.utility[devices]
        low = 0.999 * utility.min()
        width = max(utility.max() - low, 1e-4)
        clipped = np.minimum(utility, quantile(utility, self.clip))
        scores: Floats = (clipped - low) / width + np.sqrt(0.1 * log(now) / state.round[devices])
        preferred = inf if state.percentile >= 100 else quantile(state.seconds, state.percentile / 100)
        seconds = state.seconds[devices]
        slow = seconds > preferred
        scores[slow] *= (preferred / seconds[slow]) ** self.penalty
        return scores


def quantile(values: Floats, share: float) -> float:
    """The value at this share of the sorted known values, without interpolation.

    >>> quantile(np.array([3.0, 1.0, np.nan, 2.0]), 0.5)
    2.0
    """
    known = np.sort(values[~np.isnan(values)])
    return float(known[min(int(len(known) * share), len(known) - 1)])
