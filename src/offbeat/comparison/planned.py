"""A planned run: its experiment, its directory, how it is carried out, and how it failed.

Before the first run of a comparison begins, all directories and experiments are checked.
"""

import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import Struct

from offbeat.comparison.run_cache import find, run_in
from offbeat.core.errors import DiskFull, Interrupted, InvalidInput, OffbeatError, OutputRefused
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import read_toml
from offbeat.results.files import replace_file
from offbeat.results.plots import draw_figures
from offbeat.results.rows import Row
from offbeat.results.tracking import check_trackers
from offbeat.running.assembly import ExperimentParts, session_of
from offbeat.running.directory import ERROR_FILE, RunDirectory, check_may_write, check_same_experiment
from offbeat.running.driver import OnProgress
from offbeat.running.interruption import Flag
from offbeat.simulation.run import run


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedRun:
    """An experiment, the directory of its run, and what may be done with files that already exist."""

    experiment: Experiment
    path: Path
    overwrite: bool = False
    resume: bool = False
    cached: bool = False
    """Whether the directory is in a run cache: other processes may compute the same run, and no figures are drawn."""
    batch: int = 1
    """Number of runs that are carried out together."""
    until: float | None = None
    """Virtual time after whose first evaluation a cached run stops; None: it runs to its end."""

    @property
    def label(self) -> str:
        """The algorithm and the seed, in words."""
        return f"{self.experiment.algorithm.title}, seed {self.experiment.seed}"

    @property
    def is_done(self) -> bool:
        """Whether the directory holds all that the run would compute."""
        if self.cached:
            return (self.path / "summary.json").is_file() or find(self.path, self.until) is not None
        if not self.resume or not (self.path / "metrics.png").is_file():
            return False
        return RunDirectory(self.path, self.experiment.table(), resume=True).is_finished

    def carry_out(self, watch: OnProgress | None, stop: Flag) -> "RunFailure | None":
        """Run the experiment in its directory; returns why it failed, if it did.

        When `stop` is set the run leaves a checkpoint, and Interrupted is raised.
        """
        try:
            if self.cached:
                run_in(self.path, self.experiment, until=self.until, watch=watch, interrupted=stop)
                return None
            result = run(
                self.experiment,
                self.path,
                overwrite=self.overwrite,
                resume=self.resume,
                watch=watch,
                interrupted=stop,
            )
            draw_figures(result)
        except Interrupted:
            raise
        except Exception as error:  # a user's policy may raise anything: that ends its own run only
            return RunFailure.of(error, self)
        return None


class RunFailure(Struct, frozen=True):
    """Why a run failed, as plain data that any process can send."""

    run: str
    """The algorithm and the seed, in words."""
    reason: str
    traceback: str | None = None
    """The file with the traceback; None where that would tell a user nothing."""

    @classmethod
    def of(cls, error: Exception, planned: PlannedRun) -> "RunFailure":
        """Describe an error, and write its traceback into the run's directory unless the input was invalid."""
        reason = " ".join(str(error).split())
        if isinstance(error, InvalidInput):
            return cls(planned.label, reason)
        file = planned.path / ERROR_FILE
        if isinstance(error, DiskFull):
            return cls(planned.label, reason)
        replace_file(file, "".join(traceback.format_exception(error)).encode())
        return cls(planned.label, f"{type(error).__name__}: {reason}", str(file))

    def __str__(self) -> str:
        file = "" if self.traceback is None else f" (traceback: {self.traceback})"
        return f"{self.run} failed: {self.reason}{file}"


OnRunProgress = Callable[[PlannedRun, float, Row | None], None]
"""A function that is given a run, the fraction of it that is done (0 to 1) and its newest row of metrics."""


def plan_runs(
    experiments: Sequence[Experiment], root: Path, *, overwrite: bool = False, resume: bool = False
) -> list[PlannedRun]:
    """Give every experiment a directory of its own below the root."""
    return [
        PlannedRun(experiment=each, path=root / _folder(each), overwrite=overwrite, resume=resume)
        for each in experiments
    ]


def _folder(experiment: Experiment) -> str:
    return f"{file_name(experiment.algorithm.title)}-seed{experiment.seed}"


def file_name(title: str) -> str:
    """The title of an algorithm as a file name that every file system accepts.

    >>> file_name("my_policy:Mine"), file_name("aso-fed")
    ('my_policy_Mine', 'aso-fed')
    """
    return re.sub(r"[^\w.²-]+", "_", title)


def check_directories(root: Path, base: Experiment, planned_runs: Sequence[PlannedRun]) -> None:
    """Check the root and every run's directory, so that nothing is overwritten before all of them are known to fit."""
    first = planned_runs[0]
    check_root(root, base, overwrite=first.overwrite, resume=first.resume)
    for planned in planned_runs:
        check_trackers(planned.experiment.tracking, directory=planned.path)
        RunDirectory(planned.path, planned.experiment.table(), overwrite=planned.overwrite, resume=planned.resume)


def check_root(root: Path, base: Experiment, *, overwrite: bool, resume: bool, extends: bool = True) -> None:
    """Refuse a directory that holds a single run, runs of another experiment, or other files."""
    if (root / "metrics.jsonl").exists():
        raise OutputRefused(f"{root} holds a single run", "out")
    if (root / "config.toml").exists() and (resume or not overwrite):
        theirs = Experiment.parse(read_toml(root / "config.toml")).table()
        check_same_experiment(root, theirs, base.table(), resume=resume, extends=extends)
        if resume:
            return
    check_may_write(root, overwrite)


def check_new_or_resumed(root: Path, base: Experiment, *, resume: bool) -> None:
    """Refuse a directory that holds anything but a search or recommendation of the same experiment to be resumed."""
    if (root / "config.toml").is_file() and not resume:
        raise OutputRefused(f"{root} already holds a search", "resume", "out")
    check_root(root, base, overwrite=False, resume=resume, extends=False)


def check_experiments(experiments: Sequence[Experiment]) -> None:
    """Build every experiment that differs in data, model, local training or algorithm; an error names the run."""
    parts: dict[str, ExperimentParts] = {}
    for experiment in {_what_matters(each): each for each in reversed(experiments)}.values():
        try:
            key = repr((_data(experiment), experiment.model, experiment.seed))
            if key not in parts:
                parts[key] = ExperimentParts.of(experiment)
            check_can_begin(experiment, parts[key])
        except OffbeatError as error:
            raise InvalidInput(f"{experiment.algorithm.title}: {error}") from None


def check_can_begin(experiment: Experiment, parts: ExperimentParts) -> None:
    """Raise InvalidInput if the experiment's session cannot be made with these data and this model."""
    these = replace(parts, experiment=experiment)
    fleet = these.fleet()
    session_of(
        experiment,
        these.network,
        samples=these.partition.sizes,
        present=fleet.availability.present(0.0),
        secret=False,
        forecast=fleet.forecast(these.layout.bytes),
    )


def _what_matters(experiment: Experiment) -> str:
    """What experiments that differ only in the seed, the label or the fleet's random draws have in common."""
    algorithm = experiment.algorithm
    return repr((_data(experiment), experiment.model, experiment.local, algorithm.name, algorithm.policy))


def _data(experiment: Experiment) -> str:
    return repr((experiment.data.resolved(), experiment.partition.resolved()))
