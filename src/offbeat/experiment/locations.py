"""Where an experiment file finds what it names: data files, traces and the user's own modules.

Relative paths in a file are relative to it, and its directory is on the Python path. `modules = ["DIRECTORY", ...]` at
the top of a file adds more directories; a file that offbeat writes elsewhere (`recommended.toml`) has it.
"""

import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from offbeat.core.errors import InvalidInput
from offbeat.experiment.tables import Table
from offbeat.references import GIVEN

PATHS = ("data.path", "data.dir", "data.cache", "data.source", "fleet.path", "availability.path", "network.trace.path")
"""The settings that hold a path. `data.source` may also be a name on the Hugging Face hub."""


def located(table: Mapping[str, Any], folder: Path, *, note: bool = True) -> tuple[Table, list[str]]:
    """The tables with absolute paths, and a note for each path that is found from the current directory only."""
    tables, notes = dict(table), list[str]()
    for key in PATHS:
        *sections, name = key.split(".")
        inner = tables
        for section in sections:
            if not isinstance(inner.get(section), Mapping):
                break
            inner[section] = dict(inner[section])
            inner = inner[section]
        else:
            given = inner.get(name)
            if not isinstance(given, str) or not given or Path(given).expanduser().is_absolute():
                continue
            beside, here = folder / given, Path(given)
            if beside.exists() or (not here.exists() and key != "data.source"):
                inner[name] = str(beside)
            elif here.exists():
                inner[name] = str(here.resolve())
                if note:
                    notes.append(
                        f"{key} = {given!r} is found from the current directory, but paths are relative to the "
                        f"experiment file: write the path from {folder}"
                    )
    return tables, notes


def use_modules(table: Mapping[str, Any], folder: Path) -> Table:
    """The tables without `modules`, whose directories, and that of the file, are now on the Python path."""
    given = table.get("modules", [])
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise InvalidInput(f"modules = {given!r}: must be a list of directories")
    for each in [str(folder), *(str((folder / name).resolve()) for name in given)]:
        if each not in sys.path:
            sys.path.append(each)
    return {key: value for key, value in table.items() if key != "modules"}


def modules_line(references: Iterable[str]) -> str:
    """The line of a file that names the directories of the user's own modules; empty if there are none."""
    installed = [Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib")]
    folders = set()
    for reference in references:
        name = reference.partition(":")[0]
        file = getattr(sys.modules.get(name), "__file__", None)
        if reference.startswith(GIVEN) or file is None or name == "__main__":
            continue
        path = Path(file).resolve()
        folder = path.parents[name.count(".") + (path.name == "__init__.py")]
        if not any(path.is_relative_to(each) for each in installed):
            folders.add(str(folder))
    return tomli_w.dumps({"modules": sorted(folders)}) if folders else ""
