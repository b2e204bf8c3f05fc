"""A reproduction: the cases that it consists of, what papers say of them, and running what is not in the cache yet."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from offbeat.comparison.cached_runs import CachedRuns, Failure
from offbeat.comparison.objective import mean_until
from offbeat.core.errors import OffbeatError
from offbeat.results.result import Result
from offbeat.settings.schema import Experiment
from offbeat.settings.tables import Table
from offbeat.studies.reproductions.claims import Claim
from offbeat.studies.reproductions.measurements import (
    Measurement,
    measured,
    slow_devices,
)

TUNING_SEED = 100
"""Settings are chosen on this seed, and reported are others, from 0 on."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """How much of a reproduction is run."""

    seeds: int
    length: float = 1.0
    """Rounds and seconds, as a share of the full ones."""
    data: Path | None = None
    """The directory with data sets that are not embedded, as `mnist`, `fashion-mnist`, `cifar-10`, `device-traces`."""
    full: bool = True
    """Whether all parts are run, or the few that show the claim."""

    def rounds(self, full: int) -> int:
        """So many rounds of the full form's, and at least two."""
        return max(2, round(self.length * full))


QUICK = Form(seeds=2, length=0.4, full=False)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One method in one part of a reproduction: an experiment, to be run with several seeds."""

    part: str
    method: str
    experiment: Experiment
    candidates: Sequence[Table] = ()
    """Changes to the experiment, of which the best on the tuning seed is taken; all methods of a part have equally
    many. None: the experiment is run as it is."""

    def seeded(self, seed: int, changes: Table | None = None) -> Experiment:
        """The experiment with this seed, and with the changes of a candidate."""
        return self.experiment.changed({"seed": seed, "execution": {"save_model": False}} | (changes or {}))


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A paper's claims and the runs that they are held against."""

    name: str
    title: str
    paper: str
    about: str
    """What is run, and in which ways it is not what the paper ran, as paragraphs of Markdown."""
    cases: Callable[[Form], list[Case]]
    parts: Sequence[str]
    """All parts of the full form in the order of the page."""
    methods: Callable[[str], Sequence[str]]
    """The methods of a part in the full form, which the page goes by: what is missing there is not yet run."""
    claims: Sequence[Claim] = ()
    shown: Mapping[str, str] = field(default_factory=dict)
    """The measures that tables show, and their headings."""
    published: Mapping[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)
    """What the paper has in the place of a part and a method, by measure."""
    target: float | None = None
    seeds: int = 5
    slow: bool = False
    """Whether the share of slow devices in the model is wanted."""
    needs: Sequence[str] = ()
    """The directories below `--data` without which some parts cannot be run."""


OnProgress = Callable[[str, float], None]
"""A function that is told what is being run and how much of the reproduction is done (0 to 1)."""


def reproduce(
    reproduction: Reproduction,
    form: Form,
    cache: Path,
    *,
    jobs: int = 1,
    watch: OnProgress | None = None,
) -> Iterator[list[Measurement]]:
    """Run what is not in the cache, case by case; gives all measurements so far after every case."""
    cases, done = reproduction.cases(form), list[Measurement]()
    with CachedRuns(cache, jobs=jobs) as runs:
        for number, case in enumerate(cases):
            if watch is not None:
                watch(f"{case.part}: {case.method}", number / len(cases))
            changes = best_candidate(case, runs)
            experiments = [case.seeded(seed, changes) for seed in range(form.seeds)]
            for result in finished(runs.run(experiments)):
                done.append(_measurement(reproduction, case, result))
            yield list(done)


def _measurement(reproduction: Reproduction, case: Case, result: Result) -> Measurement:
    assert result.experiment is not None
    slow = slow_devices(result.experiment) if reproduction.slow else ()
    return measured(result, part=case.part, method=case.method, target=reproduction.target, slow=slow)


def best_candidate(case: Case, runs: CachedRuns) -> Table:
    """The candidate with the highest mean accuracy over the run on the tuning seed; the first of equals."""
    if not case.candidates:
        return {}
    results = finished(runs.run([case.seeded(TUNING_SEED, changes) for changes in case.candidates]))
    scores = [mean_until(result.rows, result.rows[-1]["time"]) for result in results]
    return dict(case.candidates[scores.index(max(scores))])


def finished(found: Sequence[Result | Failure]) -> list[Result]:
    """The results, if no run failed."""
    failed = [each.reason for each in found if isinstance(each, Failure)]
    if failed:
        raise OffbeatError("; ".join(failed))
    return [each for each in found if isinstance(each, Result)]


def with_seeds(form: Form, seeds: int | None) -> Form:
    """The form with another number of seeds, if one is given."""
    return form if seeds is None else replace(form, seeds=seeds)
