"""Bandwidth and availability that change over time, as a trace has measured them.

A value holds until the next. Virtual time 0 is the earliest time in the file. When a device's trace ends it
begins anew: after `repeat_seconds` or, without them, after its last time and as long again as the last step took.
Before a device's first time it has its last value, as at the end of the round before.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import inf

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.fleet.measurements import FINITE, NOT_NEGATIVE, MeasuredFile, Measurements
from offbeat.fleet.workload import Floats, Workload


class VaryingBandwidth:
    """The bandwidth of one device over time, which repeats itself with a period."""

    def __init__(self, times: Sequence[float], mbps: Sequence[float], period: float) -> None:
        self._times = [*times, period]
        self._rates = [rate * 1e6 for rate in mbps]
        lengths = np.diff(self._times)
        self._sent: list[float] = [0.0, *np.cumsum(lengths * np.array(self._rates)).tolist()]
        """Bits that can be sent in a period until each of the times."""
        self.period = period
        self.mean = self._sent[-1] / period
        """Bits per second, over a period."""

    def seconds(self, bits: float, at: float) -> float:
        """How long it takes to send so many bits from this time on."""
        if not bits:
            return 0.0
        start = at % self.period
        place = bisect_right(self._times, start) - 1
        room = (self._times[place + 1] - start) * self._rates[place]
        if bits <= room:  # by far the most frequent: it is done before the bandwidth changes
            return bits / self._rates[place]
        bits += self._sent[place + 1] - room
        rounds, rest = divmod(bits, self._sent[-1])
        if not rest:  # done with a round, not with the beginning of the next
            rounds, rest = rounds - 1, self._sent[-1]
        last = bisect_left(self._sent, rest) - 1
        return rounds * self.period + self._times[last] + (rest - self._sent[last]) / self._rates[last] - start


class TracedAvailability:
    """Devices that come and go at the times of a trace: change i of round k happens at k * period + time i.

    These sums are the truth: a state is found by comparing the time with them, never by a remainder, which round-off
    may put on the wrong side of a change.
    """

    def __init__(self, changes: Sequence[Sequence[float]], first: Sequence[bool], periods: Sequence[float]) -> None:
        self._changes = changes
        """When each device comes or goes, in its period."""
        self._first = first
        """Whether each device is there when a period begins."""
        self._periods = periods
        self.always = all(first) and not any(changes)

    def _place(self, device: int, at: float) -> tuple[float, int]:
        """The round that the time lies in (the division may miss by one), and how many of its changes are over."""
        period = self._periods[device]
        number = at // period
        number -= number * period > at
        number += (number + 1) * period <= at
        return number, bisect_right(self._changes[device], at, key=lambda change: number * period + change)

    def present(self, at: float) -> npt.NDArray[np.bool_]:
        """Who is there at this time, over all devices."""
        return np.array([self.available(device, at) for device in range(len(self._first))], dtype=bool)

    def available(self, device: int, at: float) -> bool:
        """Whether the device is there at this time."""
        return self._first[device] != bool(self._place(device, at)[1] % 2)

    def next_change(self, device: int, at: float) -> float:
        """The next time at which the device comes or goes: strictly after this one, inf if never."""
        changes, period = self._changes[device], self._periods[device]
        if not changes:
            return inf
        number, over = self._place(device, at)
        return number * period + changes[over] if over < len(changes) else (number + 1) * period + changes[0]


class MeasuredSeries(MeasuredFile):
    """A file with a row for each change: the columns device, time and what changes."""

    repeat_seconds: float | None = Field(None, gt=0, allow_inf_nan=False)
    """After how long a trace begins anew, for instance 86400 for a day (default: each device's at its own end)."""


def rounds_of(found: Measurements, repeat: float | None) -> list[tuple[list[int], list[float], float]]:
    """For each of the file's devices its rows, their times in the order of the file, and the length of a round."""
    if "time" not in found:
        raise InvalidInput(
            f"{found.where}.path: {found.path} needs a column 'time'; say with {found.where}.columns what it is called."
        )
    times = found.numbers("time", FINITE)
    times = times - times.min()
    rounds = []
    for rows in found.devices().values():
        own = times[rows].tolist()
        for place in range(1, len(rows)):
            if own[place] <= own[place - 1]:
                raise found.wrong(rows[place], "time", "later than in the device's row before")
        end = own[-1] + (own[-1] - own[-2] if len(own) > 1 else 1.0)
        if repeat is not None and repeat <= own[-1]:
            raise found.wrong(rows[-1], "time", f"before {found.where}.repeat_seconds = {repeat:g}")
        rounds.append((rows, own, end if repeat is None else repeat))
    return rounds


def bandwidths(found: Measurements, quantity: str, repeat: float | None) -> list[VaryingBandwidth]:
    """The bandwidth of each of the file's devices over time."""
    column: Floats = found.numbers(quantity, NOT_NEGATIVE)
    made = []
    for rows, times, period in rounds_of(found, repeat):
        rates = column[rows].tolist()
        if not any(rates):
            raise found.wrong(rows[0], quantity, "more than zero at some time: this device could never send anything")
        if times[0] > 0:
            times, rates = [0.0, *times], [rates[-1], *rates]
        made.append(VaryingBandwidth(times, rates, period))
    return made


def traced_availability(
    settings: MeasuredSeries, found: Measurements, workload: Workload, role: str
) -> TracedAvailability:
    """The availability of the experiment's devices, as measured."""
    states = found.switches("available")
    rounds = rounds_of(found, settings.repeat_seconds)
    chosen = settings.assigned(found, list(found.devices()), workload, role).tolist()
    changes, first, periods = [], [], []
    for rows, times, period in (rounds[number] for number in chosen):
        own = [states[row] for row in rows]
        before = [own[-1], *own]  # the round before ends with the last state, which holds until the first time
        switched = [time for time, old, new in zip(times, before, own, strict=False) if old != new]
        changes.append(switched)
        first.append(own[-1])
        periods.append(period)
    return TracedAvailability(changes, first, periods)
