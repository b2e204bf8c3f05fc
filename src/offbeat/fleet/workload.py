"""What a fleet must know about an experiment to say how long its orders take."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """How many devices there are, what data they hold and what model they train."""

    devices: int
    samples: Integers
    """Training samples of each device."""
    layers: int
    """Layers of the model."""
    flops_per_sample: float
    """Forward and backward operations of one sample; 0 if unknown."""
    seed: int
    names: Sequence[str] | None = None
    """What the devices are called, if their fleet says so."""

    def __post_init__(self) -> None:
        if self.samples.shape != (self.devices,):
            raise ValueError(
                f"samples has shape {self.samples.shape}, not one number for each of {self.devices} devices"
            )

    @cached_property
    def timed_samples(self) -> Integers:
        """As `samples`, but a device without data counts as holding one: its orders still take some time."""
        return np.maximum(self.samples, 1)
