"""The user's own data: a function of the seed, named in the settings as "module:function".

Data in a folder of .npy files that are mapped into memory: a data set may be larger than the memory.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.data.dataset import Dataset, DatasetSettings, Floats
from offbeat.data.samples import Array
from offbeat.references import describe, resolve


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


PARTS = ("train_x", "train_y", "test_x", "test_y")


class Folder(DatasetSettings):
    """Your own arrays: train_x.npy, train_y.npy, test_x.npy and test_y.npy in `dir`, read as they are needed."""

    name: Literal["folder"] = "folder"
    dir: Annotated[str, Field(min_length=1)]
    """The directory that holds the files. owner.npy, if it is there, says which device holds each training sample."""

    @property
    def divided(self) -> bool | None:
        """Whether the data say themselves which device holds what: unknown until owner.npy is looked for."""
        return None

    def load(self, seed: int) -> Dataset:
        """Map the files into memory; `seed` plays no part."""
        arrays: dict[str, Any] = {name: self._mapped(name) for name in PARTS}
        owner = self._mapped("owner") if (Path(self.dir).expanduser() / "owner.npy").is_file() else None
        devices = None
        if owner is not None:
            if owner.shape != arrays["train_y"].shape[:1] or owner.dtype.kind != "i":
                raise InvalidInput(f"dir = {self.dir!r}: owner.npy must hold an integer for each training sample.")
            devices = tuple(np.flatnonzero(owner == device) for device in range(int(owner.max()) + 1))
        return Dataset(**arrays, devices=devices)

    def _mapped(self, name: str) -> npt.NDArray[Any]:
        path = Path(self.dir).expanduser() / f"{name}.npy"
        if not path.is_file():
            raise InvalidInput(
                f"dir = {self.dir!r} holds no file {path.name}: it must hold {', '.join(PARTS)} as .npy."
            )
        try:
            array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{path} cannot be read: {error}.") from error
        return array
