"""The batches of every device, as a function of (seed, device, ticket, epoch) alone.

All trainers take their batches from here, and therefore train on the same ones.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from offbeat.core.streams import stream
from offbeat.data.dataset import IGNORED
from offbeat.data.samples import Array, Indices, LazyDevices, Ragged, Samples, count, each_array, numbers, taken
from offbeat.models.flat import on_processor
from offbeat.training.tasks import Batch
from offbeat.training.training_state import TrainingJob

GATHERED = 4096
"""Samples gathered at a time: all of a slice on most devices, and bounded memory on the largest."""
LOADED = 4
"""Devices whose data stay in memory, if the data are loaded lazily."""


class SampleLookup(Protocol):
    """The samples of each device."""

    def samples(self, device: int) -> Indices:
        """Indices into the training data."""


class Standardising(Protocol):
    """Normalises pixels that are kept as bytes: (pixel / 255 - mean) / deviation."""

    def __call__(self, pixels: Array, out: npt.NDArray[np.float32] | None = None) -> npt.NDArray[np.float32]:
        """The normalised pixels, written to `out` if given."""
        ...

    def by_channel(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Mean and deviation, shaped [channels, 1, 1]."""
        ...


class Pipeline(Protocol):
    """Normalises and transforms inputs before a model sees them."""

    @property
    def transforms(self) -> tuple[Any, ...]:
        """Random transforms, in training only."""
        ...

    @property
    def standardisation(self) -> Standardising | None:
        """Normalises bytes; None: inputs are numbers already."""
        ...

    def training(self, x: Array, random: np.random.Generator) -> npt.NDArray[np.float32]:
        """A training batch: normalised and transformed."""
        ...

    def evaluation(self, x: Array) -> npt.NDArray[np.float32]:
        """An evaluation batch: normalised."""
        ...


