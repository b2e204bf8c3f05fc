"""Checkpoints: one safetensors file whose metadata hold the JSON tree. Replaced at once, checked when read."""

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

from offbeat.core.errors import OutputRefused
from offbeat.core.snapshot import decode, encode
from offbeat.results.files import replace_file

FORMAT = "offbeat checkpoint 6"


BACKGROUND_BYTES = 16 * 2**20
"""A checkpoint with this much in arrays or more is written while the run goes on."""


def save_checkpoint(path: Path, state: Mapping[str, Any], fingerprint: str) -> None:
    """Replace the checkpoint; `fingerprint` says which experiment it belongs to."""
    _write(path, *encode(state), fingerprint)


def _write(path: Path, tree: Any, arrays: Mapping[str, npt.NDArray[Any]], fingerprint: str) -> None:
    text, whole = json.dumps(tree), {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {"format": FORMAT, "fingerprint": fingerprint, "tree": text, "checksum": checksum(text, whole)}
    replace_file(path, save(whole, metadata))


class CheckpointWriter:
    """Writes checkpoints one after the other, large ones in a thread of its own: the file is replaced when it is whole.

    What is saved is what the state was when `save` was called: arrays that somebody may still write to are copied.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path = path
        self._fingerprint = fingerprint
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint, after the one before is written; raises what went wrong with that one."""
        tree, arrays = encode(state)
        self.wait()
        if sum(array.nbytes for array in arrays.values()) < BACKGROUND_BYTES:
            _write(self._path, tree, arrays, self._fingerprint)
            return
        still = {name: array.copy() if may_change(array) else array for name, array in arrays.items()}
        self._thread = threading.Thread(target=self._write, args=(tree, still), name="offbeat-checkpoint")
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
        """Return when everything is written; raises what went wrong, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error


def may_change(array: npt.NDArray[Any]) -> bool:
    """Whether somebody can still write to the array, or to the one that it is a view of."""
    return array.flags.writeable or array.base is not None


def load_checkpoint(path: Path, fingerprint: str, types: Iterable[type[Any]]) -> Any:
    """The saved state; InvalidInput if the file is damaged, not ours, or of another experiment."""
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
    return decode(json.loads(metadata["tree"]), arrays, types)


def checksum(tree: str, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """The checksum of everything that a checkpoint holds: a flipped bit would change a run in silence."""
    total = hashlib.sha256(tree.encode())
    for name in sorted(arrays):
        total.update(name.encode() + arrays[name].tobytes())
    return total.hexdigest()
