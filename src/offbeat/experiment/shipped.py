"""Finds the experiment files that come with the package, and loads an experiment from any source."""

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from offbeat.core.errors import InvalidInput, unknown
from offbeat.experiment.schema import Experiment

ExperimentSource = Experiment | Mapping[str, Any] | str | os.PathLike[str]
"""An experiment, its tables, a file, or the name of an experiment that comes with the package."""


def shipped() -> dict[str, Path]:
    """The experiment files that come with the package, by name."""
    folder = Path(str(resources.files("offbeat"))) / "experiment" / "shipped_files"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_experiment(name: str, changes: Iterable[str] = (), *, alone: bool = False) -> Experiment:
    """Load an experiment that comes with the package, with changes like "fleet.ratio=110".

    >>> load_experiment("demo", ["fleet.ratio=110"]).table()["fleet"]["ratio"]
    110.0
    """
    files = shipped()
    if name not in files:
        raise unknown("experiment", str(name), files)
    return Experiment.load(files[name], changes, alone=alone)


def experiment_from(source: ExperimentSource, changes: Iterable[str] = (), *, alone: bool = False) -> Experiment:
    """Load the experiment of a source; a file takes precedence over an experiment of the package with its name.

    `alone` is as in `Experiment.load`.
    """
    if isinstance(source, Experiment):
        return source
    if isinstance(source, Mapping):
        return Experiment.parse(source)
    if not isinstance(source, str | os.PathLike):
        raise InvalidInput(
            f"an experiment must be an offbeat.Experiment, tables or a file, not {type(source).__name__}"
        )
    path = Path(source)
    if not path.exists() and path.stem in shipped():
        return load_experiment(path.stem, changes, alone=alone)
    near = get_close_matches(path.stem, shipped(), n=1, cutoff=0.6)
    if near and not path.exists() and path.suffix in ("", ".toml"):
        raise InvalidInput(f"there is no experiment file {path}: did you mean {near[0]!r}?")
    return Experiment.load(path, changes, alone=alone)
