"""Running the cases of a reproduction: settings are chosen first, then every seed is run, if it is nowhere yet."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path

from experiments.measurements import Measurement, measured, slow_devices
from experiments.record import Record, identity
from experiments.reproduction import TUNING_SEED, Case, Form, Reproduction, seeded
from offbeat.comparison.fairness import flattened
from offbeat.comparison.planned import RunFailure
from offbeat.comparison.scheduler import RunScheduler
from offbeat.core.errors import InvalidInput, OffbeatError
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import Table
from offbeat.results.criterion import mean_until
from offbeat.results.result import Result
from offbeat.running.lock import DirectoryLock

CASES_ON_CLUSTER = 16
"""How many cases a Ray cluster is given at a time."""
OnCaseProgress = Callable[[str, float], None]
"""A function that is told what is being run and how much of the reproduction is done (0 to 1)."""


def reproduce(
    reproduction: Reproduction,
    form: Form,
    cache: Path,
    *,
    part: str = "",
    jobs: int = 1,
    watch: OnCaseProgress | None = None,
    address: str | None = None,
    known: Iterable[Measurement] = (),
) -> Iterator[list[Measurement]]:
    """Run what is neither known nor in the cache; gives all measurements so far after every case.

    With several jobs it takes as many cases at a time, and gives the measurements after these. `known` are measurements
    of earlier runs: what they have is neither tuned nor run again. With `part` only the part of this name is run, or if
    there is none those that have this text in their names. With the `address` of a Ray cluster, its workers carry out
    the runs.
    """
    wanted = {part} if part in reproduction.parts else {each for each in reproduction.parts if part in each}
    cases, done = [case for case in reproduction.cases(form) if case.part in wanted], list[Measurement]()
    record = Record(known)
    if wanted and not cases:
        folders = " and ".join(reproduction.needs)
        raise InvalidInput(f"--part {part}: --full runs it, with --data: a directory with {folders}")
    if not cases:
        raise InvalidInput(f"--part {part}: {reproduction.name} has {'; '.join(reproduction.parts)}")
    width = jobs if address is None else CASES_ON_CLUSTER
    with RunScheduler(cache, jobs=jobs, address=address) as runs:
        for first in range(0, len(cases), width):
            some = cases[first : first + width]
            if watch is not None:
                watch(f"{some[0].part}: {', '.join(case.method for case in some)}", first / len(cases))
            done += _together(reproduction, some, form.seeds, runs, cache, record)
            yield list(done)


def _together(
    reproduction: Reproduction, cases: Sequence[Case], seeds: int, runs: RunScheduler, cache: Path, record: Record
) -> list[Measurement]:
    """What some cases come to. Their candidates are run together, and then their seeds, so that no process stands idle
    before the last of them."""
    untuned = [case for case in cases if case.candidates and settings_before(case, record) is None]
    for until in {case.tuned_until for case in untuned}:
        runs.run_cached([each for case in untuned if case.tuned_until == until for each in case.tried], until)
    settled = [(case, *chosen(case, runs, cache, record)) for case in cases]
    experiments = [[seeded(experiment, seed) for seed in range(seeds)] for _, experiment, _ in settled]
    runs.run_cached([each for some in experiments for each in some if not record.has(each)])
    return [
        measurement
        for (case, _, settings), own in zip(settled, experiments, strict=True)
        for measurement in _measurements(reproduction, case, own, settings, runs, record)
    ]


def _measurements(
    reproduction: Reproduction,
    case: Case,
    experiments: Sequence[Experiment],
    settings: str,
    runs: RunScheduler,
    record: Record,
) -> list[Measurement]:
    """What each of the experiments came to, from the record or after running it."""
    target = reproduction.targets.get(case.part, reproduction.target)
    found = [record.find(each, target=target, slow=reproduction.slow) for each in experiments]
    wanted = [each for each, known in zip(experiments, found, strict=True) if known is None]
    results = iter(finished(runs.run_cached(wanted)))
    measurements = []
    for experiment, known in zip(experiments, found, strict=True):
        if known is None:
            known = measured(
                next(results),
                part=case.part,
                method=case.method,
                target=target,
                slow=slow_devices(experiment) if reproduction.slow else (),
                run=identity(experiment),
            )
        measurements.append(replace(known, part=case.part, method=case.method, settings=settings))
    return measurements


def chosen(case: Case, runs: RunScheduler, cache: Path, record: Record) -> tuple[Experiment, str]:
    """The experiment with the settings that did best on the tuning seed, and these settings in words."""
    if not case.trials and not case.candidates:
        return case.experiment, ""
    best = settings_before(case, record)
    if best is None and case.trials:
        from offbeat.comparison.tuning import search  # it needs Optuna, which the others go without

        root = cache / "studies"
        with DirectoryLock(root):
            tuned = search(case.experiment, case.method, case.trials, root=root, scheduler=runs, seeds=[TUNING_SEED])
        return tuned.experiment, in_words(tuned.settings)
    if best is None:
        scores = [score(result, case.tuned_until) for result in finished(runs.run_cached(case.tried, case.tuned_until))]
        best = case.candidates[scores.index(max(scores))]  # the first of equals
    return case.base.changed(best), in_words(flattened(best, ()))


def settings_before(case: Case, record: Record) -> Table | None:
    """The settings that were chosen when runs that the record has were made: no others are run with reported seeds."""
    for changes in case.candidates or record.settings_of(case.part, case.method):
        reported = [seeded(each.changed(changes), 0) for each in (case.base, case.tuned_on) if each is not None]
        if any(record.has(each) for each in reported):
            return changes
    return None


def score(result: Result, until: float | None = None) -> float:
    """What candidates are chosen by: a low training loss at the end, if it is measured, else the mean accuracy.

    A candidate that diverged is the worst.
    """
    if result.diverged_before(inf if until is None else until):
        return -inf
    if until is None and "training_loss" in result.summary:
        loss = result.summary["training_loss"]
        return -loss if isfinite(loss) else -inf
    return mean_until(result.rows, result.rows[-1]["time"] if until is None else until)


def in_words(settings: Table) -> str:
    """Settings as they stand in the file of measurements, and as `--set` takes them.

    >>> in_words({"local.learning_rate": 0.1, "algorithm.buffer": 5, "algorithm.weighted": True})
    'local.learning_rate=0.1; algorithm.buffer=5; algorithm.weighted=true'
    """
    words = {path: str(value).lower() if isinstance(value, bool) else value for path, value in settings.items()}
    return "; ".join(f"{path}={value}" for path, value in words.items())


def finished(found: Sequence[Result | RunFailure]) -> list[Result]:
    """The results, if no run failed."""
    failed = [str(each) for each in found if isinstance(each, RunFailure)]
    if failed:
        raise OffbeatError("; ".join(failed))
    return [each for each in found if isinstance(each, Result)]
