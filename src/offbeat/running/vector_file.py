"""A policy's vectors in a temporary file: the memory of the server then does not grow with the number of devices.

The file is read and written row by row. A memory-mapped file would count as resident memory wherever it was touched, so
that it would be no smaller than an array. The file has no name and disappears with the process, however that ends.
"""

import tempfile
import weakref
from pathlib import Path
from typing import BinaryIO

import numpy as np

from offbeat.core.parameters import BYTES_PER_ELEMENT, Vector, frozen
from offbeat.results.files import or_disk_full


class VectorFile:
    """Vectors of `size` elements in a temporary file in a folder (default: the system's for temporary files)."""

    def __init__(self, size: int, folder: Path | None = None) -> None:
        self._size = size
        self._folder = folder
        self._file: BinaryIO | None = None

    def read(self, number: int) -> Vector:
        """The vector that was last written under this number."""
        assert self._file is not None
        vector = np.empty(self._size, dtype=np.float32)
        self._file.seek(number * self._size * BYTES_PER_ELEMENT)
        if self._file.readinto(vector.data) != vector.nbytes:  # type: ignore[attr-defined]
            raise OSError(f"the file of cached vectors ended within vector {number}")
        return frozen(vector)

    def write(self, number: int, vector: Vector) -> None:
        """Keep a vector, in place of the one of this number. The file is made with the first."""
        if self._file is None:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 (open as long as the run)
            weakref.finalize(self, self._file.close)
        self._file.seek(number * self._size * BYTES_PER_ELEMENT)
        left = np.ascontiguousarray(vector, dtype=np.float32).data.cast("B")
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise or_disk_full(error, self._folder or Path(tempfile.gettempdir())) from None
