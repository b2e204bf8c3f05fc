"""Running a study: for each case, settings are chosen first, then every seed is run that has not been measured."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path

from experiments.harness import Table
from experiments.harness.measurements import Measurement, Record, identity, measured, slow_devices
from experiments.harness.study import TUNING_SEED, Case, Form, Study, seeded
from offbeat import Experiment, InvalidInput, OffbeatError, Result
from offbeat.comparison.planned import RunFailure
from offbeat.comparison.scheduler import RunScheduler
from offbeat.results.criterion import mean_until
from offbeat.results.lock import DirectoryLock

CASES_ON_CLUSTER = 16
"""Cases given to a Ray cluster at a time."""
OnCaseProgress = Callable[[str, int, int], None]
"""Called before cases are run, with their names, the number of finished cases and that of all cases."""


def run_study(
    study: Study,
    form: Form,
    cache: Path,
    *,
    part: str = "",
    headline: bool = False,
    jobs: int = 1,
    watch: OnCaseProgress | None = None,
    address: str | None = None,
    known: Iterable[Measurement] = (),
) -> Iterator[list[Measurement]]:
    """Run what is neither in `known` nor in the cache; yield all measurements so far after each step.

    A step is one case, or with several jobs as many cases. `known` are earlier measurements: their runs are neither
    tuned nor run again. `part` selects the part of this name, or the parts whose names contain it, `headline` the
    methods of the claims that the overview lists. With the `address` of a Ray cluster, its workers carry out the runs.
    """
    wanted = {part} if part in study.parts else {each for each in study.parts if part in each}
    cases, done = [case for case in study.cases(form) if case.part in wanted], list[Measurement]()
    record = Record(known)
    if wanted and not cases:
        folders = f", with a data directory that has {' and '.join(study.needs)}" if study.needs else ""
        raise InvalidInput(f"part {part!r} is run by the full form only{folders}")
    if not cases:
        raise InvalidInput(f"{study.name} has no part {part!r}; its parts: {'; '.join(study.parts)}")
    if headline:
        cases = [case for case in cases if (case.part, case.method) in study.headline_methods]
        if not cases:
            raise InvalidInput(f"{study.name} has no headline claims that these parts could decide")
    width = jobs if address is None else CASES_ON_CLUSTER
    with RunScheduler(cache, jobs=jobs, address=address) as runs:
        for first in range(0, len(cases), width):
            some = cases[first : first + width]
            if watch is not None:
                watch(f"{some[0].part}: {', '.join(case.method for case in some)}", first, len(cases))
            done += _together(study, some, form.seeds, runs, cache, record)
            yield list(done)


def _together(
    study: Study, cases: Sequence[Case], seeds: int, runs: RunScheduler, cache: Path, record: Record
) -> list[Measurement]:
    """Measure some cases. Their candidates are run together, then their seeds, so that no worker waits for one case."""
    untuned = [case for case in cases if case.candidates and settings_before(case, record) is None]
    for until in {case.tuned_until for case in untuned}:
        runs.run_cached([each for case in untuned if case.tuned_until == until for each in case.tried], until)
    tuned = [(case, *chosen(case, runs, cache, record)) for case in cases]
    experiments = [[seeded(experiment, seed) for seed in range(seeds)] for _, experiment, _ in tuned]
    runs.run_cached([each for some in experiments for each in some if not record.has(each)])
    return [
        measurement
        for (case, _, settings), own in zip(tuned, experiments, strict=True)
        for measurement in _measurements(study, case, own, settings, runs, record)
    ]


def _measurements(
    study: Study,
    case: Case,
    experiments: Sequence[Experiment],
    settings: str,
    runs: RunScheduler,
    record: Record,
) -> list[Measurement]:
    """Measure each experiment, from the record if it has the run."""
    target = study.targets.get(case.part, study.target)
    found = [record.find(each, target=target, slow=study.slow) for each in experiments]
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
                slow=slow_devices(experiment) if study.slow else (),
                run=identity(experiment),
            )
        own = replace(known, part=case.part, method=case.method, settings=settings, candidates=case.tried_settings)
        measurements.append(own)
    return measurements


def chosen(case: Case, runs: RunScheduler, cache: Path, record: Record) -> tuple[Experiment, str]:
    """Choose the settings that are best on the tuning seed; returns the experiment with them, and them as text."""
    if not case.trials and not case.candidates:
        return case.experiment, ""
    best = settings_before(case, record)
    if best is None and case.trials:
        from offbeat.comparison.tuning import search  # needs Optuna, which the other studies do not

        root = cache / "studies"
        with DirectoryLock(root):
            tuned = search(case.experiment, case.method, case.trials, root=root, scheduler=runs, seeds=[TUNING_SEED])
        return tuned.experiment, settings_text(tuned.settings)
    if best is None:
        scores = [score(result, case.tuned_until) for result in finished(runs.run_cached(case.tried, case.tuned_until))]
        best = case.candidates[scores.index(max(scores))]  # the first of equals
    return case.base.changed(best), settings_text(_flat(best))


def _flat(changes: Table) -> Table:
    return {f"{section}.{key}": value for section, table in changes.items() for key, value in table.items()}


def settings_before(case: Case, record: Record) -> Table | None:
    """The settings chosen earlier from as many candidates: reported seeds are run with no others."""
    for changes in case.candidates or record.settings_of(case.part, case.method, case.trials):
        reported = [seeded(each.changed(changes), 0) for each in (case.base, case.tuned_on) if each is not None]
        if any(record.chose(each, case.tried_settings) for each in reported):
            return changes
    return None


def score(result: Result, until: float | None = None) -> float:
    """Score a candidate: minus its final training loss, if that is measured, else its mean accuracy.

    A candidate that diverged has the lowest score.
    """
    if result.diverged_before(inf if until is None else until):
        return -inf
    if until is None and "training_loss" in result.summary:
        loss = result.summary["training_loss"]
        return -loss if isfinite(loss) else -inf
    return mean_until(result.rows, result.rows[-1]["time"] if until is None else until)


def settings_text(settings: Table) -> str:
    """Write settings as the file of measurements has them, and as `--set` takes them.

    >>> settings_text({"local.learning_rate": 0.1, "algorithm.buffer": 5, "algorithm.weighted": True})
    'local.learning_rate=0.1; algorithm.buffer=5; algorithm.weighted=true'
    """
    words = {path: str(value).lower() if isinstance(value, bool) else value for path, value in settings.items()}
    return "; ".join(f"{path}={value}" for path, value in words.items())


def finished(found: Sequence[Result | RunFailure]) -> list[Result]:
    """The results; raises if a run failed."""
    failed = [str(each) for each in found if isinstance(each, RunFailure)]
    if failed:
        raise OffbeatError("; ".join(failed))
    return [each for each in found if isinstance(each, Result)]
