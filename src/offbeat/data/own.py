"""A user's own data: a Dataset, a function of the seed ("module:function"), arrays, or a folder of .npy files."""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.data.dataset import Dataset, DatasetSettings, Floats
from offbeat.data.samples import Array
from offbeat.references import describe, resolve

PARTS = ("train_x", "train_y", "test_x", "test_y")


def load_own(reference: str, seed: int) -> Dataset:
    """The Dataset of this name, or what a function of this name returns for the seed.

    The function returns a Dataset or (train_x, train_y, test_x, test_y), which `from_arrays` reads.
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
                    f"it returned a {type(other).__name__}: it must return a Dataset or "
                    "(train_x, train_y, test_x, test_y)."
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
    """A data set of numeric arrays.

    Integer targets are labels from 0, and the highest gives the number of classes; other targets are numbers. Data of
    another structure, such as tokens, need a Dataset.
    """
    return Dataset(
        train_x=_samples("train_x", train_x),
        train_y=_targets("train_y", train_y),
        test_x=_samples("test_x", test_x),
        test_y=_targets("test_y", test_y),
    )


def _samples(name: str, values: Any) -> Floats:
    try:
        with np.errstate(over="ignore"):  # too large values become infinite, and Dataset refuses them by name
            return np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} cannot be made an array of float32: {error}.") from error


def _targets(name: str, values: Any) -> Array:
    """Integers as int64 labels, other numbers as float32."""
    try:
        targets = np.asarray(values)
        kind = np.int64 if targets.dtype.kind in "iub" else np.float32
        return targets.astype(kind)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} cannot be made an array of numbers: {error}.") from error


class Folder(DatasetSettings):
    """Your own arrays: train_x.npy, train_y.npy, test_x.npy and test_y.npy in `dir`, memory-mapped."""

    name: Literal["folder"] = "folder"
    dir: Annotated[str, Field(min_length=1)]
    """The directory of the files. An optional owner.npy holds the device of each training sample."""

    @property
    def divided(self) -> bool | None:
        """None: unknown before `load` has looked for owner.npy."""
        return None

    def load(self, seed: int) -> Dataset:
        """Map the files into memory; the seed is not used."""
        arrays: dict[str, Any] = {name: self._mapped(name) for name in PARTS}
        owner = self._mapped("owner") if (Path(self.dir).expanduser() / "owner.npy").is_file() else None
        devices = None
        if owner is not None:
            if owner.shape != arrays["train_y"].shape[:1] or owner.dtype.kind != "i":
                raise InvalidInput(f"data.dir = {self.dir!r}: owner.npy must hold one integer per training sample.")
            devices = tuple(np.flatnonzero(owner == device) for device in range(int(owner.max()) + 1))
        return Dataset(**arrays, devices=devices)

    def _mapped(self, name: str) -> npt.NDArray[Any]:
        path = Path(self.dir).expanduser() / f"{name}.npy"
        if not path.is_file():
            raise InvalidInput(
                f"data.dir = {self.dir!r} has no file {path.name}: it must hold {', '.join(PARTS)} as .npy files."
            )
        try:
            array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{path} cannot be read: {error}.") from error
        return array
