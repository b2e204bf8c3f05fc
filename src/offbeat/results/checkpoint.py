"""Checkpoints: a safetensors file with a JSON tree in its metadata, replaced atomically and verified when read.

Arrays are written and verified one by one, so that a checkpoint takes no memory of its own. Vectors that were outside
the memory of the process (`core.vectors.StoredVector`) stay there, also when a run resumes: they are then read from its
checkpoint.
"""

import hashlib
import json
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from offbeat.core.errors import InvalidInput, OutputRefused
from offbeat.core.snapshot import STORED, Arrays, decode, encode
from offbeat.core.vectors import StoredVector
from offbeat.results.files import FileVector, SharedFile, replace_file_by

FORMAT = "offbeat checkpoint 10"
NO_CHECKSUM = "0" * 64
"""Stands for the checksum of the file, which is computed over the file with this in its place."""
LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header."""
PART_BYTES = 2**20


BACKGROUND_BYTES = 16 * 2**20
"""Size of the arrays from which on a checkpoint is written in a background thread."""


def save_checkpoint(path: Path, state: Mapping[str, Any], fingerprint: str) -> None:
    """Replace the checkpoint; `fingerprint` identifies its experiment."""
    write_checkpoint(path, *encode(state), fingerprint)


def write_checkpoint(path: Path, tree: Any, arrays: Arrays, fingerprint: str) -> None:
    """Replace the checkpoint by an encoded state."""
    metadata = {"checksum": NO_CHECKSUM, "format": FORMAT, "fingerprint": fingerprint, "tree": json.dumps(tree)}
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, array in arrays.items():
        shape = [len(array)] if isinstance(array, StoredVector) else list(array.shape)
        header[name] = {"dtype": _type_name(array.dtype), "shape": shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    replace_file_by(path, partial(_write, header=json.dumps(header).encode(), arrays=arrays))


def _write(file: BinaryIO, header: bytes, arrays: Arrays) -> None:
    header += b" " * (-len(header) % LENGTH_BYTES)
    start = len(header).to_bytes(LENGTH_BYTES, "little") + header
    total = hashlib.sha256(start)
    file.write(start)
    for array in arrays.values():
        whole = np.ascontiguousarray(array[:] if isinstance(array, StoredVector) else array)
        data = whole.reshape(-1).view(np.uint8).data
        total.update(data)
        file.write(data)
    file.seek(0)
    file.write(start.replace(NO_CHECKSUM.encode(), total.hexdigest().encode(), 1))


def _type_name(dtype: np.dtype[Any]) -> str:
    """The name of a data type in safetensors."""
    return "BOOL" if dtype.kind == "b" else f"{dtype.kind.upper()}{8 * dtype.itemsize}"


class CheckpointWriter:
    """Writes checkpoints one after the other, large ones in a background thread.

    A checkpoint holds the state at the call of `save`: arrays that may still change are copied.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path = path
        self._fingerprint = fingerprint
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint once the previous one is written; raises the error of the previous one."""
        tree, arrays = encode(state)
        self.wait()
        if sum(array.nbytes for array in arrays.values()) < BACKGROUND_BYTES:
            write_checkpoint(self._path, tree, arrays, self._fingerprint)
            return
        frozen = {name: array.copy() if may_change(array) else array for name, array in arrays.items()}
        self._thread = threading.Thread(target=self._write, args=(tree, frozen), name="offbeat-checkpoint")
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def _write(self, tree: Any, arrays: Arrays) -> None:
        try:
            write_checkpoint(self._path, tree, arrays, self._fingerprint)
        except Exception as error:
            self._error = error

    def wait(self) -> None:
        """Wait until the checkpoint is written; raises its error, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error


def may_change(array: npt.NDArray[Any] | StoredVector) -> bool:
    """Whether the array, or the one that it is a view of, can still be written to."""
    if isinstance(array, StoredVector):
        return False
    mapped = isinstance(array.base, memoryview) and array.base.readonly  # from a file, whose rows do not change
    return array.flags.writeable or not (array.base is None or mapped)


def load_checkpoint(path: Path, fingerprint: str, types: Iterable[type[Any]]) -> Any:
    """The saved state; InvalidInput if the file is damaged, of another format or of another experiment."""
    try:
        shared = SharedFile(path.open("rb"))
        with safe_open(path, framework="numpy") as file:
            metadata, names = file.metadata() or {}, file.keys()
            arrays: Arrays = {name: file.get_tensor(name) for name in names if not name.startswith(STORED)}
    except (SafetensorError, OSError) as error:
        raise OutputRefused(
            f"the run cannot be resumed, its checkpoint {path} is damaged ({error})", "overwrite"
        ) from None
    if metadata.get("format") != FORMAT:
        raise OutputRefused(f"the run cannot be resumed, {path} was written by another version of offbeat", "overwrite")
    if metadata.get("fingerprint") != fingerprint:
        raise OutputRefused(f"the checkpoint {path} belongs to another experiment", "out")
    if metadata.get("checksum") != checksum(shared.file, metadata.get("checksum", "")):
        raise OutputRefused(
            f"the run cannot be resumed, its checkpoint {path} is damaged (wrong checksum)", "overwrite"
        )
    try:
        arrays |= _stored_vectors(shared)
        return decode(json.loads(metadata["tree"]), arrays, types)
    except (InvalidInput, LookupError, TypeError, ValueError, RecursionError) as error:
        raise OutputRefused(
            f"the run cannot be resumed, its checkpoint {path} is damaged ({error})", "overwrite"
        ) from None


def checksum(file: BinaryIO, found: str) -> str:
    """The checksum of a checkpoint that says `found`: without it a flipped bit would change a run silently."""
    total = hashlib.sha256(_start(file).replace(found.encode(), NO_CHECKSUM.encode(), 1))
    while part := file.read(PART_BYTES):
        total.update(part)
    return total.hexdigest()


def _start(file: BinaryIO) -> bytes:
    """The length of the header and the header, which safetensors has validated."""
    file.seek(0)
    length = file.read(LENGTH_BYTES)
    return length + file.read(int.from_bytes(length, "little"))


def _stored_vectors(shared: SharedFile) -> dict[str, FileVector]:
    start, found = _start(shared.file), {}
    for name, about in json.loads(start[LENGTH_BYTES:]).items():
        if name.startswith(STORED):
            (size,), offset, kind = about["shape"], len(start) + about["data_offsets"][0], about["dtype"]
            found[name] = FileVector(shared, offset, size, np.dtype(f"{kind[0].lower()}{int(kind[1:]) // 8}"))
    return found
