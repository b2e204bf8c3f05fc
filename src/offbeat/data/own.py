"""The user's own data: a function of the seed, named in the settings as "module:function"."""

from typing import Any

import numpy as np

from offbeat.core.errors import InvalidInput
from offbeat.core.references import describe, resolve
from offbeat.core.samples import Array
from offbeat.data.dataset import Dataset, Floats


def load_own(reference: str, seed: int) -> Dataset:
    """The Dataset of this name, or what a function returns for the seed: one, or (train_x, train_y, test_x, test_y).

    Of a tuple, the samples may be any numbers; the targets are labels if they are integers (from 0; the highest gives
    the classes), and else numbers. Whatever has another structure, such as tokens, comes as a Dataset.
    """
    function = resolve(reference)
    if isinstance(function, Dataset):
        return function
    if not callable(function):
        raise InvalidInput(
            f"{reference!r} is a {type(function).__name__}: it must be a Dataset or a function of the seed."
        )
    try:
        match _called(function, seed):
            case Dataset() as dataset:
                return dataset
            case (train_x, train_y, test_x, test_y):
                return from_arrays(train_x, train_y, test_x, test_y)
            case other:
                raise InvalidInput(
                    f"it returned a {type(other).__name__}: it must be a Dataset or (train_x, train_y, test_x, test_y)."
                )
    except InvalidInput as error:
        raise InvalidInput(f"{reference!r}: {error}") from error


def _called(function: Any, seed: int) -> Any:
    try:
        return function(seed)
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(f"calling it with the seed failed: {describe(error)}") from error


def from_arrays(train_x: Any, train_y: Any, test_x: Any, test_y: Any) -> Dataset:
    """A data set of any numbers, and of integer labels from 0 (the highest gives the classes) or numbers as targets."""
    return Dataset(
        train_x=_samples("train_x", train_x),
        train_y=_targets("train_y", train_y),
        test_x=_samples("test_x", test_x),
        test_y=_targets("test_y", test_y),
    )


def _samples(name: str, values: Any) -> Floats:
    try:
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and Dataset refuses it by name
            return np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} cannot be made an array of float32: {error}.") from error


def _targets(name: str, values: Any) -> Array:
    """Integers as labels, anything else as numbers."""
    try:
        targets = np.asarray(values)
        kind = np.int64 if targets.dtype.kind in "iub" else np.float32
        return targets.astype(kind)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} cannot be made an array of numbers: {error}.") from error
