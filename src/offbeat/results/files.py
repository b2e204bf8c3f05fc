"""Crash-safe files: whole files are replaced atomically, logs can be truncated to an earlier position."""

import csv
import errno
import io
import json
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from offbeat.core.errors import DiskFull, OutputRefused
from offbeat.core.vectors import Array, StoredVector


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: a reader, or a crash, sees the old content or the new one."""
    replace_file_by(path, lambda file: file.write(data))


def replace_file_by(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Replace a file atomically by what a function writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".draft")
    try:
        with draft.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise or_disk_full(error, path) from None


def publish_file(path: Path, data: bytes) -> None:
    """Replace a file atomically for readers, without syncing it to disk: for what only a live view needs."""
    draft = path.with_name(path.name + ".draft")
    draft.write_bytes(data)
    draft.replace(path)


def or_disk_full(error: OSError, path: Path) -> Exception:
    """The error itself, or DiskFull with the name of the file."""
    return DiskFull(str(path)) if error.errno in (errno.ENOSPC, errno.EDQUOT) else error


def write_json(path: Path, value: Any) -> None:
    """Replace a file with a value as indented JSON."""
    replace_file(path, (json.dumps(value, indent=2) + "\n").encode())


def csv_of(records: Sequence[Mapping[str, Any]]) -> str:
    """Records as CSV text with a header; empty for no records."""
    text = io.StringIO()
    if records:
        writer = csv.DictWriter(text, records[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    return text.getvalue()


class Log:
    """An append-only file of lines. A run that resumes truncates it to its checkpoint."""

    def __init__(self, path: Path, position: int = 0) -> None:
        self._file = path.open("ab")
        self.cut(position)

    def cut(self, position: int) -> None:
        """Truncate the file to a position."""
        if position > self._file.seek(0, os.SEEK_END):
            raise OutputRefused(f"{self._file.name} has lost lines since the checkpoint of the run", "overwrite")
        self._file.truncate(position)

    def write(self, line: str) -> None:
        """Append a line to the buffer; `flush` and `position` write the buffer."""
        try:
            self._file.write(line.encode() + b"\n")
        except OSError as error:
            raise or_disk_full(error, Path(self._file.name)) from None

    def append(self, data: bytes) -> None:
        """Append bytes to the buffer."""
        self._file.write(data)

    def flush(self) -> None:
        """Write the buffer, so that other processes can read it."""
        try:
            self._file.flush()
        except OSError as error:
            raise or_disk_full(error, Path(self._file.name)) from None

    @property
    def position(self) -> int:
        """The length of the file, after syncing it to disk."""
        self.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Write the buffer and close the file."""
        try:
            self._file.close()
        except OSError as error:
            raise or_disk_full(error, Path(self._file.name)) from None


class SharedFile:
    """An open file, which is closed when no vector refers to it any more."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        weakref.finalize(self, file.close)


class FileVector(StoredVector):
    """A vector within an open file. Threads may read it at the same time."""

    def __init__(self, shared: SharedFile, offset: int, size: int, dtype: np.dtype[Any]) -> None:
        super().__init__(size, dtype)
        self._shared = shared
        self._offset = offset

    def __getitem__(self, block: slice) -> Array:
        first, last, _ = block.indices(self.size)
        width = self.dtype.itemsize
        data = os.pread(self._shared.file.fileno(), (last - first) * width, self._offset + first * width)
        if len(data) != (last - first) * width:
            raise OSError(f"the file of vectors ended within the vector at byte {self._offset}")
        return np.frombuffer(data, dtype=self.dtype)
