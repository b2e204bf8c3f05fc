"""Fleets with random training times: Zipf, exponential and Bernoulli.

Every draw comes from the random stream of its device and ticket, independent of all other orders.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, Self, cast

import numpy as np
from pydantic import Field, model_validator

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order
from offbeat.core.streams import stream
from offbeat.fleet.speeds import (
    CostSettings,
    FixedSpeeds,
    FleetSettings,
    Speeds,
    batch_of,
    cost_of_width,
    share_of_epoch,
    steps_per_epoch,
)
from offbeat.fleet.workload import Floats, Workload

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Success = Annotated[float, Field(gt=0, le=1)]
Delay = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def per_device(key: str, value: float | Sequence[float], devices: int) -> Floats:
    """A setting that is one number for all devices, or one per device."""
    if isinstance(value, float):
        return np.full(devices, value)
    if len(value) != devices:
        raise InvalidInput(f"fleet.{key} has {len(value)} values for {devices} devices: give one value per device.")
    return np.array(value, dtype=np.float64)


class ZipfSpeeds(Speeds):
    """A constant time per epoch plus a random idle time. Steps share those of their epoch, each layer draws its own."""

    def __init__(self, epoch_seconds: Floats, cumulative: Floats, workload: Workload) -> None:
        self.epoch_seconds = epoch_seconds
        self.cumulative = cumulative
        """P(idle time <= k + 1 seconds) at index k."""
        self.samples = workload.timed_samples
        self.layers = workload.layers
        self.seed = workload.seed

    def slice_seconds(self, device: int, ticket: int, order: Order) -> Sequence[float]:
        samples, draws = self.samples.item(device), order.slices
        per_epoch = steps_per_epoch(order, samples) if order.unit == "step" else 1
        uniform = stream(self.seed, "speed", device, ticket).random(-(-draws // per_epoch))
        idle = 1 + np.searchsorted(self.cumulative, uniform, side="right")
        if per_epoch > 1:  # so that the steps of an epoch together take as long as an epoch
            idle = idle.repeat(per_epoch)[:draws]
        share = share_of_epoch(order, samples, self.layers)
        return cast(list[float], ((self.epoch_seconds.item(device) + idle) * share).tolist())

    def layer_speeds(self) -> Floats:
        idle = 1.0 + (1.0 - self.cumulative[:-1]).sum()  # E[count] is the sum of P(count > k)
        speeds: Floats = self.samples * self.layers / (self.epoch_seconds + idle)
        return speeds


class ZipfFleet(CostSettings):
    """Devices of equal speed with a Zipf distributed idle time after each epoch (SEAFL sec. III)."""

    name: Literal["zipf"] = "zipf"
    exponent: float = Field(1.7, ge=0, allow_inf_nan=False)
    """s in P(idle for k seconds) ~ k^-s."""
    max_seconds: int = Field(60, ge=1, le=1_000_000)
    """Longest idle time."""
    draw: Literal["epoch", "device"] = "epoch"
    """"epoch": a new idle time after each epoch, so that no device stays slow; "device": one idle time per device for
    the whole run, as in Plato, on which SEAFL was built."""

    def build(self, workload: Workload) -> Speeds:
        cumulative = np.cumsum(np.arange(1.0, self.max_seconds + 1) ** -self.exponent)
        cumulative /= cumulative[-1]
        epoch_seconds = self.epoch_times(workload, np.ones(workload.devices))
        if self.draw == "epoch":
            return ZipfSpeeds(epoch_seconds, cumulative, workload)
        uniform = stream(workload.seed, "idle").random(workload.devices)
        return FixedSpeeds(epoch_seconds + 1 + np.searchsorted(cumulative, uniform, side="right"), workload)


class ExponentialSpeeds(Speeds):
    """Each layer of each step takes an exponential time with mean batch / speed; an epoch takes the sum."""

    random_layers = True

    def __init__(self, speeds: Floats, workload: Workload) -> None:
        self.speeds = speeds
        """P_u of the paper: samples per second, through one layer."""
        self.samples = workload.timed_samples
        self.layers = workload.layers
        self.seed = workload.seed

    def slice_seconds(self, device: int, ticket: int, order: Order) -> Sequence[float]:
        random = stream(self.seed, "speed", device, ticket)
        samples, speed = self.samples.item(device), self.speeds.item(device)
        batch = batch_of(order, samples)
        speed /= cost_of_width(order)
        if order.unit == "layer":
            seconds = random.exponential(batch / speed, order.slices)
        else:
            steps = steps_per_epoch(order, samples)
            # Treats batches as equal, though the last may be smaller: the mean is exact and the sum is one Gamma draw.
            drawn = 1 if order.unit == "step" else steps
            seconds = random.gamma(drawn * self.layers, samples / steps / speed, order.slices)
        return cast(list[float], seconds.tolist())

    def layer_speeds(self) -> Floats:
        return self.speeds


class ExponentialFleet(FleetSettings):
    """Exponential time per layer with mean batch / speed, and a random speed for each device (ADEL-FL)."""

    name: Literal["exponential"] = "exponential"
    slowest: Rate = 50.0
    """Lowest speed, in samples per second through one layer."""
    fastest: Rate = 500.0
    """Highest speed; speeds are uniform between the two."""
    speeds: list[Rate] | None = None
    """The speed of each device, instead of random ones."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.slowest > self.fastest:
            raise ValueError(f"slowest = {self.slowest} exceeds fastest = {self.fastest}")
        return self

    def build(self, workload: Workload) -> Speeds:
        if self.speeds is not None:
            speeds = per_device("speeds", self.speeds, workload.devices)
        else:
            speeds = stream(workload.seed, "slowness").uniform(self.slowest, self.fastest, workload.devices)
        return ExponentialSpeeds(speeds, workload)


