"""Data in a folder of .npy files that are mapped into memory: a data set may be larger than the memory."""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.core.settings import Settings
from offbeat.data.dataset import Dataset

PARTS = ("train_x", "train_y", "test_x", "test_y")


class Folder(Settings):
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
