"""The codec: a message as JSON in a ConfigRecord, a flat float32 vector beside it in an ArrayRecord.

Whatever comes in is read strictly and within bounds, and nothing in it is ever executed: a message that is not exactly
what it should be is a `DeviceFault`.
"""

import json
from collections.abc import Mapping
from io import BytesIO
from math import prod
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy

from offbeat.core.errors import DeviceFault
from offbeat.core.parameters import Vector
from offbeat.core.snapshot import decode, encode

BODY, MODEL = "offbeat", "offbeat-model"
MOST_TEXT = 2**16
"""Characters of a message that are read; real ones have a few hundred."""
MOST_NOTE = 500
"""Characters of a fault that are written down."""
HEADER = 256
"""Bytes that numpy's format may add to the elements."""

T = TypeVar("T")


def pack(body: msgspec.Struct, vector: Vector | None = None) -> RecordDict:
    """What goes over the wire."""
    content = RecordDict({BODY: ConfigRecord({"json": msgspec.json.encode(body).decode()})})
    if vector is not None:
        content[MODEL] = ArrayRecord({"vector": Array(np.ascontiguousarray(vector, dtype=np.float32))})
    return content


def unpack(content: RecordDict, kind: Any) -> Any:
    """The body of a message, one of `kind`; `vector` reads what came along."""
    records = content.config_records
    text = records[BODY].get("json") if BODY in records else None
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise DeviceFault("the message is not one of offbeat, or too long")
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise DeviceFault(f"the message cannot be read: {error}") from None


def vector(content: RecordDict, size: int) -> Vector:
    """The vector that came along, if it has exactly this size; nothing larger is even decoded."""
    records = content.array_records
    array = records[MODEL].get("vector") if MODEL in records else None
    if array is None:
        raise DeviceFault("there are no parameters in the message")
    if array.dtype != "float32" or tuple(array.shape) != (size,):
        raise DeviceFault(f"parameters of shape {tuple(array.shape)} {array.dtype}, not ({size},) float32")
    return elements(array.data, (size,), np.dtype(np.float32))


def elements(data: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The numbers in numpy's format, whose header must say what we know already: nothing is made as large as it says.

    (`np.load` would do more for a stranger: unpack an archive, or allocate whatever the header asks for.)
    """
    size = prod(shape) * dtype.itemsize
    if len(data) > size + HEADER:
        raise DeviceFault(f"{len(data):,} bytes of parameters where {size:,} belong")
    header = array_header(data)
    if (header.shape, header.dtype) != (shape, dtype) or len(data) - header.length != size:
        raise DeviceFault(f"parameters that say one shape and are of another: {header.shape} {header.dtype}")
    flat = np.frombuffer(data, dtype=dtype, offset=header.length)
    return flat.reshape(shape, order="F" if header.columns_first else "C")


class ArrayHeader(NamedTuple):
    """What an array in numpy's format says of itself."""

    shape: tuple[int, ...]
    columns_first: bool
    dtype: np.dtype[Any]
    length: int
    """Bytes before the first number."""


def array_header(data: bytes) -> ArrayHeader:
    """The header of an array in numpy's format; DeviceFault if it has none."""
    stream = BytesIO(data)
    try:
        if npy.read_magic(stream) != (1, 0):
            raise ValueError("not version 1.0 of numpy's format")
        shape, columns_first, dtype = npy.read_array_header_1_0(stream)
    except Exception as error:  # numpy evaluates the header as a literal, and gives the errors of Python's own parser
        raise DeviceFault(f"the parameters cannot be read: {type(error).__name__}: {error}") from None
    return ArrayHeader(shape, columns_first, dtype, stream.tell())


def one_line(text: str) -> str:
    """What a stranger may have had a hand in, fit for a log: short, and without line breaks or control characters."""
    line = "".join(each if each.isprintable() else " " for each in text[: MOST_NOTE + 1])
    return line if len(line) <= MOST_NOTE else line[:MOST_NOTE] + "..."


# What a device keeps between two messages ---------------------------------------------------------------------------


def keep(state: RecordDict, value: Any) -> None:
    """Put a value into a device's state, in the place of what was there."""
    tree, arrays = encode(value)
    state[BODY] = ConfigRecord({"json": json.dumps(tree)})  # which, unlike msgspec's, knows numbers that are not finite
    state[MODEL] = ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})


def kept(state: RecordDict, types: tuple[type[Any], ...], default: T) -> T:
    """What was put there."""
    if BODY not in state.config_records:
        return default
    arrays: Mapping[str, Any] = {name: array.numpy() for name, array in state.array_records[MODEL].items()}
    found: T = decode(json.loads(str(state.config_records[BODY]["json"])), arrays, types)
    return found
