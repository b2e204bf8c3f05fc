"""Balanced selection: the devices that were ordered least often come first, so that slow ones contribute as often.

Under a uniform draw a device waits equally long for each order and then trains for its own time, so slow devices
contribute less often; the more devices are in training, the less. Here

    each pick: the idle devices with the fewest orders so far; equal counts in random order

All devices get equally many orders, whatever their speed, as long as no device trains for longer than the others take
to catch up with it. The server still waits for no device. It receives fewer updates per second, because slow devices
are in training for a larger share of the time.

A rule of this project. A lost order counts, because otherwise a device that loses every order would always be first. A
device that was away begins with at least the fewest orders of the available ones: it does not catch up with
what it has missed, in orders back to back.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offbeat.algorithms.about import About
from offbeat.core.selection import Devices, SelectionView, Selector
from offbeat.selection.utility import best_first


@dataclass
class BalancedState:
    """How often each device was ordered, and which are available."""

    orders: npt.NDArray[np.int64]
    available: npt.NDArray[np.bool_]


class Balanced(Selector):
    """Orders the devices that were ordered least often, so that slow ones contribute as often as fast ones.

    >>> from offbeat.algorithms import FedBuff
    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedBuff(buffer=1, concurrency=2), devices=3, selector=Balanced())
    >>> slow, fast = session.first.ordered
    >>> session.upload(device=fast).ordered == [3 - slow - fast]  # the only one without an order
    True
    >>> again = session.upload(ticket=3).ordered + session.upload(ticket=4).ordered  # the slow device still trains
    >>> sorted([slow, *again]) == [0, 1, 2]
    True
    """

    State = BalancedState
    about = About(name="balanced", provenance="ours")

    def init(self, view: SelectionView) -> BalancedState:
        away = [view.is_away(device) for device in range(view.devices)]
        return BalancedState(orders=np.zeros(view.devices, dtype=np.int64), available=~np.array(away, dtype=bool))

    def ordered(self, device: int, state: BalancedState, view: SelectionView) -> None:
        state.orders[device] += 1

    def came(self, device: int, state: BalancedState, view: SelectionView) -> None:
        if state.available.any():
            state.orders[device] = max(state.orders[device], state.orders[state.available].min())
        state.available[device] = True

    def left(self, device: int, state: BalancedState, view: SelectionView) -> None:
        state.available[device] = False

    def pick(self, count: int, idle: Devices, state: BalancedState, view: SelectionView) -> list[int]:
        picked: list[int] = best_first(idle, -state.orders[idle].astype(np.float64), view.random)[:count].tolist()
        return picked
