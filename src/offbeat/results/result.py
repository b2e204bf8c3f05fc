"""The result of a run: rows of metrics, their summary, the final parameters and the directory."""

import csv
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from offbeat.core.errors import InvalidInput
from offbeat.core.parameters import Layout, Vector
from offbeat.experiment.schema import Experiment
from offbeat.references import importing_nothing, thing_name
from offbeat.results.metric import TargetMetric, summarise
from offbeat.results.rows import COMMON_COLUMNS, RUN_COLUMNS, Row

if TYPE_CHECKING:  # imported when they are asked for
    import pandas
    import torch
    from matplotlib.figure import Figure

Tensors = Mapping[str, npt.NDArray[Any]]
UNFINISHED = "not finished"
"""The reason for stopping in the summary of a run that has not ended."""
ORDER = "order"
"""The key in a model file's metadata that holds the names in the order of the flat vector."""


class Result:
    """One run: `rows` of metrics, `summary`, `parameters`, `directory` and `experiment`."""

    def __init__(
        self,
        *,
        rows: list[Row],
        summary: dict[str, Any],
        experiment: Experiment | None = None,
        directory: Path | None = None,
        tensors: Tensors | None = None,
    ) -> None:
        self.rows = rows
        """One row of metrics per evaluation."""
        self.summary = summary
        """The summary of the rows, as in summary.json."""
        self.experiment = experiment
        """The experiment; None if its file names modules that cannot be imported."""
        self.directory = directory
        """The directory of the run; None if nothing was written."""
        self._tensors = tensors

    @property
    def algorithm(self) -> str:
        """The label of the run in tables and plots."""
        return str(self.summary["label"])

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.summary["seed"])

    @property
    def diverged(self) -> bool:
        """Whether the run ended because training diverged."""
        return str(self.summary.get("stopped_by", "")).startswith("diverged")

    def diverged_before(self, time: float) -> bool:
        """Whether the run diverged before this time."""
        return self.diverged and self.rows[-1]["time"] < time

    @property
    def real(self) -> bool:
        """Whether the run was on real devices, with wall-clock time."""
        return "updates_refused" in self.summary

    @property
    def in_training(self) -> float:
        """Mean number of orders in flight over time; over the evaluations if the summary does not have it."""
        known = self.summary.get("in_training")
        return fmean(row["in_flight"] for row in self.rows) if known is None else float(known)

    @property
    def metrics(self) -> list[str]:
        """The names of the task's metrics in the rows, in the order in which they are shown."""
        listed = self.summary.get("metrics")
        if listed is not None:
            return list(listed)
        # A summary that an earlier version wrote: it has a final value of each metric.
        return [key.removeprefix("final_") for key in self.summary if key.startswith("final_")]

    @cached_property
    def devices(self) -> list[Row]:
        """What each device did, as in devices.csv; empty if the fleet was too large or nothing was written."""
        return [] if self.directory is None else read_devices(self.directory)

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return bool(self.summary["stopped_by"] != UNFINISHED)

    @property
    def config(self) -> str:
        """The experiment as TOML."""
        if self.experiment is not None:
            return self.experiment.toml()
        return "" if self.directory is None else (self.directory / "config.toml").read_text(encoding="utf-8")

    def relabelled(self, label: str, experiment: Experiment | None = None) -> "Result":
        """The same run under another label, and with another experiment if one is given."""
        return Result(
            rows=self.rows,
            summary=self.summary | {"label": label},
            experiment=experiment or self.experiment,
            directory=self.directory,
            tensors=self._tensors,
        )

    # The model --------------------------------------------------------------------------------------------------------

    @cached_property
    def tensors(self) -> Tensors | None:
        """The final parameters by name, in the order of the flat vector; None if they were not saved."""
        if self._tensors is not None or self.directory is None:
            return self._tensors
        return read_tensors(self.directory / "model.safetensors")

    @cached_property
    def parameters(self) -> Vector | None:
        """The final parameters as one flat vector; None if they were not saved."""
        if self.tensors is None:
            return None
        return np.concatenate([tensor.ravel() for tensor in self.tensors.values()])

    def state_dict(self) -> "dict[str, torch.Tensor]":
        """The final parameters as a torch state dict.

        It lacks the batch counters of batch normalisation: load it with `strict=False` into such a model.
        """
        import torch

        if self.tensors is None:
            raise InvalidInput(f"{self!r} has no final parameters: it has not ended, or execution.save_model is false")
        return {name: torch.from_numpy(tensor.copy()) for name, tensor in self.tensors.items()}

    # In a notebook ----------------------------------------------------------------------------------------------------

    def frame(self) -> "pandas.DataFrame":
        """The rows of metrics as a pandas DataFrame."""
        return frame_of(self.rows)

    def plot(self) -> "Figure":
        """The target metric, loss and staleness over time."""
        from offbeat.results.plots import run_figure

        return run_figure(self)

    @property
    def title(self) -> str:
        """The algorithm and, if the experiment is known, the data set."""
        return (
            self.algorithm
            if self.experiment is None
            else f"{self.algorithm} on {thing_name(self.experiment.data.name)}"
        )

    def __repr__(self) -> str:
        last, place = self.rows[-1], "" if self.directory is None else f", in {self.directory}"
        state = "" if self.finished else f", {UNFINISHED}"
        measured = "".join(f"{name} {last[name]:.4f} " for name in self.metrics[:1])
        return (
            f"<Result of {self.title}, seed {self.seed}: {measured}after {last['time']:g} s, "
            f"{last['version']:g} versions{state}{place}>"
        )

    def _repr_html_(self) -> str:
        """The summary as a table."""
        shown = {key: value for key, value in self.summary.items() if not isinstance(value, dict)}
        cells = (f"<tr><th>{escape(key)}</th><td>{escape(_short(value))}</td></tr>" for key, value in shown.items())
        return f"<table><caption>{escape(self.title)}, seed {self.seed}</caption>{''.join(cells)}</table>"


