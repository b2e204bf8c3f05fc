"""Checkpoints: one safetensors file whose metadata hold the JSON tree. Replaced at once, checked when read."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from offbeat.core.errors import InvalidInput
from offbeat.core.snapshot import decode, encode
from offbeat.results.files import replace_file

FORMAT = "offbeat checkpoint 5"


def save_checkpoint(path: Path, state: Mapping[str, Any], fingerprint: str) -> None:
    """Replace the checkpoint; `fingerprint` says which experiment it belongs to."""
    tree, arrays = encode(state)
    text, whole = json.dumps(tree), {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {"format": FORMAT, "fingerprint": fingerprint, "tree": text, "checksum": checksum(text, whole)}
    replace_file(path, save(whole, metadata))


def load_checkpoint(path: Path, fingerprint: str, types: Iterable[type[Any]]) -> Any:
    """The saved state; InvalidInput if the file is damaged, not ours, or of another experiment."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise InvalidInput(f"the checkpoint {path} is damaged ({error}): start again with --overwrite") from None
    if metadata.get("format") != FORMAT:
        raise InvalidInput(f"{path} is not a checkpoint of this version of offbeat: start again with --overwrite")
    if metadata.get("fingerprint") != fingerprint:
        raise InvalidInput(f"the checkpoint {path} belongs to another experiment: choose another --out")
    if metadata.get("checksum") != checksum(metadata.get("tree", ""), arrays):
        raise InvalidInput(f"the checkpoint {path} is damaged (its checksum is wrong): start again with --overwrite")
    return decode(json.loads(metadata["tree"]), arrays, types)


def checksum(tree: str, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Of everything that a checkpoint holds: a single flipped bit would change a run in silence."""
    total = hashlib.sha256(tree.encode())
    for name in sorted(arrays):
        total.update(name.encode() + arrays[name].tobytes())
    return total.hexdigest()
