"""What every data set is once it is loaded: four arrays in memory, checked at birth. Owns the words for them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import InvalidInput

Samples = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Training and held-out samples with their labels; what cannot be trained on is refused at birth."""

    train_x: Samples
    """[samples, *input_shape], for instance 60000 x 1 x 28 x 28."""
    train_y: Labels
    test_x: Samples
    test_y: Labels
    classes: int
    """Labels are 0 to classes - 1."""
    devices: tuple[Indices, ...] | None = None
    """The training samples of each device, where the data come already divided; None: a partition divides them."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample, for instance (1, 28, 28)."""
        return self.train_x.shape[1:]

    def __post_init__(self) -> None:
        _check_samples("train", self.train_x, self.train_y, self.classes)
        _check_samples("test", self.test_x, self.test_y, self.classes)
        if self.test_x.shape[1:] != self.input_shape:
            raise InvalidInput(
                f"test_x has samples of shape {self.test_x.shape[1:]} and train_x of shape {self.input_shape}: "
                "they must be the same."
            )
        if self.devices is not None:
            _check_devices(self.devices, len(self.train_y))


def _check_samples(part: str, x: Samples, y: Labels, classes: int) -> None:
    _check_type(f"{part}_x", x, np.float32)
    _check_type(f"{part}_y", y, np.int64)
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y):
        raise InvalidInput(
            f"{part}_x has shape {x.shape} and {part}_y has shape {y.shape}: "
            "they must be [samples, *features] and [samples]."
        )
    if x.size == 0:
        raise InvalidInput(f"{part}_x has shape {x.shape}: it must hold at least one sample of at least one feature.")
    # The extremes tell what a test of every element would, without an array of that size: NaN and infinity reach them.
    if not (np.isfinite(x.min()) and np.isfinite(x.max())):
        raise InvalidInput(f"{part}_x holds values that are not finite float32 numbers.")
    if y.min() < 0 or y.max() >= classes:
        raise InvalidInput(f"{part}_y holds labels from {y.min()} to {y.max()}: they must be 0 to {classes - 1}.")


def _check_type(name: str, array: object, scalar: type[np.generic]) -> None:
    """A user's loader may hand us anything."""
    if not isinstance(array, np.ndarray) or array.dtype != scalar:
        found = f"an array of {array.dtype}" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
        raise InvalidInput(f"{name} is {found}: it must be a numpy array of {scalar.__name__}.")


def _check_devices(devices: tuple[Indices, ...], samples: int) -> None:
    if not devices:
        raise InvalidInput("devices is empty: there must be at least one device.")
    for device, own in enumerate(devices):
        _check_type(f"devices[{device}]", own, np.int64)
        if own.ndim != 1 or own.size == 0:
            raise InvalidInput(f"devices[{device}] has shape {own.shape}: it must be a row of at least one index.")
        if own.min() < 0 or own.max() >= samples:
            raise InvalidInput(
                f"devices[{device}] holds indices from {own.min()} to {own.max()}: they must be 0 to {samples - 1}."
            )
