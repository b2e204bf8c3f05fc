"""Search for the best settings of one algorithm with Optuna: TPE, and successive halving over virtual time.

With costs (device seconds, megabytes) as further objectives, TPE searches for all of them, and every trial runs to its
end: a trial that is slow may be cheap.

The study is an SQLite file and its runs are in a cache, so a search that was killed continues and ends with the same
trials. Trials are drawn in batches of a fixed size, each with a sampler that is seeded by its number: the same settings
are tried however many runs are in progress at a time. The first trial has the experiment's own settings and always runs
to its end, so on the tuning seeds the result is never worse than these.
"""

import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState, create_trial

from offbeat.algorithms.about import Choice, Range, about_of
from offbeat.algorithms.sizes import governed
from offbeat.comparison.fairness import SEEDS, check_seeds, fair_experiments
from offbeat.comparison.planned import OnRunProgress, RunFailure
from offbeat.comparison.race import STEPS, best_part
from offbeat.comparison.run_cache import digest
from offbeat.comparison.scheduler import RunScheduler, runs_stay_here
from offbeat.core.errors import InvalidInput, OffbeatError, checks_keywords, unknown
from offbeat.core.policy import Policy
from offbeat.experiment.schema import Experiment
from offbeat.experiment.shipped import ExperimentSource, experiment_from
from offbeat.experiment.tables import Table, merge, nested, parse_values
from offbeat.results.criterion import COSTS, WORST, Criterion
from offbeat.results.lock import DirectoryLock
from offbeat.results.result import Result
from offbeat.running.progress import shown_in_notebook, watched_bars

LEAST_TRIALS = 8
"""Fewest trials for which importances are computed."""
BEST = 0.25
"""The best share of the trials, whose settings are compared with those of all (target quantile of PED-ANOVA)."""


def importance_of(trials: Sequence[FrozenTrial]) -> dict[str, float]:
    """The importance of each setting as a share of 1, the highest first (PED-ANOVA, on ranks).

    Trials that were stopped early count too: a trial that reached a later step ranks above one that did not, and within
    a step the lower score ranks first. Empty after fewer than `LEAST_TRIALS` trials.
    """
    ended = sorted((each for each in trials if _scores(each)), key=_order)
    if len(ended) < LEAST_TRIALS:
        return {}
    study = optuna.create_study(direction="minimize")
    for rank, each in enumerate(ended):
        study.add_trial(create_trial(params=each.params, distributions=each.distributions, value=float(rank)))
    found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(target_quantile=BEST))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _scores(trial: FrozenTrial) -> dict[int, float]:
    """The scores of a trial by step; with several objectives only the first one's at the end is known."""
    whole = {STEPS[-1]: trial.values[0]} if trial.state == TrialState.COMPLETE else {}
    return trial.intermediate_values or whole


def _order(trial: FrozenTrial) -> tuple[int, float]:
    step = max(_scores(trial))
    return -step, _scores(trial)[step]


BATCH = 4
"""Trials per batch, whose settings are all drawn before the first result."""
STARTUP = 3
"""One out of this many trials, and at most ten, is drawn at random before TPE begins."""
STUDIES = "studies.db"
"""The SQLite file of all studies in a directory."""
FAILURE = "failure"
"""The attribute of a failed trial that holds the reason."""

OnTrial = Callable[[str, int], None]
"""A function that is given an algorithm and the number of its trials that have ended."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial that ran to its end, on the tuning seeds."""

    number: int
    settings: Table
    measure: float
    """The criterion's measure, as a mean over the tuning seeds; infinite if one of them missed the target."""
    costs: dict[str, float]
    """What a run spends, by name, as a mean over the tuning seeds; infinite if the measure is."""
    best: bool
    """Whether its score was the best so far."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The result of a search for one algorithm."""

    algorithm: str
    experiment: Experiment
    """The experiment with the best settings and its own seed."""
    settings: Table
    """The best settings that the search varied, by "table.key", and the optimiser that a learning rate would undo."""
    criterion: Criterion
    measures: dict[int, float]
    """The measure of the best settings, by tuning seed."""
    own_measures: dict[int, float]
    """The measure of the experiment's own settings, by tuning seed; empty if they failed."""
    trials: int
    stopped_early: int
    failures: list[str]
    importance: dict[str, float]
    """The importance of each setting as a share of 1; empty after too few trials."""
    finished: list[Trial]
    """The trials that ran to their end, in order."""


