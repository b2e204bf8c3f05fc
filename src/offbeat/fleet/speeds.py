"""Training times of orders: the interface, and the fleets whose devices keep one speed for the whole run.

A fleet is arrays over devices. `slice_seconds` is called once per simulated order and reads numbers with
`ndarray.item`, which is several times faster than indexing.
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

LONGEST_EPOCH = 1e12
"""Seconds; a virtual clock in 64-bit numbers still resolves a millisecond there."""


class Speeds(ABC):
    """The training times of the devices of a fleet."""

    measured_links: Mapping[str, Bandwidths] = NOTHING_MEASURED
    """Links that were measured together with the speeds, by the name of the setting."""

    measured_availability: TracedAvailability | None = None
    """Availability that was measured together with the speeds."""

    names: Sequence[str] | None = None
    """The names of the devices, if a trace has names."""

    random_layers: bool = False
    """Whether the time of each layer is random."""

    def layer_speeds(self) -> Floats | None:
        """Mean samples per second through one layer; None if times do not depend on the amount of work."""
        return None

    @abstractmethod
    def slice_seconds(self, device: int, ticket: int, order: Order) -> Sequence[float]:
        """Seconds for each slice of the order, a function of the seed and the arguments."""


class FleetSettings(Settings):
    """The base of all fleets, including users' own; its fields are the keys of `[fleet]`."""

    name: str = ""
    watts: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Power of a device in training, in watts; adds the column energy_wh (training seconds x watts)."""

    @abstractmethod
    def build(self, workload: Workload) -> Speeds:
        """The speeds of this fleet's devices."""


def batch_of(order: Order, samples: int) -> int:
    """Samples in one step of the order: at most those that the device holds."""
    return samples if order.batch_size is None else min(order.batch_size, samples)


def share_of_epoch(order: Order, samples: int, layers: int) -> float:
    """The cost of one slice of the order, as a fraction of an epoch with the whole model.

    The steps of an epoch share its time equally, though its last batch may be smaller.

    >>> share_of_epoch(Order(unit="layer", batch_size=25), samples=100, layers=5)
    0.05
    >>> share_of_epoch(Order(unit="step", batch_size=30), samples=100, layers=5)
    0.25
    """
    whole = 1.0
    if order.unit == "layer":
        whole = batch_of(order, samples) / samples / layers
    elif order.unit == "step":
        whole = 1.0 / steps_per_epoch(order, samples)
    return whole * cost_of_width(order)


def steps_per_epoch(order: Order, samples: int) -> int:
    """Optimiser steps in one pass over the samples, of which there is at least one."""
    return -(-samples // batch_of(order, samples))


def cost_of_width(order: Order) -> float:
    """The relative cost of a width r: r times the inputs and r times the outputs, so r^2 of the multiplications."""
    return order.width**2


class FixedSpeeds(Speeds):
    """A constant time per epoch on each device."""

    def __init__(
        self, epoch_seconds: Floats, workload: Workload, measured_links: Mapping[str, Bandwidths] = NOTHING_MEASURED
    ) -> None:
        longest = float(epoch_seconds.max(initial=0.0))
        if not longest <= LONGEST_EPOCH:
            raise InvalidInput(
                f"fleet: an epoch takes {longest:.3g} s on device {int(epoch_seconds.argmax())}: it must be at most "
                f"{LONGEST_EPOCH:g} s"
            )
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
    """The base of fleets that time a device by its slowness: 1 for the fastest, 2 for one that takes twice as long."""

    epoch_seconds: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Seconds per epoch on the fastest device (not used if cost is "flops")."""
    cost: Literal["seconds", "samples", "flops"] = "seconds"
    """Time of an epoch. "seconds": epoch_seconds x slowness, for any number of samples; "samples": the same, times the
    device's samples / mean samples; "flops": the model's operations at `gflops`, x slowness."""
    gflops: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Speed of the fastest device in 10^9 operations per second (used if cost is "flops")."""

    def epoch_times(self, workload: Workload, slowness: Floats) -> Floats:
        """Seconds per epoch on each device."""
        if self.cost != "flops":
            return self.scaled(workload, self.epoch_seconds * slowness)
        if workload.flops_per_sample <= 0:
            raise InvalidInput(
                "fleet.cost = 'flops', but the operations of this model are unknown: use 'seconds' or 'samples'."
            )
        return workload.flops_per_sample * workload.timed_samples / (self.gflops * 1e9) * slowness

    def scaled(self, workload: Workload, seconds: Floats) -> Floats:
        """Seconds per epoch, scaled with each device's number of samples if cost is "samples"."""
        if self.cost != "samples":
            return seconds
        share: Floats = workload.timed_samples / workload.timed_samples.mean()
        return seconds * share


class RatioFleet(CostSettings):
    """Epoch times uniform between the fastest device's and `ratio` times that (FedASMU: 5, 110, 440)."""

    name: Literal["ratio"] = "ratio"
    ratio: float = Field(5.0, ge=1, allow_inf_nan=False)
    """Epoch time of the slowest possible device / fastest."""

    def build(self, workload: Workload) -> Speeds:
        slowness = stream(workload.seed, "slowness").uniform(1.0, self.ratio, workload.devices)
        return FixedSpeeds(self.epoch_times(workload, slowness), workload)


class ParetoFleet(CostSettings):
    """Heavy-tailed epoch times: Pareto distributed, a few devices far slower than the rest (SEAFL sec. VI)."""

    name: Literal["pareto"] = "pareto"
    shape: float = Field(1.5, gt=0, allow_inf_nan=False)
    """P(slowness > x) = x^-shape: a smaller shape means more very slow devices."""
    most: float = Field(100.0, ge=1)
    """Largest slowness; larger ones are clipped (inf: no limit)."""

    def build(self, workload: Workload) -> Speeds:
        # numpy's "pareto" is the Lomax distribution, which starts at 0.
        slowness = 1.0 + stream(workload.seed, "slowness").pareto(self.shape, workload.devices)
        return FixedSpeeds(self.epoch_times(workload, np.minimum(slowness, self.most)), workload)


class BimodalFleet(CostSettings):
    """Two kinds of devices: fast ones, and a share of slow ones that take `slowness` times as long."""

    name: Literal["bimodal"] = "bimodal"
    slow_share: float = Field(0.2, ge=0, le=1)
    """Share of the devices, drawn at random, that are slow."""
    slowness: float = Field(10.0, ge=1, allow_inf_nan=False)
    """Epoch time of a slow device / fast device."""

    def build(self, workload: Workload) -> Speeds:
        slowness = np.ones(workload.devices)
        slow = stream(workload.seed, "slowness").permutation(workload.devices)
        slowness[slow[: round(self.slow_share * workload.devices)]] = self.slowness
        return FixedSpeeds(self.epoch_times(workload, slowness), workload)
