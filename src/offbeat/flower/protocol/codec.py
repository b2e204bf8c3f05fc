"""Encode messages for Flower: the body as JSON in a ConfigRecord, a flat float32 vector in an ArrayRecord.

Incoming messages are untrusted: they are read strictly and within bounds, nothing in them is executed, and any
deviation is a `DeviceFault`.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from math import prod
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy

from offbeat.core.errors import DeviceFault, OffbeatError
from offbeat.core.parameters import Vector
from offbeat.core.snapshot import decode, encode

BODY, MODEL = "offbeat", "offbeat-model"
MOST_TEXT = 2**16
"""Longest message body in characters; real ones have a few hundred."""
MOST_NOTE = 500
"""Longest fault in log and record, in characters."""
HEADER = 256
"""Most bytes that the header of an array may have."""

T = TypeVar("T")


def pack(body: msgspec.Struct, vector: Vector | None = None) -> RecordDict:
    """The content of a message."""
    content = RecordDict({BODY: ConfigRecord({"json": msgspec.json.encode(body).decode()})})
    if vector is not None:
        content[MODEL] = ArrayRecord({"vector": Array(np.ascontiguousarray(vector, dtype=np.float32))})
    return content


def unpack(content: RecordDict, kind: Any) -> Any:
    """The body of a message, of one of the types in `kind`."""
    records = content.config_records
    text = records[BODY].get("json") if BODY in records else None
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise DeviceFault(f"not a message of offbeat, or its body has more than {MOST_TEXT:,} characters")
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise DeviceFault(f"the message cannot be read: {error}") from None


def vector(content: RecordDict, size: int) -> Vector:
    """The vector of a message, which must have exactly this size. Nothing larger is decoded."""
    records = content.array_records
    array = records[MODEL].get("vector") if MODEL in records else None
    if array is None:
        raise DeviceFault("the message has no parameters")
    if array.dtype != "float32" or tuple(array.shape) != (size,):
        raise DeviceFault(f"parameters of shape {tuple(array.shape)} {array.dtype}, not ({size},) float32")
    return elements(array.data, (size,), np.dtype(np.float32))


def elements(data: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Decode an array in numpy's format. Its header must name the expected shape and dtype.

    `np.load` is unsafe here: it unpacks archives, and allocates whatever the header asks for.
    """
    size = prod(shape) * dtype.itemsize
    if len(data) > size + HEADER:
        raise DeviceFault(f"{len(data):,} bytes of parameters, not {size:,}")
    header = array_header(data)
    if (header.shape, header.dtype) != (shape, dtype) or len(data) - header.length != size:
        raise DeviceFault(
            f"{len(data) - header.length:,} bytes with the header {header.shape} {header.dtype}, "
            f"not {size:,} bytes of {shape} {dtype}"
        )
    flat = np.frombuffer(data, dtype=dtype, offset=header.length)
    return flat.reshape(shape, order="F" if header.columns_first else "C")


class ArrayHeader(NamedTuple):
    """The header of an array in numpy's format."""

    shape: tuple[int, ...]
    columns_first: bool
    dtype: np.dtype[Any]
    length: int
    """Bytes before the first number."""


def array_header(data: bytes) -> ArrayHeader:
    """Read the header of an array in numpy's format; DeviceFault if it has none."""
    stream = BytesIO(data)
    try:
        if npy.read_magic(stream) != (1, 0):
            raise ValueError("not in version 1.0 of numpy's format")
        shape, columns_first, dtype = npy.read_array_header_1_0(stream)
    except Exception as error:  # numpy parses the header as a Python literal, which can raise anything
        raise DeviceFault(f"the parameters cannot be read: {type(error).__name__}: {error}") from None
    return ArrayHeader(shape, columns_first, dtype, stream.tell())


@contextmanager
def fault_boundary() -> Iterator[None]:
    """Turn every exception but ours into a DeviceFault: what is built from a message of a device is built in here."""
    try:
        yield
    except OffbeatError:
        raise
    except Exception as error:  # untrusted input can make Flower, numpy or us raise anything
        raise DeviceFault(f"its reply cannot be read: {type(error).__name__}: {error}") from None


def one_line(text: str) -> str:
    """Make untrusted text fit for a log: shortened, without line breaks and control characters."""
    line = "".join(each if each.isprintable() else " " for each in text[: MOST_NOTE + 1])
    return line if len(line) <= MOST_NOTE else line[:MOST_NOTE] + "..."


# The state of a device between two messages ---------------------------------------------------------------------------


def keep(state: RecordDict, value: Any) -> None:
    """Replace a device's state by a value."""
    tree, arrays = encode(value)
    state[BODY] = ConfigRecord({"json": json.dumps(tree)})  # unlike msgspec, json writes numbers that are not finite
    state[MODEL] = ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})


def kept(state: RecordDict, types: tuple[type[Any], ...], default: T) -> T:
    """The value of a device's state, or the default if it has none."""
    if BODY not in state.config_records:
        return default
    arrays: Mapping[str, Any] = {name: array.numpy() for name, array in state.array_records[MODEL].items()}
    found: T = decode(json.loads(str(state.config_records[BODY]["json"])), arrays, types)
    return found