class Batches:
    """Gathers batches from the training data of all devices."""

    def __init__(
        self,
        x: Samples | LazyDevices,
        y: Samples | None,
        partition: SampleLookup,
        seed: int,
        *,
        pipeline: Pipeline | None = None,
        torch_device: torch.device | str = "cpu",
    ) -> None:
        self.lazy = x if isinstance(x, LazyDevices) else None
        self.pipeline = pipeline
        self.x: Any = None
        self.y: Any = None
        if self.lazy is None:
            self.x, self.y = self.converted(x, y)
        self.partition = partition
        self.seed = seed
        self.torch_device = torch.device(torch_device)
        self.channels_last = False
        self._loaded: dict[int, tuple[Samples, Samples]] = {}
        self.resident: tuple[torch.Tensor, torch.Tensor] | None = None
        """Plain arrays, copied once to a torch device other than the processor."""
        self._on_processor = on_processor(self.torch_device)
        if self.is_plain and not self._on_processor:
            self.resident = self._tensor(self.x), self._tensor(self.y)

    def converted(self, x: Samples, y: Samples) -> tuple[Samples, Samples]:
        """Inputs and targets in the types of training; targets are padded with a value that no loss counts."""
        targets = numbers(y, integers="iub")
        if isinstance(targets, Ragged):
            targets = Ragged(targets.values, targets.offsets, IGNORED)
        return numbers(x, pixels=self.pipeline is not None), targets

    @property
    def is_plain(self) -> bool:
        """Whether inputs and targets are one array each, without random transforms."""
        arrays = isinstance(self.x, np.ndarray) and isinstance(self.y, np.ndarray)
        return arrays and not (self.pipeline and self.pipeline.transforms)

    @property
    def standardisation(self) -> Standardising | None:
        """Normalises inputs that are kept as bytes; None: they are numbers."""
        return None if self.pipeline is None else self.pipeline.standardisation

    def write(self, x: Array, chosen: Indices, out: Array) -> None:
        """Write the inputs at these indices as a model takes them into an array."""
        if self.standardisation is not None:
            self.standardisation(x.take(chosen, axis=0), out=out)
        elif x.dtype == out.dtype:
            np.take(x, chosen, axis=0, out=out, mode="clip")
        else:  # np.take would read what stands in the array before, which may be anything
            out[...] = x.take(chosen, axis=0)

    def standardised(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise inputs on their torch device, with the same arithmetic as on the processor."""
        if self.standardisation is None:
            return x
        mean, std = (self._tensor(each) for each in self.standardisation.by_channel())
        return x.float().div_(255).sub_(mean).div_(std)

    def order(self, device: int, ticket: int, k: int, batch_size: int | None) -> Indices:
        """The device's samples in the order of slice k, to be cut into batches; a full batch is not shuffled."""
        samples = self.partition.samples(device)
        if batch_size is None:
            return samples
        return stream(self.seed, "batches", device, ticket, k).permutation(samples)

    def probe(self, device: int, ticket: int, k: int, batch_size: int | None) -> Indices:
        """One random batch to evaluate the loss on, drawn apart from those that are trained on."""
        samples = self.partition.samples(device)
        size = len(samples) if batch_size is None else min(batch_size, len(samples))
        return stream(self.seed, "probe", device, ticket, k).choice(samples, size, replace=False)

    def steps(self, device: int, batch_size: int | None) -> int:
        """Batches per slice; the last may be smaller."""
        samples = len(self.partition.samples(device))
        return min(samples, 1) if batch_size is None else -(-samples // batch_size)

    def epochs(self, job: TrainingJob) -> list[tuple[int, int, int]]:
        """The epochs that a job of epochs or steps touches: number, first step, and the step that it ends before."""
        per_epoch = self.steps(job.device, job.order.batch_size)
        first, begun, last, extra = job.first, job.state.steps_into_slice, job.last, job.extra_steps
        if job.order.unit == "step":
            if not per_epoch:
                return []
            (first, begun), (last, extra) = divmod(job.first, per_epoch), divmod(job.last, per_epoch)
        return [
            (k, begun if k == first else 0, extra if k == last else per_epoch) for k in range(first, last + bool(extra))
        ]

    def targets(self, device: int) -> Samples:
        """The targets of a device's samples."""
        x_y, first = self._held(device)
        return taken(x_y[1], self.partition.samples(device) - first)

    def transforming(self, device: int, ticket: int, k: int) -> np.random.Generator | None:
        """The random generator of the transforms in slice k; None without transforms."""
        chance = self.pipeline is not None and self.pipeline.transforms
        return stream(self.seed, "transforms", device, ticket, k) if chance else None

    def gather(
        self,
        device: int,
        samples: Indices,
        batch_size: int | None,
        random: np.random.Generator | None = None,
        begun: int = 0,
    ) -> Iterator[Batch]:
        """The device's samples at these indices, in this order, cut into batches; the first `begun` are skipped.

        A block is gathered whole, whichever of its batches are skipped: a batch keeps its place in memory, on which
        the last bits of sums depend. Random transforms also draw for what is skipped.
        """
        size = batch_size or max(1, len(samples))
        (x, y), first = self._held(device)
        block = max(1, GATHERED // size) * size if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) else size
        for start in range(0 if random is not None else begun * size // block * block, len(samples), block):
            chosen = samples[start : start + block]
            if first:
                chosen = chosen - first
            whole = self._gathered(x, y, chosen, random)
            skipped = max(0, begun - start // size)
            if block == size:
                if not skipped:
                    yield whole
            else:
                parts = zip(torch.split(whole.x, size), torch.split(whole.y, size), strict=True)
                yield from (Batch(part_x, part_y) for part_x, part_y in islice(parts, skipped, None))

    def for_evaluation(self, x: Samples, y: Samples, size: int) -> Iterator[Batch]:
        """The samples in order, cut into batches, without random transforms."""
        for start in range(0, count(y), size):
            indices = np.arange(start, min(start + size, count(y)))
            yield self._gathered(x, y, indices, None)

    def _held(self, device: int) -> tuple[tuple[Samples, Samples], int]:
        """The arrays with a device's samples, and the index of the first sample in them."""
        if self.lazy is None:
            return (self.x, self.y), 0
        if device not in self._loaded:
            while len(self._loaded) >= LOADED:
                del self._loaded[next(iter(self._loaded))]
            self._loaded[device] = self.converted(*self.lazy.load(device))
        return self._loaded[device], int(self.partition.samples(device)[0])

    def _gathered(self, x: Samples, y: Samples, chosen: Indices, random: np.random.Generator | None) -> Batch:
        if self.resident is not None and x is self.x:
            indices = self._tensor(chosen)
            return Batch(self._formatted(self.standardised(self.resident[0][indices])), self.resident[1][indices])
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and y.ndim == 1 and self._on_processor:
            targets = torch.from_numpy(y.take(chosen))
        else:
            targets = each_array(self._tensor, taken(y, chosen))
        if not isinstance(x, np.ndarray):
            return Batch(each_array(self._tensor, taken(x, chosen)), targets)
        if self.pipeline is not None and random is not None:
            done = self.pipeline.training(x.take(chosen, axis=0), random)
            return Batch(self._formatted(self._tensor(done)), targets)
        inputs = torch.empty(len(chosen), *x.shape[1:], dtype=torch.int64 if x.dtype == np.int64 else torch.float32)
        self.write(x, chosen, inputs.numpy())
        return Batch(self._formatted(inputs.to(self.torch_device)), targets)

    def _tensor(self, part: Any) -> torch.Tensor:
        """A copy as a tensor, whose memory torch aligns."""
        return torch.tensor(part.padded() if isinstance(part, Ragged) else part, device=self.torch_device)

    def _formatted(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(memory_format=torch.channels_last) if self.channels_last else x
