"""Bandwidth and availability over time, from traces.

A value holds until the next. Virtual time 0 is the earliest time in the file. A device's trace is periodic, with period
`repeat_seconds` or, by default, its last time plus the length of its last interval. Before its first time a device has
its last value, as at the end of a period.
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
    """The bandwidth of one device over time, which is periodic."""

    def __init__(self, times: Sequence[float], mbps: Sequence[float], period: float) -> None:
        self._times = [*times, period]
        self._rates = [rate * 1e6 for rate in mbps]
        lengths = np.diff(self._times)
        self._sent: list[float] = [0.0, *np.cumsum(lengths * np.array(self._rates)).tolist()]
        """Bits that can be sent from the start of a period to each of the times."""
        self.period = period
        self.mean = self._sent[-1] / period
        """Mean bits per second over a period."""

    def seconds(self, bits: float, at: float) -> float:
        """Seconds to send these bits from this time on."""
        if not bits:
            return 0.0
        start = at % self.period
        index = bisect_right(self._times, start) - 1
        room = (self._times[index + 1] - start) * self._rates[index]
        if bits <= room:  # the most frequent case: done before the bandwidth changes
            return bits / self._rates[index]
        bits += self._sent[index + 1] - room
        rounds, rest = divmod(bits, self._sent[-1])
        if not rest:  # done at the end of a period, not at the beginning of the next
            rounds, rest = rounds - 1, self._sent[-1]
        last = bisect_left(self._sent, rest) - 1
        return rounds * self.period + self._times[last] + (rest - self._sent[last]) / self._rates[last] - start


class TracedAvailability:
    """Availability from a trace: change i of period k happens at k * period + time i.

    The state is found by comparing the time with these sums, never by a remainder, which rounding may put on the wrong
    side of a change.
    """

    def __init__(self, changes: Sequence[Sequence[float]], first: Sequence[bool], periods: Sequence[float]) -> None:
        self._changes = changes
        """The times of each device's changes, within its period."""
        self._first = first
        """Whether each device is available when a period begins."""
        self._periods = periods
        self.always = all(first) and not any(changes)

    def _position(self, device: int, at: float) -> tuple[float, int]:
        """The period of a time (the division may be off by one, which is corrected), and its number of past changes."""
        period = self._periods[device]
        number = at // period
        number -= number * period > at
        number += (number + 1) * period <= at
        return number, bisect_right(self._changes[device], at, key=lambda change: number * period + change)

    def present(self, at: float) -> npt.NDArray[np.bool_]:
        """Which devices are available at this time."""
        return np.array([self.available(device, at) for device in range(len(self._first))], dtype=bool)

    def available(self, device: int, at: float) -> bool:
        """Whether the device is available at this time."""
        return self._first[device] != bool(self._position(device, at)[1] % 2)

    def next_change(self, device: int, at: float) -> float:
        """When the device next becomes available or unavailable, strictly after `at`; inf: never."""
        changes, period = self._changes[device], self._periods[device]
        if not changes:
            return inf
        number, over = self._position(device, at)
        return number * period + changes[over] if over < len(changes) else (number + 1) * period + changes[0]


class MeasuredSeries(MeasuredFile):
    """A file with a row for each change: columns device, time and the quantity that changes."""

    repeat_seconds: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Period of the trace in seconds, for example 86400 for a day (default: each device's own length)."""


def rounds_of(found: Measurements, repeat: float | None) -> list[tuple[list[int], list[float], float]]:
    """For each of the file's devices its rows, their times in the order of the file, and its period."""
    if "time" not in found:
        raise InvalidInput(
            f"{found.where}.path: {found.path} has no column 'time': add it, or name it with {found.where}.columns."
        )
    times = found.numbers("time", FINITE)
    times = times - times.min()
    rounds = []
    for rows in found.devices().values():
        own = times[rows].tolist()
        for index in range(1, len(rows)):
            if own[index] <= own[index - 1]:
                raise found.wrong(rows[index], "time", "later than in the device's previous row")
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
            raise found.wrong(rows[0], quantity, "above zero at some time: this device could never send anything")
        if times[0] > 0:
            times, rates = [0.0, *times], [rates[-1], *rates]
        made.append(VaryingBandwidth(times, rates, period))
    return made


def traced_availability(
    settings: MeasuredSeries, found: Measurements, workload: Workload, role: str
) -> TracedAvailability:
    """The availability of the experiment's devices from a trace."""
    states = found.switches("available")
    rounds = rounds_of(found, settings.repeat_seconds)
    chosen = settings.assigned(found, list(found.devices()), workload, role).tolist()
    changes, first, periods = [], [], []
    for rows, times, period in (rounds[number] for number in chosen):
        own = [states[row] for row in rows]
        before = [own[-1], *own]  # a period ends with the last state, which holds until the first time
        switched = [time for time, old, new in zip(times, before, own, strict=False) if old != new]
        changes.append(switched)
        first.append(own[-1])
        periods.append(period)
    return TracedAvailability(changes, first, periods)
