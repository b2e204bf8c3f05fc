"""Checkpoints: a safetensors file with a JSON tree in its metadata, replaced atomically and verified when read."""

import hashlib
import json
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from offbeat.core.errors import InvalidInput, OutputRefused
from offbeat.core.snapshot import decode, encode
from offbeat.results.files import replace_file

FORMAT = "offbeat checkpoint 8"


BACKGROUND_BYTES = 16 * 2**20
"""Size of the arrays from which on a checkpoint is written in a background thread."""


def save_checkpoint(path: Path, state: Mapping[str, Any], fingerprint: str) -> None:
    """Replace the checkpoint; `fingerprint` identifies its experiment."""
    _write(path, *encode(state), fingerprint)


def _write(path: Path, tree: Any, arrays: Mapping[str, npt.NDArray[Any]], fingerprint: str) -> None:
    text, whole = json.dumps(tree), {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {"format": FORMAT, "fingerprint": fingerprint, "tree": text, "checksum": checksum(text, whole)}
    replace_file(path, save(whole, metadata))


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
            _write(self._path, tree, arrays, self._fingerprint)
            return
        frozen = {name: array.copy() if may_change(array) else array for name, array in arrays.items()}
        self._thread = threading.Thread(target=self._write, args=(tree, frozen), name="offbeat-checkpoint")
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def _write(self, tree: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        try:
            _write(self._path, tree, arrays, self._fingerprint)
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


def may_change(array: npt.NDArray[Any]) -> bool:
    """Whether the array, or the one that it is a view of, can still be written to."""
    return array.flags.writeable or array.base is not None


def load_checkpoint(path: Path, fingerprint: str, types: Iterable[type[Any]]) -> Any:
    """The saved state; InvalidInput if the file is damaged, of another format or of another experiment."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise OutputRefused(
            f"the run cannot be resumed, its checkpoint {path} is damaged ({error})", "overwrite"
        ) from None
    if metadata.get("format") != FORMAT:
        raise OutputRefused(f"the run cannot be resumed, {path} was written by another version of offbeat", "overwrite")
    if metadata.get("fingerprint") != fingerprint:
        raise OutputRefused(f"the checkpoint {path} belongs to another experiment", "out")
    if metadata.get("checksum") != checksum(metadata.get("tree", ""), arrays):
        raise OutputRefused(
            f"the run cannot be resumed, its checkpoint {path} is damaged (wrong checksum)", "overwrite"
        )
    try:
        return decode(json.loads(metadata["tree"]), arrays, types)
    except (InvalidInput, ValueError, RecursionError) as error:
        raise OutputRefused(
            f"the run cannot be resumed, its checkpoint {path} is damaged ({error})", "overwrite"
        ) from None


def checksum(tree: str, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """The checksum of a checkpoint's tree and arrays: without it a flipped bit would change a run silently."""
    total = hashlib.sha256(tree.encode())
    for name in sorted(arrays):
        total.update(name.encode() + arrays[name].tobytes())
    return total.hexdigest()
