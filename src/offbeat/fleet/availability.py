"""When devices are there at all: always, on and off in turn, each device with a phase of its own, or as measured."""

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
    """Which devices are there at a time."""

    @property
    def always(self) -> bool:
        """Nobody ever leaves, so nobody need ask."""

    def present(self, at: float) -> npt.NDArray[np.bool_]:
        """Who is there, over all devices."""

    def available(self, device: int, at: float) -> bool:
        """Whether this device is there at this time."""

    def next_change(self, device: int, at: float) -> float:
        """When the device next comes or goes: strictly after `at`, inf if never."""


class Always:
    """Every device is there all the time."""

    always = True

    def __init__(self, devices: int) -> None:
        self.devices = devices

    def present(self, at: float) -> npt.NDArray[np.bool_]:
        """Every device is there."""
        return np.ones(self.devices, dtype=bool)

    def available(self, device: int, at: float) -> bool:
        """The device is there."""
        return True

    def next_change(self, device: int, at: float) -> float:
        """Never: the answer is infinity."""
        return math.inf


class OnOff:
    """Cycle k of a device begins at k * period - phase: it comes then, and goes `on` seconds later.

    These two expressions are the truth. A state is found by comparing the time with the very numbers that `next_change`
    returns, never by a remainder, which round-off may put on the wrong side of a change.
    """

    always = False

    def __init__(self, on: float, off: float, phases: Floats) -> None:
        self.on = on
        self.period = on + off
        self.phases = phases

    def _comes(self, cycle: Times, phase: Times) -> Times:
        return cycle * self.period - phase

    def _cycle(self, at: float, phase: Times) -> Times:
        """The cycle that the time lies in; the division may miss by one, so it is put right."""
        cycle = (at + phase) // self.period
        cycle = cycle - (self._comes(cycle, phase) > at)
        return cycle + (self._comes(cycle + 1, phase) <= at)

    def present(self, at: float) -> npt.NDArray[np.bool_]:
        """Which devices are in the first part of their cycle, over all devices."""
        return at < self._comes(self._cycle(at, self.phases), self.phases) + self.on

    def available(self, device: int, at: float) -> bool:
        """Whether this device is in the first part of its cycle."""
        phase = self.phases.item(device)
        return at < self._comes(self._cycle(at, phase), phase) + self.on

    def next_change(self, device: int, at: float) -> float:
        """When the device goes, or, if it is away, when its next cycle begins: always after `at`."""
        phase = self.phases.item(device)
        cycle = self._cycle(at, phase)
        goes = self._comes(cycle, phase) + self.on
        return goes if at < goes else self._comes(cycle + 1, phase)


class AvailabilitySettings(Settings):
    """The base of all kinds of availability, also of the user's own; its fields are the keys of the table."""

    name: str = ""

    @abstractmethod
    def build(self, workload: Workload) -> Availability:
        """The availability of the workload's devices."""


class AlwaysAvailable(AvailabilitySettings):
    """Every device is there all the time."""

    name: Literal["always"] = "always"

    def build(self, workload: Workload) -> Availability:
        return Always(workload.devices)


class OnOffAvailable(AvailabilitySettings):
    """Devices are there for on_seconds and away for off_seconds, in turn, each from a random point on."""

    name: Literal["on-off"] = "on-off"
    # The limits keep both parts of a cycle far above the round-off of any time that a run can reach.
    on_seconds: float = Field(600.0, ge=0.001, le=1e9)
    """How long a device stays."""
    off_seconds: float = Field(300.0, ge=0.001, le=1e9)
    """How long it stays away."""

    def build(self, workload: Workload) -> Availability:
        period = self.on_seconds + self.off_seconds
        phases = stream(workload.seed, "availability").uniform(0.0, period, workload.devices)
        return OnOff(self.on_seconds, self.off_seconds, phases)


class TraceAvailable(AvailabilitySettings, MeasuredSeries):
    """Devices come and go as a CSV file says: a row for each change, with the columns device, time, available."""

    name: Literal["trace"] = "trace"

    def build(self, workload: Workload) -> Availability:
        found = self.read("availability", ("device", "time", "available"))
        if "available" not in found:
            raise InvalidInput(
                f"availability.path: {found.path} needs a column 'available'; say with availability.columns what it is "
                "called."
            )
        return traced_availability(self, found, workload, "availability trace")
