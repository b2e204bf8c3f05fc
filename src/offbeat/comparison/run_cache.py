"""The run cache: no run is computed twice. Each run has a directory that is named after its digest.

The digest covers everything that determines a run's numbers: all settings except labels and [execution], the files
that the fleet is read from, the user's own modules, and `NUMBERS`. A run that was stopped continues from its
checkpoint; a run that another process computes is waited for. So after a crash the same calls find all finished runs.

The files of a data set are not part of the digest: another path is another experiment, other files under the same path
are not. Timelines and checkpoints of finished runs are deleted, because a cache may hold thousands of runs.
"""

import hashlib
import inspect
import json
import sys
from pathlib import Path
from shutil import rmtree
from time import sleep
from uuid import uuid4

from offbeat.core.errors import Interrupted, InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import Table
from offbeat.references import GIVEN, resolve
from offbeat.results.lock import DirectoryInUse, DirectoryLock
from offbeat.results.metric import SHARE_TARGETS
from offbeat.results.result import Result, read_run
from offbeat.results.rows import Row
from offbeat.running.directory import read_finished
from offbeat.running.driver import OnProgress
from offbeat.running.interruption import Flag, interruption
from offbeat.simulation.run import run

NUMBERS = 1
"""Increased with every change to the package that changes the numbers of a run, so that older runs are not found."""
POLYAK = 2
"""The same for runs with the optimiser polyak alone."""
PROCESS = uuid4().hex
"""Names this process in digests of objects that no other process has."""
WAIT_SECONDS = 0.5
"""Polling interval while another process computes the run, in seconds."""
UNTOLD = ("execution", "deployment", "tracking", "compare", "sweep")
"""Tables that do not affect a run's numbers."""


def canonical(experiment: Experiment) -> Experiment:
    """The experiment without its label and the tables that do not affect its numbers, except [execution]."""
    table = {key: value for key, value in experiment.table().items() if key not in UNTOLD[1:]}
    algorithm = {key: value for key, value in table["algorithm"].items() if key != "label"}
    return Experiment.parse(table | {"algorithm": algorithm})


def digest(experiment: Experiment) -> str:
    """A hash of everything that determines the run's numbers."""
    table = canonical(experiment).table()
    # Targets do not change a run; digests have always had the default ones, and stored runs are found by them.
    table["evaluation"] = {"targets": list(SHARE_TARGETS)} | table.get("evaluation", {})
    content = {key: value for key, value in table.items() if key not in UNTOLD} | {
        "precision": experiment.execution.precision,
        "files": _files(table),
        "modules": {name: _source(name) for name in sorted(experiment.own.values())},
        "numbers": NUMBERS,
    }
    if experiment.local.optimiser == "polyak":
        content["polyak"] = POLYAK
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _files(table: Table) -> dict[str, str]:
    """Digests of the files that tables name as `path`; of a run's directory, the digest of its record."""
    files = {path: Path(path) / "record.jsonl" if Path(path).is_dir() else Path(path) for path in sorted(_paths(table))}
    return {path: _hashed(file.read_bytes()) for path, file in files.items() if file.is_file()}


def _paths(table: Table) -> set[str]:
    """The values of `path` in a table and in the tables within it."""
    own = {table["path"]} if isinstance(table.get("path"), str) else set()
    return own.union(*(_paths(each) for each in table.values() if isinstance(each, dict)))


def _source(reference: str) -> str:
    """A digest of the user's module that a reference names, without the modules that it imports.

    An object that only this process has is found again in this process only.
    """
    if reference.startswith(GIVEN):
        return f"{reference} {PROCESS}"
    file = inspect.getsourcefile(sys.modules[resolve(reference).__module__])
    return "" if file is None else _hashed(Path(file).read_bytes())


def _hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# One run -------------------------------------------------------------------------------------------------------------


def run_cached(
    experiment: Experiment,
    cache: Path,
    *,
    until: float | None = None,
    watch: OnProgress | None = None,
    interrupted: Flag | None = None,
) -> Result:
    """The experiment's run from the cache, after computing what is missing; see `run_in`."""
    return run_in(cache / digest(experiment), experiment, until=until, watch=watch, interrupted=interrupted)


def run_in(
    path: Path,
    experiment: Experiment,
    *,
    until: float | None = None,
    watch: OnProgress | None = None,
    interrupted: Flag | None = None,
) -> Result:
    """The experiment's run from its directory of the cache, after computing what is missing.

    With `until` it is computed up to the first evaluation at or after that virtual time; a later call continues from
    there. Several processes may ask for the same run: one computes it, the others wait.
    """
    with interruption(interrupted) as asked:
        while True:
            found = find(path, until)
            if found is None:
                try:
                    found = compute(canonical(experiment), path, until, watch, asked)
                except DirectoryInUse:
                    if asked.is_set():
                        raise Interrupted("interrupted while waiting for another process") from None
                    sleep(WAIT_SECONDS)
                    continue
                except InvalidInput:
                    if not (path / "summary.json").is_file():  # else another process has just finished it
                        raise
                    continue
            return found.relabelled(experiment.algorithm.title, experiment)


def find(path: Path, until: float | None) -> Result | None:
    """The run, if it is finished or has reached `until`."""
    if (path / "summary.json").is_file():
        return read_finished(path)
    if until is None or not (path / "metrics.jsonl").is_file():
        return None
    try:
        found = read_run(path)
    except InvalidInput:  # it has no row yet
        return None
    return found if found.rows[-1]["time"] >= until else None


class ReachedOrStopped:
    """Stop flag that is set when a run has reached a virtual time, or when the caller's own stop flag is set."""

    def __init__(self, until: float | None, asked: Flag) -> None:
        self._until = until
        self._asked = asked
        self.reached = False

    def see(self, row: Row | None) -> None:
        """Note the time of a new row of metrics."""
        if row is not None and self._until is not None and row["time"] >= self._until:
            self.reached = True

    @property
    def number(self) -> int:
        """The signal that asked to stop."""
        return getattr(self._asked, "number", 2)

    def is_set(self) -> bool:
        """Whether the run is to stop."""
        return self.reached or self._asked.is_set()


def compute(experiment: Experiment, path: Path, until: float | None, watch: OnProgress | None, asked: Flag) -> Result:
    """Compute the run in its directory of the cache, at least up to a virtual time, or else to its end."""
    stop, draft = ReachedOrStopped(until, asked), path / "config.toml.draft"
    if draft.is_file():  # a process is writing it now, or was killed while it did
        with DirectoryLock(path):
            draft.unlink(missing_ok=True)

    def watch_time(fraction: float, row: Row | None) -> None:
        stop.see(row)
        if watch is not None:
            watch(fraction, row)

    try:
        result = run(experiment, path, resume=True, watch=watch_time, interrupted=stop)
    except Interrupted:
        if stop.reached and not asked.is_set():
            return read_run(path)
        raise
    (path / "timeline.json").unlink(missing_ok=True)
    rmtree(path / "checkpoint", ignore_errors=True)
    return result