class BernoulliSpeeds(Speeds):
    """An order takes k - 1/2 iterations, k geometric: sent when an iteration starts, its upload arrives in the k-th.

    This includes the transfers: links take no time.
    """

    def __init__(self, success: Floats, iteration_seconds: float, seed: int, repetition: int) -> None:
        self.success = success
        """phi_i of the paper."""
        self.iteration_seconds = iteration_seconds
        self.seed = seed
        self.keys = (repetition,) if repetition else ()
        unlimited = np.full(len(success), np.inf)
        self.measured_links = {
            "uplink_mbps": unlimited,
            "downlink_mbps": unlimited,
            "latency": np.zeros(len(success)),
        }

    def slice_seconds(self, device: int, ticket: int, order: Order) -> Sequence[float]:
        draw = stream(self.seed, "speed", device, ticket, *self.keys)
        iterations = int(draw.geometric(self.success.item(device)))
        return [(iterations - 0.5) * self.iteration_seconds / order.slices] * order.slices


class BernoulliFleet(FleetSettings):
    """Each device uploads in an iteration with a fixed probability, and retries if it fails (AUDG, PSURDG)."""

    name: Literal["bernoulli"] = "bernoulli"
    iteration_seconds: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Length of an iteration; equal to that of the algorithm, if it has one."""
    success: Success | list[Success] | None = None
    """Probability of an upload per iteration: one for all devices, or a list with one per device. It covers all causes
    of delay: `[network]` is not used."""
    mean_delay: Delay | list[Delay] | None = None
    """Mean number of failed iterations, 1 / success - 1, instead of success."""
    repetition: int = Field(0, ge=0)
    """Number of a Monte-Carlo repetition, which changes the delays but not data or model."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.success is None) == (self.mean_delay is None):
            raise ValueError("give exactly one of success and mean_delay")
        return self

    def build(self, workload: Workload) -> Speeds:
        success = self.probabilities(workload.devices)
        return BernoulliSpeeds(success, self.iteration_seconds, workload.seed, self.repetition)

    def probabilities(self, devices: int) -> Floats:
        """The success probability of each device."""
        if self.success is not None:
            return per_device("success", self.success, devices)
        assert self.mean_delay is not None
        return 1.0 / (1.0 + per_device("mean_delay", self.mean_delay, devices))
