"""Which samples a device sees, in which order: a function of (seed, device, ticket, slice) and nothing else.

All trainers draw their batches here, so that they train on the same ones.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from offbeat.core.streams import stream

Indices = npt.NDArray[np.int64]


class SampleLookup(Protocol):
    """Who has which samples."""

    def samples(self, device: int) -> Indices:
        """Indices into the training data."""


class Batches:
    """The training data of all devices. It stays one array; what a device needs is gathered when it is needed."""

    def __init__(
        self, x: npt.ArrayLike | torch.Tensor, y: npt.ArrayLike | torch.Tensor, partition: SampleLookup, seed: int
    ) -> None:
        self.x = np.asarray(x, dtype=np.float32)
        self.y = np.asarray(y, dtype=np.int64)
        self.partition = partition
        self.seed = seed

    def order(self, device: int, ticket: int, k: int, batch_size: int | None) -> Indices:
        """The device's samples in the order of slice k, to be cut into batches. One full batch is not shuffled."""
        samples = self.partition.samples(device)
        if batch_size is None:
            return samples
        return stream(self.seed, "batches", device, ticket, k).permutation(samples)

    def probe(self, device: int, ticket: int, k: int, batch_size: int | None) -> Indices:
        """One random batch for looking at the loss, apart from those that are trained on."""
        samples = self.partition.samples(device)
        size = len(samples) if batch_size is None else min(batch_size, len(samples))
        return stream(self.seed, "probe", device, ticket, k).choice(samples, size, replace=False)

    def steps(self, device: int, batch_size: int | None) -> int:
        """Batches in a slice; the last one may be smaller."""
        samples = len(self.partition.samples(device))
        return min(samples, 1) if batch_size is None else -(-samples // batch_size)
