"""Reads the CIFAR batches "for Python", which are pickles, without trusting them.

A pickle is a program: it may name any function of any installed module and have it called, so loading one from the
internet with `pickle.load` hands over the machine. The official batches use that power for one thing only, to
rebuild a numpy array of unsigned bytes. Here
- every name that the file mentions is looked up in ALLOWED and nowhere else: any other name ends the reading before
  anything is imported or called;
- the names in ALLOWED do not lead to numpy either, but to the inert stand-ins below, which only keep what the file
  says; the array is then made by us from its bytes, after its type and shape were checked.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.core.errors import InvalidInput
from offbeat.data.transforms import Bytes

PIXELS = 3 * 32 * 32


class _Dtype:
    """Stands in for numpy.dtype."""

    def __init__(self, code: object, *flags: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Byte order and the like: without meaning for single bytes."""


class _Array:
    """Stands in for numpy.ndarray."""

    def __setstate__(self, state: object) -> None:
        self.state = state

    def pixels(self) -> Bytes:
        """The array, if it is what a batch holds: n x 3072 unsigned bytes."""
        match self.state:
            case (1, (int(rows), int(columns)), _Dtype(code=b"u1" | "u1"), bool(by_columns), bytes(content)):
                if rows > 0 and columns == PIXELS and len(content) == rows * columns:
                    values = np.frombuffer(content, dtype=np.uint8)
                    return values.reshape(columns, rows).T if by_columns else values.reshape(rows, columns)
        raise ValueError(f"its data are not rows of {PIXELS} unsigned bytes")


def _reconstruct(kind: object, shape: object, typecode: object) -> _Array:
    """Stands in for numpy's function of that name, which makes an empty array for the state to fill."""
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    """Stands in for _codecs.encode, which Python 3 writes where Python 2 wrote a byte string."""
    if encoding != "latin1":
        raise ValueError(f"encoding {encoding!r}")
    return text.encode("latin1")


ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _BatchUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch contains")
        return ALLOWED[module, name]


def parse_python_batch(
    path: Path, content: bytes, *, what: str = "CIFAR-10", field: bytes = b"labels"
) -> tuple[Bytes, Bytes]:
    """The pixels [n, 3072] and the labels of one batch, which it holds in this field."""
    try:
        batch = _BatchUnpickler(io.BytesIO(content), encoding="bytes").load()
        pixels = batch[b"data"].pixels()
        labels = np.frombuffer(bytes(list(batch[field])), dtype=np.uint8)  # bytes: integers from 0 to 255 only
        if len(pixels) != len(labels):
            raise ValueError(f"it holds {len(pixels)} images and {len(labels)} labels")
    except Exception as error:  # a damaged or hostile program can end in any exception; all mean the same to the user
        raise InvalidInput(f"{path} is not a {what} batch for Python: {error or type(error).__name__}.") from error
    return pixels, labels
