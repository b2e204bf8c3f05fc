"""A policy's vectors in a temporary file: the memory of the server then does not grow with the number of devices.

Rows of a policy's cache are read and written, not mapped: a memory-mapped file counts as resident memory wherever it
was touched. Versions of the model, which all other parts take as arrays, are mapped, and their pages are given back
when a later version comes. The file has no name and disappears with the process, however that ends.

A row is never overwritten while its vector is in use, so that a checkpoint can be written in the background: its place
is free for a later vector when nothing refers to it any more.
"""

import mmap
import os
import tempfile
import weakref
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

        self._maps = weakref.WeakSet[mmap.mmap]()
        """The versions that are in use."""
        self._latest: mmap.mmap | None = None
        self._fresh = 0
        """Versions since the pages of all were given back."""

    def keep(self, vector: Array) -> FileVector:
        """Write a vector to a free row. The file is made with the first."""
        shared, offset, free = self._write(vector)
        return _Row(shared, offset, len(vector), vector.dtype, free)

    def mapped(self, version: Array) -> Array:
        """Write a version to a free row and map it, and give back the pages of the one before.

        Orders, checkpoints and evaluations read earlier versions again. So the pages of all versions are given back
        whenever as many new ones have come as there are.
        """
        shared, offset, free = self._write(version)
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        pages = mmap.mmap(shared.file.fileno(), offset - start + version.nbytes, access=mmap.ACCESS_READ, offset=start)
        weakref.finalize(pages, free.append, offset).atexit = False
        if self._latest is not None:
            _give_back(self._latest)
        self._latest, self._fresh = pages, self._fresh + 1
        self._maps.add(pages)
        if self._fresh > len(self._maps):
            self._fresh = 0
            for each in self._maps:
                _give_back(each)
        return np.frombuffer(pages, dtype=version.dtype, count=len(version), offset=offset - start)

    def _write(self, vector: Array) -> tuple[SharedFile, int, list[int]]:
        """Write a vector to a free row; returns the file, the offset, and the list that takes it when it is free."""
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
        return self._shared, offset, free


def _give_back(pages: mmap.mmap) -> None:
    """Let the system take the pages back; they are read from the file again when they are touched."""
    pages.madvise(mmap.MADV_DONTNEED)


class _Row(FileVector):
    """A row of the file, which is free again when nothing refers to this object."""

    def __init__(self, shared: SharedFile, offset: int, size: int, dtype: np.dtype[Any], free: list[int]) -> None:
        super().__init__(shared, offset, size, dtype)
        self._free = free

    def __del__(self) -> None:
        self._free.append(self._offset)
