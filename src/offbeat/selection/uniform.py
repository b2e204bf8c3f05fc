"""Uniform selection: every idle device is equally likely. The default.

    each pick: a draw without replacement from the idle devices

Most published rules are analysed for it. The session does the draw itself, from the policy's random stream.
"""

from dataclasses import dataclass

from offbeat.algorithms.about import About
from offbeat.core.selection import Devices, SelectionView, Selector


@dataclass
class UniformState:
    """Nothing: every draw is independent of the past."""


class Uniform(Selector):
    """Draws idle devices uniformly, without replacement."""

    State = UniformState
    about = About(name="uniform", paper="", provenance="published")

    def pick(self, count: int, idle: Devices, state: UniformState, view: SelectionView) -> list[int]:
        chosen: list[int] = view.random.choice(idle, min(count, len(idle)), replace=False).tolist()
        return chosen
