"""Many cases, and the smallest form of one that fails."""

import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from offbeat.core.errors import InvalidInput
from offbeat.testing.torture.cases import Case, random_case
from offbeat.testing.torture.grid import GridRun
from offbeat.testing.torture.virtual import run_virtual

IN_MEMORY = Path("/dev/shm")
"""Where the files of a case are, if there is such a folder: nothing is written to the disk."""
BATCH = 25
"""Cases that a worker gets at a time."""


def run_case(case: Case) -> str:
    """Run a case and return why it ended; Broken, or the driver's own exception, if it fails."""
    parent = IN_MEMORY if IN_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="offbeat-torture-", dir=parent) as name:
        return GridRun(case, Path(name)).run() if case.driver == "grid" else run_virtual(case, Path(name))


def attempt(case: Case) -> tuple[str, str]:
    """Run a case; why it ended, and what is wrong with it, if anything."""
    try:
        return run_case(case), ""
    except InvalidInput:
        return "invalid settings", ""
    except Exception as error:  # whatever a case raises is a finding
        return "failed", f"{type(error).__name__}: {error}"


def shrunk(case: Case) -> Case:
    """The simplest case that still fails, found by resetting one field after the other."""
    simplest, again = Case(algorithm=case.algorithm, driver=case.driver), True
    kind = attempt(case)[1].partition(":")[0]
    while again:
        again = False
        for name in Case.__struct_fields__:
            default = getattr(simplest, name)
            candidates = [default]
            if name == "settings":
                candidates += [{k: v for k, v in case.settings.items() if k != drop} for drop in case.settings]
            if name == "kills":
                candidates += [case.kills[:1]]
            for value in candidates:
                candidate = structs.replace(case, **{name: value})
                if candidate != case and attempt(candidate)[1].partition(":")[0] == kind:
                    case, again = candidate, True
                    break
    return case


class CaseResult(Struct, kw_only=True):
    """A line of the file of results."""

    seed: int
    reason: str
    wrong: str


def outcome(seed: int) -> CaseResult:
    """Run the case of a seed."""
    reason, wrong = attempt(random_case(seed))
    return CaseResult(seed=seed, reason=reason.partition(":")[0], wrong=wrong)


class Results:
    """Counts by reason, in memory and in a file, to which an interrupted campaign adds when it is started again."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.seeds: set[int] = set()
        self.failed = 0
        self.reasons = Counter[str]()
        if path is not None and path.is_file():
            text = path.read_text(encoding="utf-8")
            for line in text[: text.rfind("\n") + 1].splitlines():  # the last line may be half a line
                self._count(msgspec.json.decode(line, type=CaseResult))
            path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")

    def _count(self, found: CaseResult) -> None:
        self.seeds.add(found.seed)
        self.failed += bool(found.wrong)
        self.reasons[found.reason] += 1

    def add(self, found: CaseResult) -> None:
        """Count an outcome, and write it down."""
        self._count(found)
        if self.path is not None:
            with self.path.open("ab") as file:
                file.write(msgspec.json.encode(found) + b"\n")

    def __str__(self) -> str:
        ended = ", ".join(f"{count} {reason}" for reason, count in self.reasons.most_common())
        return f"{self.reasons.total()} cases, {self.failed} failed (ended by: {ended or 'none'})"


def campaign(seeds: range, results: Results, *, seconds: float, jobs: int) -> Iterator[CaseResult]:
    """Run the cases that have no result yet, and yield the results; start none after so many seconds."""
    began, left = time.monotonic(), (seed for seed in seeds if seed not in results.seeds)
    with ExitStack() as stack:
        run = map if jobs == 1 else stack.enter_context(multiprocessing.get_context("spawn").Pool(jobs)).imap
        while time.monotonic() - began <= seconds and (batch := list(islice(left, BATCH * jobs))):
            for found in run(outcome, batch):
                results.add(found)
                yield found
