"""Shared by the ServerApp and the ClientApp of a run: the experiment, and the log.

The experiment comes from three places, the later ones taking precedence: the argument `experiment`, JSON text in the
run config's `experiment`, and run config keys with a dot (`algorithm.name`, `stop.versions`).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.experiment.shipped import ExperimentSource
from offbeat.experiment.tables import merge, nested, read_toml

SampleArrays = tuple[npt.ArrayLike, npt.ArrayLike]
"""Samples and their labels."""


def experiment_of(source: ExperimentSource | None, run_config: Mapping[str, Any]) -> Experiment:
    """Parse the experiment of a source and a run config, with the precedence described in this module."""
    if isinstance(source, Experiment):
        table = source.given_table()
    else:
        table = read_toml(source) if isinstance(source, str | os.PathLike) else dict(source or {})
    try:
        table = merge(table, json.loads(str(run_config.get("experiment", "{}"))))
    except ValueError as error:
        raise InvalidInput(f"experiment in the run config is not JSON: {error}") from None
    for key, value in run_config.items():
        if "." in key or key == "seed":
            table = merge(table, nested(key, value))
    return Experiment.parse(table)


def log_line(what: str) -> None:
    """Write a line into the run's log, which `flwr log` and `flwr run --stream` show."""
    print(f"offbeat: {what}", flush=True)


@dataclass(frozen=True)
class AllSamples:
    """A partition that gives every device all samples: a real device has only its own data."""

    count: int

    def samples(self, device: int) -> npt.NDArray[np.int64]:
        """The positions of all samples, for any device."""
        return np.arange(self.count, dtype=np.int64)
