"""A policy's vectors in a temporary file: the memory of the server then does not grow with the number of devices.

The file is read and written row by row. A memory-mapped file would count as resident memory wherever it was touched, so
that it would be no smaller than an array. The file has no name and disappears with the process, however that ends.

A row is never overwritten while its vector is in use, so that a checkpoint can be written in the background: its place
is free for a later vector when nothing refers to it any more.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.core.vectors import Array
from offbeat.results.files import FileVector, SharedFile, or_disk_full


class VectorFile:
    """Vectors in a temporary file in a folder (default: the system's for temporary files)."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._shared: SharedFile | None = None
        self._end = 0
        self._free: dict[int, list[int]] = {}
        """Offsets of unused rows, by their bytes."""

    def keep(self, vector: Array) -> FileVector:
        """Write a vector to a free row. The file is made with the first."""
        if self._shared is None:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
            self._shared = SharedFile(tempfile.TemporaryFile(dir=self._folder, buffering=0))  # noqa: SIM115
        free = self._free.setdefault(vector.nbytes, [])
        if free:
            offset = free.pop()
        else:
            offset, self._end = self._end, self._end + vector.nbytes
        left = np.ascontiguousarray(vector).view(np.uint8).data
        position = offset
        try:
            while left:
                written = os.pwrite(self._shared.file.fileno(), left, position)
                left, position = left[written:], position + written
        except OSError as error:
            raise or_disk_full(error, self._folder or Path(tempfile.gettempdir())) from None
        return _Row(self._shared, offset, len(vector), vector.dtype, free)


class _Row(FileVector):
    """A row of the file, which is free again when nothing refers to this object."""

    def __init__(self, shared: SharedFile, offset: int, size: int, dtype: np.dtype[Any], free: list[int]) -> None:
        super().__init__(shared, offset, size, dtype)
        self._free = free

    def __del__(self) -> None:
        self._free.append(self._offset)
