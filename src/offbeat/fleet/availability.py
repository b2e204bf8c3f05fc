"""Availability of devices: always, periodically on and off with a random phase, or from a trace."""

import math
from abc import abstractmethod
from typing import Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.core.settings import Settings
from offbeat.core.streams import stream
from offbeat.fleet.series import MeasuredSeries, traced_availability
from offbeat.fleet.workload import Floats, Workload

Times = TypeVar("Times", float, Floats)


class Availability(Protocol):
    """Which devices are available at a time."""

    @property
    def always(self) -> bool:
        """Whether every device is always available."""

    def present(self, at: float) -> npt.NDArray[np.bool_]:
        """Which devices are available, over all devices."""

    def available(self, device: int, at: float) -> bool:
        """Whether this device is available."""

    def next_change(self, device: int, at: float) -> float:
        """When the device next becomes available or unavailable, strictly after `at`; inf: never."""


class Always:
    """Every device is always available."""

    always = True

    def __init__(self, devices: int) -> None:
        self.devices = devices

    def present(self, at: float) -> npt.NDArray[np.bool_]:
        """All devices."""
        return np.ones(self.devices, dtype=bool)

    def available(self, device: int, at: float) -> bool:
        """Always."""
        return True

    def next_change(self, device: int, at: float) -> float:
        """Infinity: never."""
        return math.inf


class OnOff:
    """Cycle k of a device begins at k * period - phase: it is available from then on for `on` seconds.

    The state is found by comparing the time with the numbers that `next_change` returns, never by a remainder, which
    rounding may put on the wrong side of a change.
    """

    always = False

    def __init__(self, on: float, off: float, phases: Floats) -> None:
        self.on = on
        self.period = on + off
        self.phases = phases

    def _comes(self, cycle: Times, phase: Times) -> Times:
        return cycle * self.period - phase

    def _cycle(self, at: float, phase: Times) -> Times:
        """The cycle of a time; the division may be off by one, which is corrected."""
        cycle = (at + phase) // self.period
        cycle = cycle - (self._comes(cycle, phase) > at)
        return cycle + (self._comes(cycle + 1, phase) <= at)

    def present(self, at: float) -> npt.NDArray[np.bool_]:
        """Which devices are in the first part of their cycle."""
        return at < self._comes(self._cycle(at, self.phases), self.phases) + self.on

    def available(self, device: int, at: float) -> bool:
        """Whether this device is in the first part of its cycle."""
        phase = self.phases.item(device)
        return at < self._comes(self._cycle(at, phase), phase) + self.on

    def next_change(self, device: int, at: float) -> float:
        """The end of the device's availability or, if it is unavailable, the beginning of its next cycle."""
        phase = self.phases.item(device)
        cycle = self._cycle(at, phase)
        goes = self._comes(cycle, phase) + self.on
        return goes if at < goes else self._comes(cycle + 1, phase)


class AvailabilitySettings(Settings):
    """The base of all kinds of availability, including users' own; its fields are the keys of `[availability]`."""

    name: str = ""

    @abstractmethod
    def build(self, workload: Workload) -> Availability:
        """The availability of the workload's devices."""


class AlwaysAvailable(AvailabilitySettings):
    """Every device is always available."""

    name: Literal["always"] = "always"

    def build(self, workload: Workload) -> Availability:
        return Always(workload.devices)


class OnOffAvailable(AvailabilitySettings):
    """Devices are available for on_seconds and unavailable for off_seconds in turn, with a random phase each."""

    name: Literal["on-off"] = "on-off"
    # The limits keep both parts of a cycle far above the rounding error of any virtual time.
    on_seconds: float = Field(600.0, ge=0.001, le=1e9)
    """Seconds that a device is available."""
    off_seconds: float = Field(300.0, ge=0.001, le=1e9)
    """Seconds that it is unavailable."""

    def build(self, workload: Workload) -> Availability:
        period = self.on_seconds + self.off_seconds
        phases = stream(workload.seed, "availability").uniform(0.0, period, workload.devices)
        return OnOff(self.on_seconds, self.off_seconds, phases)


class TraceAvailable(AvailabilitySettings, MeasuredSeries):
    """Availability from a CSV file with a row for each change: columns device, time, available."""

    name: Literal["trace"] = "trace"

    def build(self, workload: Workload) -> Availability:
        found = self.read("availability", ("device", "time", "available"))
        if "available" not in found:
            raise InvalidInput(
                f"availability.path: {found.path} has no column 'available': add it, or name the column with "
                "availability.columns."
            )
        return traced_availability(self, found, workload, "availability trace")
