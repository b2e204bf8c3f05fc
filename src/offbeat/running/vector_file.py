"""A policy's vectors in temporary files: the memory of the server then does not grow with the number of devices.

Rows of a policy's cache are read and written, not mapped: a memory-mapped file counts as resident memory wherever it
was touched. Versions of the model, which all other parts take as arrays, are mapped, and their memory pages are given
back. The files have no names and disappear with the process, however that ends.

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

SEGMENT_ROWS = 64
"""Versions in a segment of the file that is mapped as one: every mapping holds a file descriptor."""


class VectorFile:
    """Vectors in temporary files in a folder (default: the system's for temporary files)."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir())
        self._shared: SharedFile | None = None
        self._end = 0
        self._free: dict[int, list[int]] = {}
        """Offsets of unused rows, by their bytes."""
        self._versions: _VersionFile | None = None

    def keep(self, vector: Array) -> FileVector:
        """Write a vector to a free row. The file is made with the first."""
        if self._shared is None:
            self._shared = self._new_file()
        free = self._free.setdefault(vector.nbytes, [])
        if free:
            offset = free.pop()
        else:
            offset, self._end = self._end, self._end + vector.nbytes
        self._write(self._shared, offset, vector)
        return _Row(self._shared, offset, len(vector), vector.dtype, free)

    def mapped(self, version: Array) -> Array:
        """Write a version of the model to a free row of a file of its own, and map it."""
        if self._versions is None:
            self._versions = _VersionFile(self._new_file(), version.nbytes)
        row = self._versions.free_row()
        self._write(self._versions.file, row * self._versions.stride, version)
        return self._versions.map(row, version.dtype)

    def _new_file(self) -> SharedFile:
        self._folder.mkdir(parents=True, exist_ok=True)
        return SharedFile(tempfile.TemporaryFile(dir=self._folder, buffering=0))

    def _write(self, shared: SharedFile, offset: int, vector: Array) -> None:
        left, descriptor = np.ascontiguousarray(vector).view(np.uint8).data, shared.file.fileno()
        try:
            while left:
                written = os.pwrite(descriptor, left, offset)
                left, offset = left[written:], offset + written
        except OSError as error:
            raise or_disk_full(error, self._folder) from None


class _VersionFile:
    """Rows for versions of one size, each of whole memory pages, in segments that are mapped."""

    def __init__(self, file: SharedFile, row_bytes: int) -> None:
        self.file = file
        self._row_bytes = row_bytes
        self.stride = -(-row_bytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        """Bytes from one row to the next."""
        self._segments: list[mmap.mmap] = []
        self._free: list[int] = []
        self._latest: int | None = None
        self._read = 0
        """Versions since the pages of all were given back."""

    def free_row(self) -> int:
        """A row that no array refers to; the file grows by a segment if there is none."""
        if not self._free:
            size, begun = SEGMENT_ROWS * self.stride, len(self._segments)
            self.file.file.truncate((begun + 1) * size)
            segment = mmap.mmap(self.file.file.fileno(), size, access=mmap.ACCESS_READ, offset=begun * size)
            self._segments.append(segment)
            self._free.extend(range((begun + 1) * SEGMENT_ROWS - 1, begun * SEGMENT_ROWS - 1, -1))
        return self._free.pop()

    def map(self, row: int, dtype: np.dtype[Any]) -> Array:
        """The row as a read-only array. The pages of the version before are given back.

        Orders, checkpoints and evaluations read earlier versions again. So the pages of all versions are given back
        whenever as many new ones have come as there are.
        """
        if self._latest is not None:
            self._give_back(self._latest, self.stride)
        self._latest, self._read = row, self._read + 1
        if self._read > len(self._segments) * SEGMENT_ROWS - len(self._free):
            self._read = 0
            for index in range(len(self._segments)):
                self._give_back(index * SEGMENT_ROWS, SEGMENT_ROWS * self.stride)
        segment, place = divmod(row, SEGMENT_ROWS)
        count = self._row_bytes // dtype.itemsize
        array = np.frombuffer(self._segments[segment], dtype=dtype, count=count, offset=place * self.stride)
        weakref.finalize(array, self._free.append, row).atexit = False
        return array

    def _give_back(self, row: int, length: int) -> None:
        """Let the system take pages back; they are read from the file again when they are touched."""
        segment, place = divmod(row, SEGMENT_ROWS)
        self._segments[segment].madvise(mmap.MADV_DONTNEED, place * self.stride, length)


class _Row(FileVector):
    """A row of the file, which is free again when nothing refers to this object."""

    def __init__(self, shared: SharedFile, offset: int, size: int, dtype: np.dtype[Any], free: list[int]) -> None:
        super().__init__(shared, offset, size, dtype)
        self._free = free

    def __del__(self) -> None:
        self._free.append(self._offset)
