"""Pisces: devices whose samples have large losses, unless their updates arrive stale.

Jiang, Wang, Li, Chen: *Pisces: Efficient Federated Learning via Guided Asynchronous Training*, SoCC 2022, and the
authors' code (SamuelGong/Pisces, `plato/client_managers/sirius.py`), whose constants these are.

| paper | here |
|---|---|
| U_i | `samples * sqrt(mean squared loss) / (1 + lag)^beta` |
| tau_i, estimated staleness | `lag`: the mean staleness of the device's last 5 uploads |
| beta, penalty of staleness | `penalty` |
| exploration factor | `exploration`, `exploration_decay`, `least_exploration` |

A pick explores as often as a coin with the exploration factor says, among devices that never uploaded, uniformly; the
other devices are those with the highest U_i. The factor decays with every version.

Only the selection: the paper also paces aggregation (a version when the time since the last exceeds the longest latency
in training divided by the devices in training), which is the algorithm's part. The code also divides U_i by a power of
the last latency, which the paper does not mention; left out. Staleness is that at the upload.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace
from offbeat.core.selection import Devices, Report, SelectionView
from offbeat.selection.utility import Floats, LossSelector, Share, best_first, unknown, utility_of

LAGS = 5
"""Uploads over which the staleness of a device is averaged."""


@dataclass
class PiscesState:
    """What is known of each device, and the exploration factor."""

    utility: Floats
    """n times the loss of the last upload; nan: never uploaded."""
    lags: Floats
    """Staleness of the last uploads, [devices, LAGS]; nan: fewer uploads."""
    uploads: npt.NDArray[np.int64]
    exploration: float


class Pisces(LossSelector):
    """Prefers devices with large training losses whose updates are not stale (Jiang et al. 2022).

    >>> from offbeat.algorithms import FedAvg
    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedAvg(cohort=1), devices=2, selector=Pisces(exploration=1.0))
    >>> first = session.first.ordered[0]
    >>> session.upload(loss=1.0).ordered == [1 - first]  # exploration: the other device has never uploaded
    True
    >>> session.upload(loss=5.0).ordered == [1 - first]  # U = 10 and 50
    True
    """

    State = PiscesState

    exploration: Share = 0.9
    """Probability at the start that a device is picked among those that never uploaded."""
    exploration_decay: Share = 0.98
    """Factor of this probability per version."""
    least_exploration: Share = 0.3
    """Lower limit of this probability."""
    penalty: Annotated[float, Field(ge=0)] = 0.5
    """beta, the exponent of the penalty of staleness."""

    about = About(
        name="pisces",
        paper="Jiang et al., SoCC 2022",
        provenance="authors' code",
        search=SearchSpace(penalty=Range(0.0, 2.0), least_exploration=Range(0.0, 0.9)),
    )

    def init(self, view: SelectionView) -> PiscesState:
        return PiscesState(
            utility=unknown(view.devices),
            lags=np.full((view.devices, LAGS), np.nan),
            uploads=np.zeros(view.devices, dtype=np.int64),
            exploration=max(self.exploration, self.least_exploration),
        )

    def uploaded(self, report: Report, state: PiscesState, view: SelectionView) -> None:
        device = report.device
        state.utility[device] = utility_of(report)
        state.lags[device, state.uploads[device] % LAGS] = report.staleness
        state.uploads[device] += 1

    def committed(self, state: PiscesState, view: SelectionView) -> None:
        state.exploration = max(state.exploration * self.exploration_decay, self.least_exploration)

    def pick(self, count: int, idle: Devices, state: PiscesState, view: SelectionView) -> list[int]:
        new = state.uploads[idle] == 0
        known, fresh, count = idle[~new], idle[new], min(count, len(idle))
        planned = min(len(fresh), int(view.random.binomial(count, state.exploration)))
        exploited = min(len(known), count - planned)
        best = best_first(known, self.scores(known, state), view.random)[:exploited]
        explored = view.random.choice(fresh, min(len(fresh), count - exploited), replace=False)
        return [*best.tolist(), *explored.tolist()]

    def scores(self, devices: Devices, state: PiscesState) -> Floats:
        """U_i of each device, which has uploaded before."""
        lags, known = state.lags[devices], np.minimum(state.uploads[devices], LAGS)
        scores: Floats = state.utility[devices] / (1 + np.nansum(lags, axis=1) / known) ** self.penalty
        return scores
