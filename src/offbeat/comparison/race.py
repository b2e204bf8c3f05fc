"""Successive halving over virtual time: at each step only the best third of the runs continues.

A race applies it to algorithms, each with several learning rates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from offbeat.algorithms.about import about_of
from offbeat.comparison.fairness import SEEDS, fair_experiments
from offbeat.comparison.planned import RunFailure, check_can_begin
from offbeat.comparison.scheduler import RunScheduler
from offbeat.core.errors import InvalidInput, OffbeatError
from offbeat.experiment.schema import Experiment
from offbeat.results.criterion import Criterion
from offbeat.results.result import Result
from offbeat.running.assembly import ExperimentParts

REDUCTION = 3
"""One run out of this many continues at each step."""
STEPS = (1, 3, 9)
"""Times of the steps, in ninths of the run; the last is its end."""


def best_part(scores: Sequence[float], reduction: int = REDUCTION) -> float:
    """The worst score (lower is better) with which a run continues: one run of `reduction` does, and at least one.

    >>> best_part([5.0, 1.0, 4.0, 2.0, 3.0, 6.0]), best_part([5.0, 4.0])
    (2.0, 4.0)
    """
    if not scores:
        raise InvalidInput("no scores to rank")
    return sorted(scores)[max(1, len(scores) // reduction) - 1]


RATES = (1.0, 1 / 3, 3.0)
"""Each algorithm enters with the experiment's learning rate times each of these, because no rate suits all."""

OnStage = Callable[[str, int, float], None]
"""A function that is given the title of the next stage, its number of runs, and the share of each run it computes."""


@dataclass(frozen=True)
class Entry:
    """An algorithm with a learning rate, as it enters a race."""

    experiment: Experiment
    scores: dict[int, float] = field(default_factory=dict)
    """The score at each step that the entry reached; lower is better."""

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return self.experiment.algorithm.title

    @property
    def trains_all_devices(self) -> bool:
        """Whether the algorithm keeps all devices in training."""
        return about_of(self.experiment.algorithm.policy).trains_all_devices

    @property
    def rank(self) -> tuple[int, float]:
        """Sort key: entries that reached a later step come first, then those with the lower score."""
        return -max(self.scores, default=0), self.scores[max(self.scores)] if self.scores else 0.0


def entries_of(base: Experiment, algorithms: Sequence[str]) -> tuple[list[Entry], dict[str, str]]:
    """Entries for the algorithms that can run the experiment; for the others, the reason why not."""
    parts, entries, unsuited = ExperimentParts.of(base), [], {}
    for name in algorithms:
        try:
            (own,) = fair_experiments(base, [name], [base.seed])
            check_can_begin(own, parts)
        except InvalidInput as error:
            unsuited[name] = str(error)
            continue
        rate = own.local.learning_rate
        entries += [Entry(own.changed({"local": {"learning_rate": float(f"{rate * times:.3g}")}})) for times in RATES]
    return entries, unsuited


def race(
    entries: Sequence[Entry],
    scheduler: RunScheduler,
    criterion: Criterion,
    *,
    seeds: Sequence[int] = SEEDS,
    on_stage: OnStage | None = None,
) -> tuple[list[Entry], list[str]]:
    """All entries, the best first, and a sentence on each that failed.

    The first step, after which most entries stop, is run with the first seed only.
    """
    left, failures = list(entries), []
    for number, step in enumerate(STEPS):
        until = criterion.at * step / STEPS[-1]
        these = seeds[:1] if number == 0 else seeds
        if on_stage is not None:
            on_stage(f"race to {until:.4g} s", len(left) * len(these), step / STEPS[-1])
        wanted = [each.experiment.changed({"seed": seed}) for each in left for seed in these]
        found = iter(scheduler.run_cached(wanted, until))
        remaining = []
        for entry in left:
            results = [next(found) for _ in these]
            failed = [str(each) for each in results if isinstance(each, RunFailure)]
            failures += failed[:1]
            if not failed:
                scores = [criterion.score(each, until) for each in results if isinstance(each, Result)]
                entry.scores[step] = fmean(scores)
                remaining.append(entry)
        if not remaining:
            raise OffbeatError(f"all algorithms failed: {'; '.join(dict.fromkeys(failures))}")
        limit = best_part([each.scores[step] for each in remaining])
        left = [each for each in remaining if each.scores[step] <= limit]
    return sorted(entries, key=lambda each: each.rank), list(dict.fromkeys(failures))


def finalists(entries: Sequence[Entry], count: int, always: str) -> list[Entry]:
    """The best entries of the best `count` algorithms, of `always`, and of the best that does not train all devices.

    An algorithm that failed in the race is never among them.
    """
    best: dict[str, Entry] = {}
    for entry in entries:
        if entry.scores:
            best.setdefault(entry.algorithm, entry)
    sparing = next((each.algorithm for each in best.values() if not each.trains_all_devices), None)
    return [entry for place, entry in enumerate(best.values()) if place < count or entry.algorithm in (always, sparing)]
