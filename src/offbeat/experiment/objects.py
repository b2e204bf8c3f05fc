"""Converts Python objects that are given instead of tables or names to the tables that a file would have.

A settings object becomes the name of its class and its fields; a class, a function or a data set becomes its name (see
`references`). So an experiment is always plain data.
"""

import sys
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from offbeat.algorithms import POLICIES, known_name
from offbeat.algorithms.sizes import governed
from offbeat.core.errors import InvalidInput
from offbeat.core.policy import Policy
from offbeat.core.selection import Selector
from offbeat.core.settings import Settings
from offbeat.data import DATASETS, PARTITIONS, Dataset, PartitionSettings, from_arrays
from offbeat.data.partitioners import is_partitioner
from offbeat.experiment.named import TASKS
from offbeat.experiment.tables import Table
from offbeat.fleet import AVAILABILITIES, FLEETS, AvailabilitySettings, FleetSettings
from offbeat.models import MODELS
from offbeat.references import reference_to
from offbeat.selection import SELECTORS

REGISTRIES: dict[str, Mapping[str, Any]] = {
    "data": DATASETS,
    "partition": PARTITIONS,
    "model": MODELS,
    "fleet": FLEETS,
    "availability": AVAILABILITIES,
    "algorithm": POLICIES,
    "selection": SELECTORS,
    "task": TASKS,
}
OWN_KINDS = (PartitionSettings, FleetSettings, AvailabilitySettings, Selector)


def arrays_read(section: str, given: Any) -> Any:
    """Convert four arrays (train_x, train_y, test_x, test_y) to a Dataset, which the caller must keep alive."""
    match given:
        case (train_x, train_y, test_x, test_y) if section == "data":
            return from_arrays(train_x, train_y, test_x, test_y)
        case Mapping() if section == "data" and "name" in given:
            return {**given, "name": arrays_read(section, given["name"])}
    return given


def as_table(section: str, given: Any) -> Any:
    """Convert an object to the table of this section; anything else is returned for the section's checks to refuse."""
    if section not in REGISTRIES:
        return plain(given)
    known = REGISTRIES[section]
    if section == "task" and isinstance(given, Settings):
        return {"name": name_of(section, type(given))} | given.model_dump(exclude_none=True)
    kinds = tuple(kind for kind in known.values() if isinstance(kind, type))
    match given:
        case str():
            return {"name": known_name(given) if section == "algorithm" else given}
        case {"name": str(name)} if section == "algorithm" and known_name(name) != name:
            return as_table(section, {**given, "name": known_name(name)})
        case Mapping() if "name" in given and not isinstance(given["name"], str):
            named = as_table(section, given["name"])
            return (named if isinstance(named, dict) else {"name": named}) | _plain_table(given, but="name")
        case Policy():  # sizes that were not set stay open
            open_sizes = set(governed(type(given))) - given.model_fields_set
            return {"name": name_of(section, type(given))} | given.model_dump(exclude=open_sizes, exclude_none=True)
        case Settings() if isinstance(given, (*kinds, *OWN_KINDS)):
            return {"name": name_of(section, type(given))} | given.model_dump(exclude={"name"}, exclude_none=True)
        case _ if section == "partition" and is_partitioner(given) and not isinstance(given, type):
            return {"name": reference_to(given)}
        case Dataset():
            devices = {} if given.devices is None else {"devices": len(given.devices)}
            return {"name": reference_to(given)} | devices
    if section == "model" and "torch" in sys.modules and isinstance(given, sys.modules["torch"].nn.Module):
        raise InvalidInput(
            f"model is an instance of {type(given).__name__}: give the class or a function that makes it, because its "
            "initial parameters must come from the experiment's seed"
        )
    if section == "data" and not callable(given) and not isinstance(given, Mapping | Settings):
        raise InvalidInput(
            f"data is a {type(given).__name__}: give (train_x, train_y, test_x, test_y), an offbeat.Dataset, a "
            "function of the seed, or a name"
        )
    return {"name": name_of(section, given)} if callable(given) else plain(given)


def name_of(section: str, value: Any) -> str:
    """The name of an object in the registry of its section, or else "module:attribute"."""
    reference = reference_to(value)
    registered = (name for name, known in REGISTRIES[section].items() if known is value or known == reference)
    return next(registered, reference)


def plain(value: Any) -> Any:
    """Convert numpy scalars, tuples and paths to the values that a file would have.

    >>> plain({"seed": np.int64(3), "sizes": (1, 2)})
    {'seed': 3, 'sizes': [1, 2]}
    """
    match value:
        case np.generic():
            return value.item()
        case Mapping():
            return _plain_table(value)
        case list() | tuple():
            return [plain(each) for each in value]
        case PurePath():
            return str(value)
    return value


def _plain_table(table: Mapping[Any, Any], but: str = "") -> Table:
    return {str(key): plain(value) for key, value in table.items() if key != but}
