"""Norms of updates, and their running median over devices: the yardstick for an update that moves too far."""

from bisect import bisect_left, insort
from collections.abc import Mapping

import numpy as np

from offbeat.core.parameters import THREADED_FROM, Vector, blockwise

FEWEST_DEVICES = 3
"""Devices that must have reported before there is a median: with three, one of them cannot set it."""


def distance(one: Vector, other: Vector, threaded_from: int = THREADED_FROM) -> float:
    """The Euclidean distance in float64, block by block; inf or nan if an element is not finite.

    >>> distance(np.float32([3.0, 1.0]), np.float32([0.0, 5.0]))
    5.0
    """
    squares: dict[int, float] = {}

    def add(block: slice) -> None:
        with np.errstate(invalid="ignore"):
            difference = one[block].astype(np.float64) - other[block]
        squares[block.start] = float(np.einsum("i,i->", difference, difference))

    blockwise(len(one), add, threaded_from)
    return float(np.sqrt(sum(squares[start] for start in sorted(squares))))


class RunningMedian:
    """The median over devices of the norm that each has reported last. A device has one vote, however often it reports.

    As long as fewer than half of the devices lie, the median is between two honest norms. Refused updates vote too: if
    the norms of most devices grow, so does the median.

    >>> norms = RunningMedian()
    >>> for device, norm in enumerate([1.0, 2.0, 3.0, 1e30]):
    ...     norms.note(device, norm)
    >>> norms.note(3, 1e31)
    >>> norms.median
    2.0
    """

    __slots__ = ("_ordered", "last")

    def __init__(self, last: Mapping[int, float] | None = None) -> None:
        self.last: dict[int, float] = dict(last or {})
        """The last norm of each device: all that a snapshot needs."""
        self._ordered = sorted(self.last.values())

    def note(self, device: int, norm: float) -> None:
        """Note the norm of an update of this device."""
        if (before := self.last.get(device)) is not None:
            del self._ordered[bisect_left(self._ordered, before)]
        self.last[device] = norm
        insort(self._ordered, norm)

    @property
    def median(self) -> float | None:
        """The lower median; None before `FEWEST_DEVICES` have reported, and if it is 0, which measures nothing."""
        if len(self._ordered) < FEWEST_DEVICES:
            return None
        return self._ordered[(len(self._ordered) - 1) // 2] or None