@checks_keywords
def tune(
    experiment: ExperimentSource,
    algorithm: str | Policy | type[Policy],
    trials: int = 24,
    *,
    out: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    seeds: Sequence[int] = SEEDS,
    reported: Sequence[int] | None = None,
    criterion: Criterion | None = None,
    costs: Sequence[str] = (),
    space: "Space | None" = None,
    jobs: int = 1,
    watch: OnRunProgress | None = None,
    on_trial: OnTrial | None = None,
) -> Tuned:
    """Search for the best settings of an algorithm (a name, one of the experiment's [compare], a policy or its class).

    The study is kept in `out` and the runs in `cache` (default: `out`/runs); the same call continues both. Without
    `out` nothing is kept. Objects that only this process has keep the runs here, one at a time. Settings are tried with
    `seeds`; `reported` are the seeds that results will be reported for (default: five, from the experiment's on), and
    no seed may be in both. The default criterion is the area under the curve; `costs` ("device_seconds", "megabytes")
    are further objectives.
    """
    base = experiment_from(experiment)
    check_seeds(base, seeds, reported)
    jobs = 1 if runs_stay_here(fair_experiments(base, [algorithm], [base.seed]), jobs) else jobs
    with (
        directory_or_temporary(out) as root,
        shown_in_notebook(watch, watched_bars) as shown,
        DirectoryLock(root),
        RunScheduler(Path(cache or root / "runs"), jobs=jobs, watch=shown) as scheduler,
    ):
        return search(
            base,
            algorithm,
            trials,
            root=root,
            scheduler=scheduler,
            seeds=seeds,
            criterion=criterion,
            costs=costs,
            space=space,
            on_trial=on_trial,
        )


