"""Settings of single devices (`[devices.NAME]`): speed, link, availability (in a simulation) and local work."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order
from offbeat.core.settings import Settings
from offbeat.fleet.availability import Availability, OnOff
from offbeat.fleet.fleet import Fleet
from offbeat.fleet.speeds import Speeds
from offbeat.fleet.workload import Floats

Bandwidth = Annotated[float, Field(gt=0)] | None


class DeviceSettings(Settings):
    """What one device does differently; the rest is as in the other tables."""

    slowdown: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    """Times as long as `[fleet]` says that training takes."""
    uplink_mbps: Bandwidth = None
    """Upload bandwidth in Mbit/s."""
    downlink_mbps: Bandwidth = None
    """Download bandwidth in Mbit/s."""
    latency: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Latency of every message in seconds."""
    on_seconds: Annotated[float, Field(ge=0.001, le=1e9)] | None = None
    """Seconds that it is available, from the start of the run, before it is away for `off_seconds`."""
    off_seconds: Annotated[float, Field(ge=0.001, le=1e9)] | None = None
    """Seconds that it is away."""
    epochs: Annotated[int, Field(ge=1)] | None = None
    """Epochs of an order that would have `local.epochs`."""
    steps: Annotated[int, Field(ge=1)] | None = None
    """Steps of an order that would have `local.steps`."""
    batch_size: Annotated[int, Field(ge=1)] | None = None
    """Samples in a step."""

    @model_validator(mode="after")
    def _both_or_none(self) -> "DeviceSettings":
        if (self.on_seconds is None) != (self.off_seconds is None):
            raise ValueError("give on_seconds and off_seconds, or neither")
        return self


def device_number(given: int | str, names: Sequence[str], devices: int, key: str) -> int:
    """The number of a device that a setting gives by number or name."""
    if given in names:
        return list(names).index(str(given))
    if str(given).isdigit() and int(given) < devices:
        return int(given)
    known = f"0 to {devices - 1}" + (f" or {names[0]}, {names[-1]} ..." if names else "")
    raise InvalidInput(f"{key}: there is no device {given!r}: give one of {known}")


def with_overrides(fleet: Fleet, devices: Mapping[int, DeviceSettings]) -> Fleet:
    """The fleet, with the settings of single devices."""
    if not devices:
        return fleet
    number = max(devices) + 1
    slowdown = np.ones(max(number, len(fleet.availability.present(0.0))))
    cycles = {}
    for device, each in devices.items():
        slowdown[device] = each.slowdown
        fleet.links.override(device, each.uplink_mbps, each.downlink_mbps, each.latency)
        if each.on_seconds is not None and each.off_seconds is not None:
            cycles[device] = OnOff(each.on_seconds, each.off_seconds, np.zeros(1))
    return replace(
        fleet,
        speeds=SlowedSpeeds(fleet.speeds, slowdown),
        availability=OwnAvailability(fleet.availability, cycles) if cycles else fleet.availability,
    )


class SlowedSpeeds(Speeds):
    """The speeds of a fleet, slowed down by a factor for each device."""

    def __init__(self, speeds: Speeds, slowdown: Floats) -> None:
        self._speeds = speeds
        self._slowdown = slowdown
        self.measured_links = speeds.measured_links
        self.measured_availability = speeds.measured_availability
        self.names = speeds.names
        self.random_layers = speeds.random_layers

    def slice_seconds(self, device: int, ticket: int, order: Order) -> Sequence[float]:
        factor = self._slowdown.item(device)
        seconds = self._speeds.slice_seconds(device, ticket, order)
        return seconds if factor == 1.0 else [factor * each for each in seconds]

    def layer_speeds(self) -> Floats | None:
        speeds = self._speeds.layer_speeds()
        return None if speeds is None else speeds / self._slowdown


class OwnAvailability:
    """The availability of a fleet, with cycles of their own for some devices."""

    always = False

    def __init__(self, others: Availability, cycles: Mapping[int, OnOff]) -> None:
        self._others = others
        self._cycles = cycles

    def present(self, at: float) -> npt.NDArray[np.bool_]:
        """Which devices are available, over all devices."""
        present = self._others.present(at).copy()
        for device, cycle in self._cycles.items():
            present[device] = cycle.available(0, at)
        return present

    def available(self, device: int, at: float) -> bool:
        """Whether this device is available."""
        cycle = self._cycles.get(device)
        return self._others.available(device, at) if cycle is None else cycle.available(0, at)

    def next_change(self, device: int, at: float) -> float:
        """When the device next becomes available or unavailable."""
        cycle = self._cycles.get(device)
        return self._others.next_change(device, at) if cycle is None else cycle.next_change(0, at)
