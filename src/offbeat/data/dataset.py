"""A loaded data set, checked when it is made, and the base class of the settings of data sets."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import InvalidInput
from offbeat.core.settings import Settings
from offbeat.core.streams import stream
from offbeat.data.samples import (
    Array,
    Indices,
    LazyDevices,
    Ragged,
    Samples,
    arrays_of,
    count,
    each_array,
    shapes,
    taken,
)
from offbeat.data.transforms import InputPipeline, Transform

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
IGNORED = -100
"""A target that does not count."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Training and test samples with their targets; raises InvalidInput if they cannot be trained on.

    Inputs are an array, rows of different lengths (`Ragged`), or a tuple or mapping of these: float32 numbers, int64
    tokens, or uint8 pixels that a pipeline normalises. Targets are int64 (labels, tokens) or float32.
    """

    train_x: Samples
    """[samples, *input_shape], for example 60000 x 1 x 28 x 28; or a `LazyDevices`."""
    train_y: Samples = None
    """None if `train_x` is a `LazyDevices`."""
    test_x: Samples
    test_y: Samples
    classes: int = 0
    """Labels and tokens are 0 to classes - 1; for other targets, the numbers per target (0: found from the targets)."""
    devices: tuple[Indices, ...] | None = None
    """The training samples of each device, if the data come divided; None: a partition divides them."""
    device_names: tuple[str, ...] = ()
    """The names of the devices, if the data come divided and name them."""
    test_devices: tuple[Indices, ...] | None = None
    """The test samples of each device, if the data come divided and say so."""
    pipeline: InputPipeline | None = None
    """Normalises and transforms each batch of inputs."""
    class_names: tuple[str, ...] = ()
    """The names of the labels, if known."""
    vocabulary: int | None = None
    """Input tokens are 0 to vocabulary - 1 (None: found from the inputs)."""
    columns: Mapping[str, Array] = field(default_factory=dict)
    """Further values of each training sample, by name, which a partition may divide by."""

    @property
    def input_shape(self) -> Any:
        """The shape of one input, in the structure that the inputs have."""
        return shapes(self.test_x)

    @cached_property
    def tokens(self) -> int:
        """The size of the vocabulary; 0 if inputs are not tokens, or it is unknown because they are loaded lazily."""
        if self.vocabulary is not None:
            return self.vocabulary
        if isinstance(self.train_x, LazyDevices):
            return 0
        inputs = [*arrays_of(self.train_x), *arrays_of(self.test_x)]
        values = [part.values if isinstance(part, Ragged) else part for part in inputs]
        return max((1 + int(each.max()) for each in values if each.dtype.kind == "i"), default=0)

    def example(self) -> tuple[Samples, Samples]:
        """Two training samples, to try a model on."""
        x, y = self.train_x.load(0) if isinstance(self.train_x, LazyDevices) else (self.train_x, self.train_y)
        indices = np.array([0, min(1, count(y) - 1)])
        return taken(x, indices), taken(y, indices)

    def transformed(self, transforms: tuple[Transform, ...]) -> "Dataset":
        """The same data with these transforms in training; InvalidInput if the inputs are not images."""
        if not isinstance(self.test_x, np.ndarray) or self.test_x.ndim != 4:
            raise InvalidInput(
                f"data.transforms need images (channels, height, width), but the inputs have shape {self.input_shape}."
            )
        return replace(self, pipeline=replace(self.pipeline or InputPipeline(), transforms=transforms))

    def with_test_samples(self, samples: int) -> "Dataset":
        """The same data with at most this many test samples; the seed does not change which."""
        if samples >= count(self.test_y):
            return self
        kept = np.sort(stream(0, "held-out samples").permutation(count(self.test_y))[:samples])
        x, y = taken(self.test_x, kept), taken(self.test_y, kept)
        owned = self.test_devices
        if owned is not None:
            owned = tuple(np.flatnonzero(np.isin(kept, own)) for own in owned)
        return replace(self, test_x=x, test_y=y, test_devices=owned, vocabulary=self.tokens or None)

    def __post_init__(self) -> None:
        lazy = isinstance(self.train_x, LazyDevices)
        if self.classes == 0:
            known = [self.test_y] if lazy else [self.train_y, self.test_y]
            object.__setattr__(self, "classes", max(_classes(y) for y in known))
        if not lazy:
            _check_samples("train", self.train_x, self.train_y, self.classes, self.pipeline)
        _check_samples("test", self.test_x, self.test_y, self.classes, self.pipeline)
        if not lazy and not _same_shapes(shapes(self.test_x), shapes(self.train_x), self.train_x):
            raise InvalidInput(
                f"test_x has samples of shape {shapes(self.test_x)}, but train_x of shape {shapes(self.train_x)}: "
                "they must be equal."
            )
        if isinstance(self.train_x, LazyDevices) and self.devices is None:
            ranges = (np.arange(first, last) for first, last in pairwise(self.train_x.offsets))
            object.__setattr__(self, "devices", tuple(ranges))
        if self.class_names and len(self.class_names) != self.classes:
            raise InvalidInput(
                f"class_names has {len(self.class_names)} names for {self.classes} classes: give one per class."
            )
        if self.devices is not None:
            samples = int(self.train_x.sizes.sum()) if isinstance(self.train_x, LazyDevices) else count(self.train_y)
            _check_devices(self.devices, samples)
        for what, given in (("device_names", self.device_names), ("test_devices", self.test_devices)):
            if given and len(given) != len(self.devices or ()):
                raise InvalidInput(
                    f"{what} has {len(given)} entries for {len(self.devices or ())} devices: give one per device."
                )


class DatasetSettings(Settings):
    """The base of the registered data sets; its fields are keys of the table `[data]`."""

    name: str = ""

    @property
    def divided(self) -> bool | None:
        """Whether the data come divided over devices; None: known only once they are loaded."""
        return "devices" in type(self).model_fields

    @abstractmethod
    def load(self, seed: int) -> Dataset:
        """Read, or generate, the data."""


def _classes(y: Samples) -> int:
    """The number of outputs that a model needs: one per label, or one per number of a target."""
    values = y.values if isinstance(y, Ragged) else y
    if not isinstance(values, np.ndarray) or not values.size:
        return 1
    if values.dtype.kind == "i" and (values.ndim == 1 or values.max() > 1):
        return 1 + int(values.max())
    return values.shape[1] if values.ndim > 1 else 1


def _same_shapes(test: Any, train: Any, x: Samples) -> bool:
    return test == train or any(isinstance(part, Ragged) for part in arrays_of(x))


def _check_samples(part: str, x: Samples, y: Samples, classes: int, pipeline: InputPipeline | None) -> None:
    pixels = pipeline is not None and pipeline.standardisation is not None
    for name, array in _named(f"{part}_x", x):
        _check_type(name, array, (np.uint8,) if pixels else (np.float32, np.int64))
    for name, array in _named(f"{part}_y", y):
        _check_type(name, array, (np.int64, np.float32))
    lengths = {len(array) for array in [*arrays_of(x), *arrays_of(y)]}
    flat = isinstance(x, np.ndarray) and x.ndim < 2
    if flat or len(lengths) != 1:
        raise InvalidInput(
            f"{part}_x has shape {_shape(x)} and {part}_y has shape {_shape(y)}: "
            "they must be [samples, *features] and [samples]."
        )
    for name, array in _named(f"{part}_x", x):
        values = array.values if isinstance(array, Ragged) else array
        if values.size == 0:
            raise InvalidInput(
                f"{name} has shape {values.shape}: it must hold at least one sample of at least one feature."
            )
        _check_finite(name, values)
    for name, array in _named(f"{part}_y", y):
        values = array.values if isinstance(array, Ragged) else array
        if values.dtype == np.float32:
            _check_finite(name, values)
            continue
        counted = values if values.ndim == 1 and not isinstance(array, Ragged) else values[values != IGNORED]
        if counted.size and (counted.min() < 0 or counted.max() >= classes):
            raise InvalidInput(
                f"{name} holds labels from {counted.min()} to {counted.max()}; they must be 0 to {classes - 1}."
            )


def _named(name: str, samples: Samples) -> list[tuple[str, Any]]:
    """Every array of a structure, with its name for messages."""
    if isinstance(samples, tuple):
        return [found for index, part in enumerate(samples) for found in _named(f"{name}[{index}]", part)]
    if isinstance(samples, dict):
        return [found for key, part in samples.items() for found in _named(f"{name}[{key!r}]", part)]
    return [(name, samples)]


def _shape(samples: Samples) -> Any:
    return each_array(lambda part: (len(part), "any") if isinstance(part, Ragged) else part.shape, samples)


def _check_finite(name: str, values: Array) -> None:
    # NaN and infinity show in the extremes, which need no array of the size of the data.
    if values.dtype == np.float32 and not (np.isfinite(values.min()) and np.isfinite(values.max())):
        raise InvalidInput(f"{name} holds values that are not finite in float32.")


def _check_type(name: str, array: object, kinds: tuple[type[np.generic], ...]) -> None:
    """Raise InvalidInput unless it is an array of one of these types: a user's function may return anything."""
    values = array.values if isinstance(array, Ragged) else array
    if not isinstance(values, np.ndarray) or values.dtype not in kinds:
        found = f"an array of {values.dtype}" if isinstance(values, np.ndarray) else f"a {type(array).__name__}"
        allowed = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidInput(f"{name} is {found}: it must be a numpy array of {allowed}.")


def _check_devices(devices: tuple[Indices, ...], samples: int) -> None:
    if not devices:
        raise InvalidInput("devices is empty: there must be at least one device.")
    for device, own in enumerate(devices):
        _check_type(f"devices[{device}]", own, (np.int64,))
        if own.ndim != 1 or own.size == 0:
            raise InvalidInput(f"devices[{device}] has shape {own.shape}: it must be a row of at least one index.")
        if own.min() < 0 or own.max() >= samples:
            raise InvalidInput(
                f"devices[{device}] holds indices from {own.min()} to {own.max()}; they must be 0 to {samples - 1}."
            )