def read_run(directory: str | os.PathLike[str]) -> Result:
    """The run in a directory, finished or not."""
    path = Path(directory)
    if not (path / "config.toml").is_file() or not (path / "metrics.jsonl").is_file():
        raise InvalidInput(f"{path} holds no run: it has no config.toml or no metrics.jsonl")
    try:
        table = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
        # The last line may be incomplete if the run is in progress or was killed.
        text = (path / "metrics.jsonl").read_text(encoding="utf-8")
        rows = [
            _row(json.loads(line), number)
            for number, line in enumerate(text[: text.rfind("\n") + 1].split("\n"), 1)
            if line
        ]
        if not rows:
            raise ValueError("it has no row of metrics yet")
        experiment = _experiment(table)
        summary = _summary(path, table, rows, experiment)
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput(f"the run in {path} cannot be read: {error}") from None
    return Result(rows=rows, summary=summary, experiment=experiment, directory=path)


def _experiment(table: Mapping[str, Any]) -> Experiment | None:
    """The experiment; None if it names modules that this process has not imported, which the rest does not need."""
    try:
        with importing_nothing():
            return Experiment.parse(table)
    except InvalidInput:
        return None


def _row(row: Any, line: int) -> Row:
    """A row of metrics, if it is one."""
    if not isinstance(row, dict) or not all(isinstance(value, int | float) for value in row.values()):
        raise ValueError(f"line {line} of metrics.jsonl is not a table of numbers")
    if lacking := [name for name in COMMON_COLUMNS if name not in row]:
        raise ValueError(f"line {line} of metrics.jsonl has no {lacking[0]!r}")
    return row


SUMMARY_TYPES: dict[str, Any] = {
    "algorithm": str,
    "label": str,
    "seed": int,
    "stopped_by": str,
    "wall_seconds": int | float,
    "metrics": list,
    "in_training": int | float,
    "refused_devices": dict,
}
"""Types of values in a summary that readers rely on."""


