"""How long an order takes on a device: the interface, and the fleets whose devices keep one speed for the whole run.

A fleet is arrays over devices. `slice_seconds` is called once per simulated order, so it reads single numbers with
`ndarray.item`, which gives a plain float several times faster than indexing does.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order
from offbeat.core.settings import Settings
from offbeat.core.streams import stream
from offbeat.fleet.links import NOTHING_MEASURED, Bandwidths
from offbeat.fleet.series import TracedAvailability
from offbeat.fleet.workload import Floats, Workload


class Speeds(ABC):
    """How long each device takes."""

    measured_links: Mapping[str, Bandwidths] = NOTHING_MEASURED
    """What is known of the devices' links together with their speeds (from a trace), by the name of the setting."""

    measured_availability: TracedAvailability | None = None
    """When the devices are there, if that is known together with their speeds (from a trace)."""

    names: Sequence[str] | None = None
    """What the devices are called, if a trace says so."""

    random_layers: bool = False
    """Whether the time of a layer is drawn anew each time."""

    def layer_speeds(self) -> Floats | None:
        """Samples per second through one layer, on average; None where time does not depend on the work."""
        return None

    @abstractmethod
    def slice_seconds(self, device: int, ticket: int, order: Order) -> Sequence[float]:
        """Seconds for each of the order's slices; depends on nothing but the seed and the arguments."""


class FleetSettings(Settings):
    """The base of all fleets, also of the user's own; its fields are the keys of the table."""

    name: str = ""

    @abstractmethod
    def build(self, workload: Workload) -> Speeds:
        """The speeds of this fleet's devices."""


def batch_of(order: Order, samples: int) -> int:
    """Samples in one step of the order: a device cannot put more into a batch than it holds."""
    return samples if order.batch_size is None else min(order.batch_size, samples)


def share_of_epoch(order: Order, samples: int, layers: int) -> float:
    """Which part of a pass over the device's data, with the whole model, one slice of the order is.

    >>> share_of_epoch(Order(unit="layer", batch_size=25), samples=100, layers=5)
    0.05
    """
    whole = 1.0 if order.unit == "epoch" else batch_of(order, samples) / samples / layers
    return whole * cost_of_width(order)


def cost_of_width(order: Order) -> float:
    """A layer of width r has r times the inputs and r times the outputs, so r^2 of the multiplications."""
    return order.width**2


class FixedSpeeds(Speeds):
    """Every device always takes the same time for an epoch."""

    def __init__(
        self, epoch_seconds: Floats, workload: Workload, measured_links: Mapping[str, Bandwidths] = NOTHING_MEASURED
    ) -> None:
        self.epoch_seconds = epoch_seconds
        self.samples = workload.timed_samples
        self.layers = workload.layers
        self.measured_links = measured_links

    def slice_seconds(self, device: int, ticket: int, order: Order) -> Sequence[float]:
        seconds = self.epoch_seconds.item(device)
        if order.unit != "epoch" or order.width != 1.0:
            seconds *= share_of_epoch(order, self.samples.item(device), self.layers)
        return (seconds,) * order.slices

    def layer_speeds(self) -> Floats:
        return self.samples * self.layers / self.epoch_seconds


class CostSettings(FleetSettings):
    """The base of fleets that time a device by its slowness: 1 for the fastest, 2 if it takes twice as long."""

    epoch_seconds: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Seconds of one pass over the data on the fastest device (not used if cost is "flops")."""
    cost: Literal["seconds", "samples", "flops"] = "seconds"
    """What an epoch takes: "seconds": epoch_seconds x slowness, whatever the device's data; "samples": the same, times
    its samples / the mean; "flops": what the model's operations take at `gflops`, x slowness."""
    gflops: float = Field(1.0, gt=0, allow_inf_nan=False)
    """10^9 operations per second that the fastest device does (used if cost is "flops")."""

    def epoch_times(self, workload: Workload, slowness: Floats) -> Floats:
        """Seconds of one epoch on each device."""
        if self.cost != "flops":
            return self.scaled(workload, self.epoch_seconds * slowness)
        if workload.flops_per_sample <= 0:
            raise InvalidInput(
                "fleet.cost is 'flops', but the operations of this model are unknown: use 'seconds' or 'samples'."
            )
        return workload.flops_per_sample * workload.timed_samples / (self.gflops * 1e9) * slowness

    def scaled(self, workload: Workload, seconds: Floats) -> Floats:
        """Seconds of an epoch over the mean amount of data, scaled to what each device holds if that counts."""
        if self.cost != "samples":
            return seconds
        share: Floats = workload.timed_samples / workload.timed_samples.mean()
        return seconds * share


class RatioFleet(CostSettings):
    """Epoch times uniform between the fastest device's and `ratio` times that (FedASMU: 5, 110, 440)."""

    name: Literal["ratio"] = "ratio"
    ratio: float = Field(5.0, ge=1, allow_inf_nan=False)
    """How many times longer the slowest device takes than the fastest."""

    def build(self, workload: Workload) -> Speeds:
        slowness = stream(workload.seed, "slowness").uniform(1.0, self.ratio, workload.devices)
        return FixedSpeeds(self.epoch_times(workload, slowness), workload)


class ParetoFleet(CostSettings):
    """Heavy-tailed epoch times: Pareto distributed, a few devices far slower than the rest (SEAFL sec. VI)."""

    name: Literal["pareto"] = "pareto"
    shape: float = Field(1.5, gt=0, allow_inf_nan=False)
    """The tail: P(slowness > x) = x^-shape, so a smaller shape means more very slow devices."""
    most: float = Field(100.0, ge=1)
    """The greatest slowness; greater ones are cut down to it (inf: no limit)."""

    def build(self, workload: Workload) -> Speeds:
        # numpy's "pareto" is the Lomax distribution, which starts at 0.
        slowness = 1.0 + stream(workload.seed, "slowness").pareto(self.shape, workload.devices)
        return FixedSpeeds(self.epoch_times(workload, np.minimum(slowness, self.most)), workload)


class BimodalFleet(CostSettings):
    """Two kinds of devices: fast ones, all alike, and a share of slow ones, all `slowness` times as slow."""

    name: Literal["bimodal"] = "bimodal"
    slow_share: float = Field(0.2, ge=0, le=1)
    """The share of the devices that are slow; which ones they are is drawn at random."""
    slowness: float = Field(10.0, ge=1, allow_inf_nan=False)
    """How many times longer a slow device takes than a fast one."""

    def build(self, workload: Workload) -> Speeds:
        slowness = np.ones(workload.devices)
        slow = stream(workload.seed, "slowness").permutation(workload.devices)
        slowness[slow[: round(self.slow_share * workload.devices)]] = self.slowness
        return FixedSpeeds(self.epoch_times(workload, slowness), workload)
