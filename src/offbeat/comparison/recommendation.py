"""Which algorithm to run on a fleet: a race of all that suit it, the best of them on fresh seeds, and what it comes to.

Every run comes from a cache in the directory, so that a recommendation that was interrupted goes on where it was.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tomli_w

from offbeat.algorithms import POLICIES, policy_class
from offbeat.comparison.fairness import algorithm_settings, alike, fresh_seeds, notes_on
from offbeat.comparison.planned import OnRunProgress, check_new_or_resumed
from offbeat.comparison.race import STEPS, Entry, OnStage, entries_of, finalists, race
from offbeat.comparison.scheduler import RunScheduler, kept_in
from offbeat.comparison.verdict import Candidate, answer, other_answers
from offbeat.core.errors import InvalidInput, OffbeatError
from offbeat.experiment.schema import Experiment
from offbeat.experiment.shipped import ExperimentSource, experiment_from
from offbeat.results.comparison import BASELINE, Comparison
from offbeat.results.criterion import Criterion
from offbeat.results.files import csv_of, replace_file
from offbeat.results.plots import accuracy_figure, save
from offbeat.results.result import Result
from offbeat.results.statistics import by_seed, median_of
from offbeat.running.lock import DirectoryLock

FINALISTS = 3
"""How many algorithms are run on fresh seeds, and the baseline beside them."""
FILES = "recommendation.md, recommended.toml, accuracy.png, comparison.csv and race.csv"


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The answer: the candidates with the best first, and sentences."""

    criterion: Criterion
    candidates: list[Candidate]
    comparison: Comparison
    sentences: list[str]
    """The answer, its cost, what it is compared with and what would change it."""
    unsuited: dict[str, str]
    failures: list[str] = field(default_factory=list)

    @property
    def best(self) -> Candidate:
        """The candidate that is recommended."""
        return self.candidates[0]


def recommend(
    experiment: ExperimentSource,
    algorithms: Sequence[str] | None = None,
    *,
    out: str | os.PathLike[str],
    seeds: int = 3,
    criterion: Criterion | None = None,
    jobs: int = 1,
    resume: bool = False,
    watch: OnRunProgress | None = None,
    on_stage: OnStage | None = None,
    address: str | None = None,
) -> Recommendation:
    """Say which of the algorithms (default: all, and the experiment's own) to run for its fleet, data and model.

    They race on seeds of their own, with three learning rates each; the best three, the best that does not keep all
    devices in training, and the baseline are then run on `seeds` seeds from the experiment's on. Writes the answer, a
    picture, tables, and the experiment ready to deploy.
    With the `address` of a Ray cluster, its workers carry out the runs.
    """
    given, root = experiment_from(experiment), Path(out)
    names = list(dict.fromkeys(algorithms or [*POLICIES, given.algorithm.name]))
    for name in names:
        policy_class(algorithm_settings(given, name)[0])  # a name that nobody knows is a mistake, not unsuited
    reported = range(given.seed, given.seed + seeds)
    wanted = criterion or Criterion.of(given)
    check_new_or_resumed(root, given, resume=resume)
    base = alike(given, names)
    entries, unsuited = entries_of(base, names)
    if not entries:
        raise InvalidInput(f"no algorithm suits this experiment: {'; '.join(unsuited.values())}")
    scheduler = RunScheduler(root / "runs", jobs=jobs, watch=watch, address=address)
    with DirectoryLock(root), scheduler, kept_in(root):
        replace_file(root / "config.toml", tomli_w.dumps(given.given_table()).encode())
        ranked, failures = race(entries, scheduler, wanted, seeds=fresh_seeds(reported), on_stage=on_stage)
        chosen = finalists(ranked, FINALISTS, BASELINE)
        if on_stage is not None:
            on_stage("finalists on fresh seeds", len(chosen) * seeds, 1.0)
        candidates = _candidates(chosen, scheduler, wanted, reported)
        others = other_answers(candidates, scheduler, wanted, on_stage)
    first = {each.algorithm: each.entry.experiment for each in candidates}
    runs_of_all = [result for each in candidates for result in each.results]
    found = Recommendation(
        criterion=wanted,
        candidates=candidates,
        comparison=Comparison(runs_of_all, wanted.target, notes=[*_in_training(base), *notes_on(first)]),
        sentences=[*answer(candidates, wanted), *others],
        unsuited=unsuited,
        failures=failures,
    )
    _write(found, ranked, root)
    return found


def _in_training(base: Experiment) -> list[str]:
    """How many devices were in training, and who can say otherwise."""
    if not base.in_training:
        return []
    return [
        f"Where an algorithm chooses its devices, {base.in_training} of {base.data.devices} are in training ([compare] "
        "in_training says otherwise)."
    ]


def _candidates(
    chosen: Sequence[Entry], scheduler: RunScheduler, criterion: Criterion, seeds: Sequence[int]
) -> list[Candidate]:
    """The finalists on these seeds, the best first; one that crashed on any of them is none."""
    found = iter(scheduler.run_cached([each.experiment.changed({"seed": seed}) for each in chosen for seed in seeds]))
    candidates = []
    for entry in chosen:
        results = [each for each in (next(found) for _ in seeds) if isinstance(each, Result)]
        if len(results) == len(seeds):
            measures = by_seed(results, criterion.measure)
            candidates.append(
                Candidate(entry=entry, results=results, measures=measures, estimate=median_of(measures.values()))
            )
    if not candidates:
        raise OffbeatError("none of the finalists could be run on the reported seeds")
    sign = 1 if criterion.lower_is_better else -1
    return sorted(candidates, key=lambda each: (sign * each.estimate.median, each.score(criterion, criterion.at)))


def _write(found: Recommendation, ranked: Sequence[Entry], root: Path) -> None:
    """Leave the answer, the experiment to deploy, the picture and the tables."""
    best = found.best
    first, *others = found.sentences
    others += found.comparison.notes
    others += [f"{name} was left out: {why}" for name, why in found.unsuited.items()]
    others += [f"Failed: {each}" for each in found.failures]
    lines = [f"# {best.algorithm}", "", first, "", *(f"- {each}" for each in others)]
    replace_file(root / "recommendation.md", ("\n".join(lines) + "\n").encode())
    note = f"# {found.sentences[0]}\n"
    deployable = best.entry.experiment.changed({"deployment": {"paced": False}})  # real devices have their own pace
    replace_file(root / "recommended.toml", (note + deployable.toml()).encode())
    replace_file(root / "comparison.csv", found.comparison.csv_text().encode())
    steps = sorted({step for each in ranked for step in each.scores})
    records = [
        {
            "algorithm": each.algorithm,
            "learning_rate": each.experiment.local.learning_rate,
            **{f"score_at_{found.criterion.at * step / STEPS[-1]:g}": each.scores.get(step) for step in steps},
        }
        for each in ranked
    ]
    replace_file(root / "race.csv", csv_of(records).encode())
    save(accuracy_figure(found.comparison), root / "accuracy.png")
