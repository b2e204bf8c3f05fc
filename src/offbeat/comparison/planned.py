"""The runs of a comparison, and what is checked of all of them before the first begins.

How a run of a comparison failed: a sentence for the user, and a file that says where.
"""

import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import Struct

from offbeat.core.errors import InvalidInput, OffbeatError
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import read_toml
from offbeat.results.files import replace_file
from offbeat.results.rows import Row
from offbeat.running.assembly import ExperimentParts, session_of
from offbeat.running.directory import ERROR_FILE, RunDirectory, check_may_write


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedRun:
    """One run of a comparison."""

    experiment: Experiment
    path: Path

    @property
    def label(self) -> str:
        """The algorithm and the seed, in words."""
        return f"{self.experiment.algorithm.title}, seed {self.experiment.seed}"


OnRunProgress = Callable[[PlannedRun, float, Row | None], None]
"""A function that is given a run, how much of it is done (0 to 1) and its newest row of metrics."""


def plan_runs(experiments: Sequence[Experiment], root: Path) -> list[PlannedRun]:
    """Give every experiment a directory of its own below the root."""
    return [PlannedRun(experiment=each, path=root / _folder(each)) for each in experiments]


def _folder(experiment: Experiment) -> str:
    """A name for the run's directory that every file system takes."""
    label = re.sub(r"[^\w.²-]+", "_", experiment.algorithm.title)
    return f"{label}-seed{experiment.seed}"


def check_directories(
    root: Path, base: Experiment, planned_runs: Sequence[PlannedRun], *, overwrite: bool, resume: bool
) -> None:
    """All directories before the first run begins: nothing is overwritten in vain."""
    check_root(root, base, overwrite=overwrite, resume=resume)
    for planned in planned_runs:
        RunDirectory(planned.path, planned.experiment.table(), overwrite=overwrite, resume=resume)


def check_root(root: Path, base: Experiment, *, overwrite: bool, resume: bool) -> None:
    """Refuse a directory that holds a single run, another comparison, or anything else."""
    if (root / "metrics.jsonl").exists():
        raise InvalidInput(f"{root} holds a single run: choose another --out")
    if (root / "config.toml").exists() and (resume or not overwrite):
        if Experiment.parse(read_toml(root / "config.toml")).table() != base.table():
            raise InvalidInput(
                f"{root} holds runs of another experiment: choose another --out, or --overwrite without --resume"
            )
        if resume:
            return
    check_may_write(root, overwrite)


def check_experiments(experiments: Sequence[Experiment]) -> None:
    """Put together every experiment that differs in data, model, local work or algorithm; an error names the run."""
    parts: dict[str, ExperimentParts] = {}
    for experiment in {_what_matters(each): each for each in reversed(experiments)}.values():
        try:
            key = repr((_data(experiment), experiment.model, experiment.seed))
            if key not in parts:
                parts[key] = ExperimentParts.of(experiment)
            these = replace(parts[key], experiment=experiment)
            fleet = these.fleet()
            session_of(
                experiment,
                these.network,
                samples=these.partition.sizes,
                present=fleet.availability.present(0.0),
                forecast=fleet.forecast(these.layout.bytes),
            )
        except OffbeatError as error:
            raise InvalidInput(f"{experiment.algorithm.title}: {error}") from None


def _what_matters(experiment: Experiment) -> str:
    """Experiments that differ in the seed, the label or the fleet's luck are put together once."""
    algorithm = experiment.algorithm
    return repr((_data(experiment), experiment.model, experiment.local, algorithm.name, algorithm.policy))


def _data(experiment: Experiment) -> str:
    return repr((experiment.data.resolved(), experiment.partition.resolved()))


class RunFailure(Struct, frozen=True):
    """What went wrong in a run, as plain text that any process can send."""

    reason: str
    trace: str | None
    """Where it went wrong; None where that would tell a user nothing."""

    @classmethod
    def of(cls, error: Exception) -> "RunFailure":
        """The failure that an error is."""
        reason = " ".join(str(error).split())
        if isinstance(error, InvalidInput):
            return cls(reason, None)
        return cls(f"{type(error).__name__}: {reason}", "".join(traceback.format_exception(error)))

    def kept(self, planned: PlannedRun) -> str:
        """The failure in one sentence; the traceback goes into a file of the run's directory."""
        if self.trace is None:
            return f"{planned.label} failed: {self.reason}"
        file = planned.path / ERROR_FILE
        replace_file(file, self.trace.encode())
        return f"{planned.label} failed: {self.reason} (where: {file})"
