"""REFL's selection: the least available devices first, so that the data of rarely available ones are used.

Abdelmoniem, Sahu, Canini, Fahmy: *REFL: Resource-Efficient Federated Learning*, EuroSys 2023, section 4.1 (intelligent
participant selection), and the authors' code (ahmedcs/REFL, `core/client_manager.py`, `core/aggregator.py`).

| paper | here |
|---|---|
| availability of a learner in the next slot | the share of the run so far in which the device was available |
| rounds before a learner checks in again | `hold_off` |

    pick: devices that were not ordered in the last `hold_off` versions before the others, then the lowest share first;
          equal shares in random order

Our reading: in the paper each device predicts its availability in the next slot from its own history, and the code
reads the slot from its trace. Here the server measures, in both drivers: a device is available from when it comes until
it leaves or its order is lost. Where all devices are always available, the choice is uniform among
those that were not ordered recently. REFL's weights for stale updates are the algorithm `refl`.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace
from offbeat.core.selection import Devices, SelectionView, Selector
from offbeat.selection.utility import Floats, best_first

NEVER = -(2**40)
"""The version of the last order of a device that has had none."""


@dataclass
class ReflState:
    """The availability of each device so far, and when it was last ordered."""

    available: Floats
    """Seconds of completed periods in which the device was available."""
    since: Floats
    """When the current period began; nan while the device is away."""
    ordered: npt.NDArray[np.int64]
    """The version at the last order."""


class LeastAvailable(Selector):
    """Prefers the least available devices (Abdelmoniem et al. 2023).

    >>> from offbeat.algorithms import FedAvg
    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedAvg(cohort=1), devices=3, present=[0, 1], selector=LeastAvailable(hold_off=0))
    >>> session.now = 10.0
    >>> _ = session.come(2)
    >>> session.now = 20.0
    >>> session.upload().ordered  # device 2 was available for 10 of 20 seconds
    [2]
    """

    State = ReflState

    hold_off: Annotated[int, Field(ge=0)] = 5
    """Versions for which a device that was ordered ranks behind the others."""

    about = About(
        name="refl",
        paper="Abdelmoniem et al., EuroSys 2023",
        provenance="our reading",
        search=SearchSpace(hold_off=Range(0, 20)),
    )

    def init(self, view: SelectionView) -> ReflState:
        away = np.array([view.is_away(device) for device in range(view.devices)])
        return ReflState(
            available=np.zeros(view.devices),
            since=np.where(away, np.nan, 0.0),
            ordered=np.full(view.devices, NEVER),
        )

    def ordered(self, device: int, state: ReflState, view: SelectionView) -> None:
        state.ordered[device] = view.version

    def came(self, device: int, state: ReflState, view: SelectionView) -> None:
        state.since[device] = view.now

    def left(self, device: int, state: ReflState, view: SelectionView) -> None:
        state.available[device] += view.now - state.since[device]
        state.since[device] = np.nan

    def pick(self, count: int, idle: Devices, state: ReflState, view: SelectionView) -> list[int]:
        seconds = state.available[idle] + (view.now - state.since[idle])
        recent = view.version - state.ordered[idle] < self.hold_off
        first = best_first(idle, -seconds - recent * (view.now + 1.0), view.random)
        picked: list[int] = first[:count].tolist()
        return picked
