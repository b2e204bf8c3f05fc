"""Backward compatibility of experiment files: moves keys of earlier versions to where they are now, with a note."""

from collections.abc import Mapping
from typing import Any

from offbeat.core.errors import InvalidInput, unknown
from offbeat.data import DATASETS, PARTITIONS
from offbeat.experiment.tables import Table


def migrate(table: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> tuple[Table, list[str]]:
    """Return the tables in the current form, and a note for each key that has moved.

    If the tables are changes to others, `base` are those: they have the names that the changes leave out.
    """
    tables, notes = dict(table), list[str]()
    for change in (_partition, _availability):
        notes += change(tables, base or {})
    return tables, notes


def _partition(tables: Table, base: Mapping[str, Any]) -> list[str]:
    """Move `partition` and its settings from [data] to [partition]."""
    data, partition = tables.get("data"), tables.get("partition", {})
    if not isinstance(data, Mapping) or not isinstance(partition, Mapping):
        return []
    former = data.get("partition")
    if former is not None and "name" in partition:
        raise InvalidInput(
            f"data.partition = {former!r} and partition.name = {partition['name']!r}: leave out the one in [data]"
        )
    name = former or partition.get("name") or _named(base, "partition")
    if former is not None and name not in PARTITIONS:
        raise unknown("partition", str(name), PARTITIONS)
    dataset = data.get("name", _named(base, "data") or "mnist5k")
    own = DATASETS[dataset].model_fields.keys() if dataset in DATASETS else set()
    settings = PARTITIONS[name].model_fields.keys() - own - {"devices", "name"} if name in PARTITIONS else set()
    moved = {key: value for key, value in data.items() if key in settings}
    if former is None and not moved:
        return []
    tables["data"] = {key: value for key, value in data.items() if key not in {"partition", *moved}}
    if former == "iid" and not base and (dataset not in DATASETS or "devices" in own):
        return []  # the former default, also written for data that are already partitioned
    tables["partition"] = ({"name": former} if former is not None else {}) | moved | dict(partition)
    old = [key for key in data if key == "partition" or key in moved]
    return [f"[data] {', '.join(old)}: these keys have moved, write [partition] name = {name!r} ..."]


def _availability(tables: Table, base: Mapping[str, Any]) -> list[str]:
    """Remove settings of `on-off` from `always`, which ignored them."""
    table = tables.get("availability")
    if isinstance(table, Mapping) and table.get("name") == "always":
        tables["availability"] = {key: table[key] for key in table if key not in ("on_seconds", "off_seconds")}
    return []


def _named(tables: Mapping[str, Any], section: str) -> str:
    table = tables.get(section, {})
    return str(table.get("name", "")) if isinstance(table, Mapping) else ""