@contextmanager
def directory_or_temporary(out: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Give the directory, or a temporary one if there is none."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="offbeat-") as folder:
        yield Path(folder)


def search(
    base: Experiment,
    algorithm: str | Policy | type[Policy],
    trials: int,
    *,
    root: Path,
    scheduler: RunScheduler,
    seeds: Sequence[int] = SEEDS,
    criterion: Criterion | None = None,
    costs: Sequence[str] = (),
    space: "Space | None" = None,
    on_trial: OnTrial | None = None,
) -> Tuned:
    """Search as `tune` does, in a directory that the caller has locked and with the caller's scheduler."""
    if trials < 1:
        raise InvalidInput(f"trials = {trials}: must be at least 1")
    for cost in costs:
        if cost not in COSTS:
            raise unknown("cost", cost, COSTS)
    with _quiet():
        wanted = criterion or Criterion.of(base)
        return _Search(base, algorithm, trials, root, scheduler, seeds, wanted, costs, on_trial, space).search()


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Optuna's message about each trial."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


class Halving(optuna.pruners.BasePruner):
    """Prunes a trial unless it is the first, or among the best third of all trials that have reached its step.

    Unlike Optuna's own pruner it depends on the reported values only: a study that was killed while it decided decides
    the same when it is resumed.
    """

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        """Whether the trial stops here."""
        step = trial.last_step
        if step is None or trial.number == 0:
            return False
        others = study.get_trials(deepcopy=False)
        scores = [each.intermediate_values[step] for each in others if step in each.intermediate_values]
        return trial.intermediate_values[step] > best_part(scores)


class _Search:
    def __init__(
        self,
        base: Experiment,
        algorithm: str | Policy | type[Policy],
        trials: int,
        root: Path,
        scheduler: RunScheduler,
        seeds: Sequence[int],
        criterion: Criterion,
        costs: Sequence[str],
        on_trial: OnTrial | None,
        space: "Space | None" = None,
    ) -> None:
        self._base = fair_experiments(base, [algorithm], [base.seed])[0]
        self._title = self._base.algorithm.title
        self._trials, self._scheduler, self._seeds, self._criterion = trials, scheduler, seeds, criterion
        self._costs, self._on_trial = costs, on_trial
        own = own_space(self._base, space or {})
        self._space = space_of(self._base) | own
        more = f"{f' {own}' if own else ''}{f' {list(costs)}' if costs else ''}"
        what = f"{digest(self._base)} {list(seeds)} {criterion}{more}"
        self._study = optuna.create_study(
            storage=f"sqlite:///{root.resolve() / STUDIES}",
            study_name=f"{self._title} {zlib.crc32(what.encode()):08x}",
            directions=["minimize"] * (1 + len(costs)),
            pruner=Halving(),
            load_if_exists=True,
        )

    def search(self) -> Tuned:
        if not self._known:
            self._study.enqueue_trial(own_values(self._base, self._space))
        for first in range(0, self._trials, BATCH):
            self._run_batch(range(first, min(first + BATCH, self._trials)))
        return self._tuned()

    @property
    def _known(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _run_batch(self, numbers: range) -> None:
        """Draw the settings of all trials of a batch, then run them; trials of a killed search continue."""
        batch = [self._trial(number) for number in numbers]
        left = [trial for trial in batch if trial is not None]
        for step in STEPS[-1:] if self._costs else STEPS:
            left = self._run_to(step, left) if left else []
        if self._on_trial is not None:
            self._on_trial(self._title, numbers.stop)

    def _trial(self, number: int) -> optuna.Trial | None:
        """The trial of this number with its settings; None if it has ended."""
        known = self._known
        startup = min(10, max(1, self._trials // STARTUP))
        seed = zlib.crc32(f"{self._title} {number}".encode())
        self._study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup)
        if number < len(known) and known[number].state.is_finished():
            return None
        waiting = number >= len(known) or known[number].state == TrialState.WAITING
        trial = self._study.ask() if waiting else optuna.Trial(self._study, known[number]._trial_id)
        for path, each in self._space.items():
            if isinstance(each, Choice):
                trial.suggest_categorical(path, each.values)
            elif each.whole:
                trial.suggest_int(path, int(each.low), int(each.high), log=each.log)
            else:
                trial.suggest_float(path, each.low, each.high, log=each.log)
        return trial

    def _run_to(self, step: int, trials: Sequence[optuna.Trial]) -> list[optuna.Trial]:
        """Run the trials up to a step; returns those that continue."""
        last = step == STEPS[-1]
        until = self._criterion.at * step / STEPS[-1]
        whole = last and self._criterion.at == self._base.stop.time
        found = self._results(trials, None if whole else until)
        scores, spent = dict[int, float](), dict[int, list[float]]()
        for trial, results in zip(trials, found, strict=True):
            if isinstance(results, RunFailure):
                trial.set_user_attr(FAILURE, str(results))
                self._study.tell(trial, state=TrialState.FAIL)
                continue
            scores[trial.number] = fmean(self._criterion.score(each, until) for each in results)
            each_cost = (fmean(self._criterion.cost(each, name) for each in results) for name in self._costs)
            spent[trial.number] = [min(cost, WORST) for cost in each_cost]
            if not self._costs and step not in self._known[trial.number].intermediate_values:
                trial.report(scores[trial.number], step)
        left = [trial for trial in trials if trial.number in scores]
        if last:
            for trial in left:
                self._study.tell(trial, [scores[trial.number], *spent[trial.number]])
            return []
        stopped = [trial for trial in left if trial.should_prune()]
        for trial in stopped:
            self._study.tell(trial, state=TrialState.PRUNED)
        return [trial for trial in left if trial not in stopped]

    def _results(self, trials: Sequence[optuna.Trial], until: float | None) -> list[list[Result] | RunFailure]:
        """The runs of each trial, one per seed, or the first failure."""
        experiments: list[list[Experiment] | RunFailure] = [self._experiments(trial.params) for trial in trials]
        flat = [each for group in experiments if not isinstance(group, RunFailure) for each in group]
        found = iter(self._scheduler.run_cached(flat, until))
        groups = [group if isinstance(group, RunFailure) else [next(found) for _ in group] for group in experiments]
        return [_all_or_failure(group) for group in groups]

    def _experiments(self, values: dict[str, Any]) -> list[Experiment] | RunFailure:
        """The experiment with these values under each tuning seed; it stops when it reaches the criterion's target."""
        target, stop = self._criterion.target, self._base.stop
        enough = {} if target is None or stop.target is not None else {"stop": {"target": target}}
        try:
            changed = with_values(self._base, values).changed(enough)
            return [changed.changed({"seed": seed}) for seed in self._seeds]
        except InvalidInput as error:
            return RunFailure(self._title, str(error))

    def _tuned(self) -> Tuned:
        trials = self._known[: self._trials]
        failures = [str(each.user_attrs[FAILURE]) for each in trials if FAILURE in each.user_attrs]
        complete = [each for each in trials if each.state == TrialState.COMPLETE]
        if not complete:
            raise OffbeatError(f"all trials of {self._title} failed: {'; '.join(dict.fromkeys(failures))}")
        best = min(complete, key=lambda each: (each.values[0], each.number))
        return Tuned(
            algorithm=self._title,
            experiment=with_values(self._base, best.params),
            settings=settings_of(self._base, best.params),
            criterion=self._criterion,
            measures=self._measures(best),
            own_measures=self._measures(trials[0]) if trials[0] in complete else {},
            trials=len(trials),
            stopped_early=sum(each.state == TrialState.PRUNED for each in trials),
            failures=failures,
            importance=importance_of(trials),
            finished=self._finished(complete),
        )

    def _finished(self, complete: Sequence[FrozenTrial]) -> list[Trial]:
        """The complete trials with their means over the tuning seeds; their runs are in the cache."""
        found: list[Trial] = []
        least = inf
        for each in complete:
            runs = self._runs(each)
            found.append(
                Trial(
                    number=each.number,
                    settings=settings_of(self._base, each.params),
                    measure=fmean(self._criterion.measure(run) for run in runs),
                    costs={name: fmean(self._criterion.cost(run, name) for run in runs) for name in COSTS},
                    best=each.values[0] < least,
                )
            )
            least = min(least, each.values[0])
        return found

    def _measures(self, trial: FrozenTrial) -> dict[int, float]:
        """The measure of a trial by seed."""
        return {each.seed: self._criterion.measure(each) for each in self._runs(trial)}

    def _runs(self, trial: FrozenTrial) -> list[Result]:
        """The runs of a complete trial, from the cache."""
        experiments = self._experiments(trial.params)
        assert not isinstance(experiments, RunFailure)
        found = self._scheduler.run_cached(experiments, self._criterion.at)
        return [each for each in found if isinstance(each, Result)]


def _all_or_failure(group: list[Result | RunFailure] | RunFailure) -> list[Result] | RunFailure:
    if isinstance(group, RunFailure):
        return group
    failed = next((each for each in group if isinstance(each, RunFailure)), None)
    return failed or [each for each in group if isinstance(each, Result)]


# The search space ----------------------------------------------------------------------------------------------------

LEARNING_RATE, OPTIMISER = "local.learning_rate", "local.optimiser"
RATES = Range(0.1, 10.0, log=True, relative=True)
"""The range of every algorithm's learning rate, relative to the experiment's."""
DIGITS = 3
"""Significant digits of the values in a search, so that files stay readable."""

Space = Mapping[str, Range | Choice]
"""Ranges in the unit of the setting, and choices, by "table.key"."""


def parse_range(text: str) -> tuple[str, Range | Choice]:
    """Parse "table.key=low:high", "table.key=low:high:log" or "table.key=value,value" to a setting and its range.

    >>> parse_range("local.learning_rate=0.001:0.1:log")
    ('local.learning_rate', Range(low=0.001, high=0.1, log=True, relative=False, at_most=''))
    """
    path, _, values = (part.strip() for part in text.partition("="))
    ends = values.removesuffix(":log").split(":")
    if len(ends) == 2 and path.count(".") == 1:
        low, high = (parse_values(f"{path}={end}")[1][0] for end in ends)
        log, numbers = values.endswith(":log"), isinstance(low, int | float) and isinstance(high, int | float)
        if numbers and low < high and (low > 0 or not log):
            return path, Range(low, high, log=log)
    elif len(ends) == 1 and "," in values and path.count(".") == 1:
        return path, Choice(*parse_values(text)[1])
    raise InvalidInput(
        f"range {text!r}: write it as table.key=low:high, table.key=low:high:log or table.key=value,value"
    )


def own_space(experiment: Experiment, given: "Space") -> dict[str, Range | Choice]:
    """The given ranges of settings that the experiment has; those of other algorithms are left out."""
    table = experiment.table()
    for path in given:
        section, _, key = path.partition(".")
        settings: Any = experiment.selection.selector if section == "selection" else getattr(experiment, section, None)
        if section not in table or (section != "algorithm" and key not in type(settings).model_fields):
            raise InvalidInput(f"range of {path!r}: there is no such setting")
    policy = type(experiment.algorithm.policy).model_fields
    return {path: each for path, each in given.items() if not path.startswith("algorithm.") or path[10:] in policy}


def space_of(experiment: Experiment) -> dict[str, Range | Choice]:
    """The search space of the experiment: its learning rate, and what its algorithm and its selection name.

    Left out are settings that the fleet has too, because both must agree, and relative ranges of settings that are not
    numbers.
    """
    policy, fleet = experiment.algorithm.policy, type(experiment.fleet.settings).model_fields
    space: dict[str, Range | Choice | None] = {LEARNING_RATE: _absolute(RATES, experiment.local.learning_rate, None)}
    for key, each in about_of(policy).search.items():
        own = getattr(policy, key)
        if key in fleet:
            continue
        if isinstance(each, Range) and key in governed(type(policy)) and not each.relative:
            each = replace(each, low=min(each.low, own), high=max(each.high, own))  # large fleets have large buffers
        if isinstance(each, Choice):
            space[f"algorithm.{key}"] = each
        elif not each.relative or isinstance(own, int | float):
            space[f"algorithm.{key}"] = _absolute(each, own, getattr(policy, each.at_most) if each.at_most else None)
    if (selector := experiment.selection.selector) is not None:
        space |= {f"selection.{key}": each for key, each in about_of(selector).search.items()}
    return {key: each for key, each in space.items() if each is not None}


def _absolute(given: Range, own: Any, most: float | None) -> Range | None:
    """The range in the unit of the setting; None if it is empty."""
    low, high = given.low, given.high
    if given.relative:
        low, high = low * own, high * own
        if isinstance(own, int):
            low, high = max(1, round(low)), max(1, round(high))
    high = high if most is None else min(high, most)
    return Range(low, high, log=given.log) if low < high else None


def own_values(experiment: Experiment, space: Space) -> Table:
    """The experiment's own values that are in the space; a search tries them first."""
    table = experiment.table()
    found = {}
    for path, each in space.items():
        section, _, key = path.partition(".")
        value = table[section].get(key)
        inside = (
            value in each.values if isinstance(each, Choice) else value is not None and each.low <= value <= each.high
        )
        if inside:
            found[path] = value
    return found


def with_values(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """The experiment with these settings, rounded to `DIGITS` significant digits."""
    return _with_settings(experiment, settings_of(experiment, values))


def settings_of(experiment: Experiment, values: Mapping[str, Any]) -> Table:
    """The rounded values, and the optimiser if it was chosen by default, which a learning rate would undo."""
    own = {path: rounded(value) for path, value in values.items()}
    if LEARNING_RATE not in own:
        return own
    local = _with_settings(experiment, {path: value for path, value in own.items() if path != LEARNING_RATE}).local
    by_default = local.optimiser != "sgd" and "optimiser" in local.open_step_size
    return ({OPTIMISER: local.optimiser} if by_default else {}) | own


def _with_settings(experiment: Experiment, settings: Table) -> Experiment:
    changes: Table = {"algorithm": {"name": experiment.algorithm.name}}
    for path, value in settings.items():
        changes = merge(changes, nested(path, value))
    return experiment.changed(changes)


def rounded(value: Any) -> Any:
    """A float with `DIGITS` significant digits; any other value unchanged.

    >>> rounded(0.0123456), rounded(12345), rounded("hinge")
    (0.0123, 12345, 'hinge')
    """
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