def _checked_summary(summary: Any, rows: list[Row]) -> dict[str, Any]:
    if (
        not isinstance(summary, dict)
        or not {"algorithm", "label", "seed", "stopped_by", "wall_seconds"} <= summary.keys()
    ):
        raise ValueError("its summary.json is not complete")
    for name, kind in SUMMARY_TYPES.items():
        if name in summary and not isinstance(summary[name], kind):
            raise ValueError(f"{name} in its summary.json is {str(summary[name])[:40]!r}")
    if unknown := [name for name in summary.get("metrics", ()) if not isinstance(name, str) or name not in rows[-1]]:
        raise ValueError(f"metrics in its summary.json has {str(unknown[0])[:40]!r}, which metrics.jsonl has not")
    for name, value in summary.items():
        if name.startswith(("final_", "best_", "mean_", "max_", "updates_")) and not isinstance(
            value, int | float | None
        ):
            raise ValueError(f"{name} in its summary.json is {str(value)[:40]!r}, not a number")
        if name.startswith("time_to_") and not isinstance(value, dict | int | float | None):
            raise ValueError(f"{name} in its summary.json is {str(value)[:40]!r}")
    return summary


def _summary(path: Path, table: Mapping[str, Any], rows: list[Row], experiment: Experiment | None) -> dict[str, Any]:
    if (path / "summary.json").is_file():
        return _checked_summary(json.loads((path / "summary.json").read_text(encoding="utf-8")), rows)
    algorithm = table["algorithm"]
    metrics = [name for name in rows[-1] if name not in RUN_COLUMNS]
    if experiment is not None:
        metrics = [name for name in experiment.task.metrics if name in rows[-1]]
    metric = _metric(table, metrics, experiment)
    return summarise(
        rows,
        algorithm=algorithm["name"],
        label=algorithm.get("label", ""),
        seed=table["seed"],
        targets=metric.targets(table["evaluation"].get("targets")),
        reason=UNFINISHED,
        wall_seconds=0.0,
        metric=metric,
        metrics=metrics,
    )


def _metric(table: Mapping[str, Any], metrics: Sequence[str], experiment: Experiment | None) -> TargetMetric:
    """The target metric of a run without a summary; if its task cannot be imported, the first that is measured."""
    if experiment is not None:
        return TargetMetric.of_experiment(experiment)
    name = table["evaluation"].get("target_metric", metrics[0])
    return TargetMetric.named(name)


def read_devices(path: Path) -> list[Row]:
    """The rows of a run's devices.csv; empty if the fleet was too large for one."""
    if not (path / "devices.csv").is_file():
        return []
    with (path / "devices.csv").open(encoding="utf-8", newline="") as file:
        try:
            lines = list(csv.DictReader(file))
            return [{key: float(value) for key, value in line.items() if key != "name"} for line in lines]
        except (ValueError, TypeError, csv.Error) as error:
            raise InvalidInput(f"{path / 'devices.csv'} cannot be read: {error}") from None


def read_device_names(path: Path) -> dict[int, str]:
    """The names of the devices in a run's devices.csv; empty if they have none."""
    if not (path / "devices.csv").is_file():
        return {}
    with (path / "devices.csv").open(encoding="utf-8", newline="") as file:
        return {int(line["device"]): line["name"] for line in csv.DictReader(file) if "name" in line}


def tensors_of(parameters: Vector, layout: Layout) -> dict[str, npt.NDArray[Any]]:
    """The tensors in a flat vector, by name."""
    return {entry.name: parameters[entry.span].reshape(entry.shape) for entry in layout.entries}


def read_tensors(path: Path) -> Tensors | None:
    """The parameters in a file, in the order of its metadata if they have one; None if there is no file."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="np") as file:
            names = json.loads((file.metadata() or {}).get(ORDER, "null")) or list(file.keys())
            return {name: file.get_tensor(name) for name in names}
    except (OSError, ValueError, TypeError, RecursionError, SafetensorError) as error:
        raise InvalidInput(f"{path} holds no model parameters: {error}") from None


def frame_of(rows: list[Row] | list[dict[str, Any]]) -> "pandas.DataFrame":
    """Rows as a pandas DataFrame."""
    try:
        import pandas
    except ImportError:
        raise InvalidInput("frame() needs pandas, which is not installed: pip install pandas") from None
    return pandas.DataFrame(rows)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
