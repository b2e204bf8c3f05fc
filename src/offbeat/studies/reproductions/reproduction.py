"""A reproduction: the cases that it consists of, what papers say of them, and running what is not in the cache yet."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path

from offbeat.comparison.cached_runs import CachedRuns, Failure
from offbeat.comparison.criterion import mean_until
from offbeat.comparison.fairness import fair_experiments, flattened
from offbeat.core.errors import InvalidInput, OffbeatError
from offbeat.results.result import Result
from offbeat.running.lock import DirectoryLock
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
    rate: float | None = None
    """The learning rate of all runs of `delays`, in place of the one that is chosen on the tuning seed."""

    def rounds(self, full: int) -> int:
        """How many of the full form's rounds this form has, and at least two."""
        return max(2, round(self.length * full))


QUICK = Form(seeds=2, length=0.4, full=False)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One method in one part of a reproduction: an experiment, to be run with several seeds."""

    part: str
    method: str
    experiment: Experiment
    """If its settings are searched for, the experiment of all methods of the part."""
    candidates: Sequence[Table] = ()
    """Changes to the experiment, of which the best on the tuning seed is taken; all methods of a part have equally
    many. None: the experiment is run as it is."""
    tuned_on: Experiment | None = None
    """The experiment that the candidates are tried with, if it is not this one."""
    trials: int = 0
    """How many settings a search tries on the tuning seed; `method` is then the name of the algorithm."""


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
    targets: Mapping[str, float] = field(default_factory=dict)
    """The targets of parts that have another one."""
    remark: Callable[[Sequence[Measurement]], str] = lambda _: ""
    """What the page says about all measurements together."""
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
    part: str = "",
    jobs: int = 1,
    watch: OnProgress | None = None,
    address: str | None = None,
) -> Iterator[list[Measurement]]:
    """Run what is not in the cache, case by case; gives all measurements so far after every case.

    With `part` only the part of this name is run, or if there is none those that have this text in their names.
    With the `address` of a Ray cluster, its workers carry out the runs.
    """
    wanted = {part} if part in reproduction.parts else {each for each in reproduction.parts if part in each}
    cases, done = [case for case in reproduction.cases(form) if case.part in wanted], list[Measurement]()
    if not cases:
        raise InvalidInput(f"--part {part}: {reproduction.name} has {'; '.join(reproduction.parts)}")
    with CachedRuns(cache, jobs=jobs, address=address) as runs:
        for number, case in enumerate(cases):
            if watch is not None:
                watch(f"{case.part}: {case.method}", number / len(cases))
            experiment, settings = chosen(case, runs, cache)
            seeded = [_seeded(experiment, seed) for seed in range(form.seeds)]
            done += [_measurement(reproduction, case, result, settings) for result in finished(runs.run(seeded))]
            yield list(done)


def _seeded(experiment: Experiment, seed: int) -> Experiment:
    return experiment.changed({"seed": seed, "execution": {"save_model": False}})


def _measurement(reproduction: Reproduction, case: Case, result: Result, settings: str) -> Measurement:
    assert result.experiment is not None
    slow = slow_devices(result.experiment) if reproduction.slow else ()
    target = reproduction.targets.get(case.part, reproduction.target)
    return measured(result, part=case.part, method=case.method, target=target, slow=slow, settings=settings)


def chosen(case: Case, runs: CachedRuns, cache: Path) -> tuple[Experiment, str]:
    """The experiment with the settings that did best on the tuning seed, and these settings in words."""
    if case.trials:
        from offbeat.choosing.tuning import search  # it needs Optuna, which the others go without

        root = cache / "studies"
        with DirectoryLock(root):
            tuned = search(case.experiment, case.method, case.trials, root=root, runs=runs, seeds=[TUNING_SEED])
        return tuned.experiment, in_words(tuned.settings)
    if not case.candidates:
        return case.experiment, ""
    tried = [(case.tuned_on or case.experiment).changed(changes) for changes in case.candidates]
    scores = [score(result) for result in finished(runs.run([_seeded(each, TUNING_SEED) for each in tried]))]
    best = case.candidates[scores.index(max(scores))]  # the first of equals
    return case.experiment.changed(best), in_words(flattened(best, ()))


def score(result: Result) -> float:
    """What candidates are chosen by: a low training loss at the end, if it is measured, else the mean accuracy."""
    if "training_loss" in result.summary:
        loss = result.summary["training_loss"]
        return -loss if isfinite(loss) else -inf
    return mean_until(result.rows, result.rows[-1]["time"])


def in_words(settings: Table) -> str:
    """Settings as they stand in the file of measurements.

    >>> in_words({"local.learning_rate": 0.1, "algorithm.buffer": 5})
    'local.learning_rate=0.1; algorithm.buffer=5'
    """
    return "; ".join(f"{path}={value}" for path, value in settings.items())


def finished(found: Sequence[Result | Failure]) -> list[Result]:
    """The results, if no run failed."""
    failed = [each.reason for each in found if isinstance(each, Failure)]
    if failed:
        raise OffbeatError("; ".join(failed))
    return [each for each in found if isinstance(each, Result)]


def fair_cases(
    part: str,
    base: Experiment,
    methods: Mapping[str, Table],
    *,
    in_training: int | None,
    candidates: Sequence[Table] = (),
) -> list[Case]:
    """A case for each method (a label and its settings), all with that many devices in training; None: each its own."""
    compare: Table = {label: {"algorithm": algorithm} for label, algorithm in methods.items()}
    compare["in_training"] = False if in_training is None else in_training
    experiments = fair_experiments(base.changed({"compare": compare}), list(methods), [0])
    return [
        Case(part=part, method=label, experiment=experiment, candidates=candidates)
        for label, experiment in zip(methods, experiments, strict=True)
    ]
