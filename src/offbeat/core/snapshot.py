"""Encodes nested plain data and arrays as a JSON tree and named arrays, for checkpoints and messages.

Only plain values, containers, numpy arrays and record types that the reader names are decoded, so that reading a file
from elsewhere can fail but never executes anything.
"""

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct, structs

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import (
    KnownOutcome,
    Order,
    Outcome,
    Progress,
    RateSchedule,
    ScaledOutcome,
    Update,
    WithheldOutcome,
)
from offbeat.core.parameters import Mask
from offbeat.core.terms import TERMS
from offbeat.core.vectors import StoredVector

Arrays = dict[str, Any]
"""Arrays and stored vectors by name."""
OUTCOMES = (KnownOutcome, ScaledOutcome, WithheldOutcome)
MESSAGES: tuple[type[Any], ...] = (Order, Progress, Outcome, Update, *OUTCOMES, Mask, RateSchedule, *TERMS)


STORED = "stored-"
"""How the names of vectors begin that were outside the memory of the process, and need not be in it when they are read.
"""


def encode(value: Any) -> tuple[Any, Arrays]:
    """Return the JSON tree of a value and the arrays that it refers to; an array that occurs twice is stored once."""
    arrays: Arrays = {}
    names: dict[int, str] = {}

    def plain(key: Any) -> Any:
        value = key.item() if isinstance(key, np.generic) else key
        if value is not None and not isinstance(value, bool | int | float | str):
            raise TypeError(f"a snapshot cannot hold a mapping with the key {key!r}")
        return value

    def tree(item: Any) -> Any:
        if item is None or isinstance(item, bool | int | float | str):
            return item
        if isinstance(item, np.generic):
            return item.item()
        if isinstance(item, np.ndarray | StoredVector):
            if id(item) not in names:
                names[id(item)] = f"{STORED if isinstance(item, StoredVector) else 'array-'}{len(names)}"
                arrays[names[id(item)]] = item
            return {"array": names[id(item)]}
        if isinstance(item, list | deque):
            return [tree(each) for each in item]
        if isinstance(item, tuple):
            return {"tuple": [tree(each) for each in item]}
        if isinstance(item, set | frozenset):
            return {"set": [tree(each) for each in sorted(item)]}
        if isinstance(item, Mapping):
            return {"map": [[plain(key), tree(each)] for key, each in item.items()]}
        if isinstance(item, Update) and not isinstance(item.outcome, OUTCOMES):  # compute lazy numbers: save all
            item = structs.replace(item, outcome=KnownOutcome(item.outcome()))
        if isinstance(item, ScaledOutcome):  # scaled anew from the same numbers when it is read
            item = ScaledOutcome(whole=KnownOutcome(item.whole()), base=item.base, factor=item.factor)
        if isinstance(item, Struct):
            fields = {name: tree(getattr(item, name)) for name in item.__struct_fields__}
            return {"type": type(item).__name__, "fields": fields}
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            fields = {field.name: tree(getattr(item, field.name)) for field in dataclasses.fields(item)}
            return {"type": type(item).__name__, "fields": fields}
        raise TypeError(f"a snapshot cannot hold {type(item).__name__}: {item!r}")

    return tree(value), arrays


def decode(tree: Any, arrays: Mapping[str, Any], types: Iterable[type[Any]] = ()) -> Any:
    """Return the value of a tree made by `encode`; `types` are the record types that may occur besides MESSAGES."""
    known = {kind.__name__: kind for kind in (*MESSAGES, *types)}

    def value(item: Any) -> Any:
        match item:
            case list():
                return [value(each) for each in item]
            case {"array": str(name)}:
                return arrays[name]
            case {"tuple": items}:
                return tuple(value(each) for each in items)
            case {"set": items}:
                return {value(each) for each in items}
            case {"map": pairs}:
                return {key: value(each) for key, each in pairs}
            case {"type": str(name), "fields": fields}:
                return known[name](**{key: value(each) for key, each in fields.items()})
            case dict():
                raise ValueError(f"unknown node {sorted(item)}")
            case _:
                return item

    try:
        return value(tree)
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the snapshot cannot be read: {error}") from error
