"""What a fleet needs to know about an experiment to time its orders."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """The devices, their samples, and the cost of the model."""

    devices: int
    samples: Integers
    """Training samples of each device."""
    layers: int
    """Layers of the model."""
    flops_per_sample: float
    """Floating-point operations of forward and backward pass on one sample; 0 if unknown."""
    seed: int
    names: Sequence[str] | None = None
    """The names of the devices, if their data or their fleet have names."""
    named_by: str = "[fleet]"
    """Where the names come from, for messages."""

    def __post_init__(self) -> None:
        if self.samples.shape != (self.devices,):
            raise ValueError(
                f"samples has shape {self.samples.shape}; it must have one number for each of {self.devices} devices"
            )

    @cached_property
    def timed_samples(self) -> Integers:
        """`samples`, but at least 1: the orders of a device without data take time too."""
        return np.maximum(self.samples, 1)
