"""The experiment files that come with the package, and an experiment from whatever names one."""

import os
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from offbeat.core.errors import InvalidInput, unknown
from offbeat.experiment.schema import Experiment

ExperimentSource = Experiment | Mapping[str, Any] | str | os.PathLike[str]
"""An experiment, tables, a file, or the name of an experiment that is shipped."""


def shipped() -> dict[str, Path]:
    """The experiment files that come with the package, by name."""
    folder = Path(str(resources.files("offbeat"))) / "experiment" / "shipped_files"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_experiment(name: str, changes: Iterable[str] = ()) -> Experiment:
    """An experiment that comes with the package, with changes like "fleet.ratio=110".

    >>> load_experiment("demo", ["fleet.ratio=110"]).table()["fleet"]["ratio"]
    110.0
    """
    files = shipped()
    if name not in files:
        raise unknown("experiment", str(name), files)
    return Experiment.load(files[name], changes)


def experiment_from(source: ExperimentSource, changes: Iterable[str] = ()) -> Experiment:
    """The experiment that this is, describes or names. A file goes before an experiment of ours that has its name."""
    if isinstance(source, Experiment):
        return source
    if isinstance(source, Mapping):
        return Experiment.parse(source)
    if not isinstance(source, str | os.PathLike):
        raise InvalidInput(
            f"an experiment is given as offbeat.Experiment, as tables or as a file, not as {type(source).__name__}"
        )
    path = Path(source)
    if not path.exists() and path.stem in shipped():
        return load_experiment(path.stem, changes)
    return Experiment.load(path, changes)
