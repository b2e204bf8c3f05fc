"""Reads, merges and checks nested tables, the plain data of an experiment file; every error is one sentence."""

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from offbeat.core.errors import InvalidInput
from offbeat.core.settings import InvalidSettings, Settings, explain

Table = dict[str, Any]
S = TypeVar("S", bound=Settings)


def checked(kind: type[S], section: str, table: Mapping[str, Any], also: Iterable[str] = ()) -> S:
    """Make settings of this kind from a table; raises InvalidInput with one sentence about the first error.

    `also` are keys that the table may have beside the fields of this kind.
    """
    try:
        return kind(**table)
    except InvalidSettings as invalid:
        raise InvalidInput(explain(invalid.error, section, [*kind.model_fields, *sorted(also)])) from None


def merge(table: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """Merge changes into nested tables; a table whose `name` changes loses its other keys.

    >>> merge({"local": {"epochs": 5, "momentum": 0.9}}, {"local": {"steps": 50}})
    {'local': {'momentum': 0.9, 'steps': 50}}
    """
    merged = dict(table)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            merged[key] = merge(_compatible(key, old, value), value)
        else:
            merged[key] = value
    return merged


def _compatible(section: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Table:
    """The keys of an old table that still apply after the changes: if `name` changes, only devices.

    Epochs and steps replace each other.
    """
    if new.get("name", old.get("name")) == old.get("name"):
        replaced = {"epochs": "steps", "steps": "epochs"}
        return {key: value for key, value in old.items() if replaced.get(key) not in new}
    return {key: value for key, value in old.items() if section == "data" and key == "devices"}


def read_toml(path: str | os.PathLike[str]) -> Table:
    """Read the tables of a TOML file."""
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InvalidInput(f"there is no experiment file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidInput(f"{path} is not valid TOML: {error}") from None


def parse_changes(changes: Iterable[str]) -> Table:
    """Parse changes like "table.key=value" to nested tables; a value that is not TOML is a string.

    >>> parse_changes(["fleet.ratio=110", "algorithm.name=fedbuff", "algorithm.buffer=5"])
    {'fleet': {'ratio': 110}, 'algorithm': {'name': 'fedbuff', 'buffer': 5}}
    """
    table: Table = {}
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals or not all(part.strip() for part in path.split(".")):
            raise InvalidInput(f"change {change!r}: write it as table.key=value, for instance fleet.ratio=110")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (tomllib.TOMLDecodeError, RecursionError):
            value = text.strip()
        if "\n" in text:
            raise InvalidInput(f"change {change!r}: one change at a time")
        table = merge(table, nested(path, value))
    return table


def parse_values(text: str) -> tuple[str, list[Any]]:
    """Parse "table.key=value,value" to the setting and its values.

    >>> parse_values("algorithm.staleness_limit=1.0,inf")
    ('algorithm.staleness_limit', [1.0, inf])
    """
    path, _, values = text.partition("=")
    changes = [parse_changes([f"value={value}"])["value"] for value in values.split(",")]
    if not path.strip() or not values.strip():
        raise InvalidInput(f"values {text!r}: write them as table.key=value,value, for instance fleet.ratio=5,110")
    return path.strip(), changes


def flattened(table: Mapping[str, Any], above: str = "", *, but: Sequence[str] = ()) -> dict[str, Any]:
    """The settings by their full names, without those of the tables and keys in `but`.

    >>> flattened({"seed": 1, "fleet": {"name": "ratio", "ratio": 5.0}}, but=["seed"])
    {'fleet.name': 'ratio', 'fleet.ratio': 5.0}
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key not in but:
            found |= flattened(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return found


def nested(path: str, value: Any) -> Table:
    """Make nested tables that hold a value under a dotted path.

    >>> nested("fleet.ratio", 5)
    {'fleet': {'ratio': 5}}
    """
    for part in reversed(path.split(".")):
        value = {part.strip(): value}
    return dict(value)
