"""Experiment files of former versions: keys that stand elsewhere today are moved there, with a note."""

from collections.abc import Mapping
from typing import Any

from offbeat.core.errors import InvalidInput, unknown
from offbeat.data import DATASETS, PARTITIONS
from offbeat.experiment.tables import Table


def todays(table: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> tuple[Table, list[str]]:
    """The tables as they are written today, and a note on each that was not.

    `base` is what the tables are changes of, if they are: it knows the names that they leave out.
    """
    tables, notes = dict(table), list[str]()
    for change in (_partition, _availability):
        notes += change(tables, base or {})
    return tables, notes


def _partition(tables: Table, base: Mapping[str, Any]) -> list[str]:
    """`partition` and its settings stood in [data]."""
    data, partition = tables.get("data"), tables.get("partition", {})
    if not isinstance(data, Mapping) or not isinstance(partition, Mapping):
        return []
    former = data.get("partition")
    if former is not None and "name" in partition:
        raise InvalidInput(
            f"data.partition = {former!r} and partition.name = {partition['name']!r}: give the one in [partition] only"
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
        return []  # the default, which was written down also for data that come divided
    tables["partition"] = ({"name": former} if former is not None else {}) | moved | dict(partition)
    old = [key for key in data if key == "partition" or key in moved]
    return [f"[data] {', '.join(old)}: partitions have a table of their own, write [partition] name = {name!r} ..."]


def _availability(tables: Table, base: Mapping[str, Any]) -> list[str]:
    """`always` had the settings of `on-off`, which meant nothing."""
    table = tables.get("availability")
    if isinstance(table, Mapping) and table.get("name") == "always":
        tables["availability"] = {key: table[key] for key in table if key not in ("on_seconds", "off_seconds")}
    return []


def _named(tables: Mapping[str, Any], section: str) -> str:
    table = tables.get(section, {})
    return str(table.get("name", "")) if isinstance(table, Mapping) else ""
