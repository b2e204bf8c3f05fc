"""The directory of a search or a recommendation: one experiment, gone on with only if that is asked for."""

from pathlib import Path

from offbeat.comparison.planned import check_root
from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment


def check_directory(root: Path, experiment: Experiment, *, resume: bool) -> None:
    """Refuse a directory that holds anything else, or the same and nobody asked to go on with it."""
    if (root / "config.toml").is_file() and not resume:
        raise InvalidInput(f"{root} is not empty: use --resume to go on with what is there, or choose another --out")
    check_root(root, experiment, overwrite=False, resume=resume)
