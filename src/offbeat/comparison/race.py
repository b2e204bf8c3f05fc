"""Successive halving over virtual time: all begin, and at each of some times only the best part goes on.

A race of algorithms by successive halving over virtual time: many begin, the best third goes on at each step.
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
"""Successive halving lets one run out of this many go on at each step."""
STEPS = (1, 3, 9)
"""When it is decided who goes on, in ninths of the run; the last is its end."""


def best_part(scores: Sequence[float], reduction: int = REDUCTION) -> float:
    """The score up to which (lower is better) runs go on: one of `reduction`, and at least one.

    >>> best_part([5.0, 1.0, 4.0, 2.0, 3.0, 6.0]), best_part([5.0, 4.0])
    (2.0, 4.0)
    """
    if not scores:
        raise InvalidInput("there is nothing of which a part could go on")
    return sorted(scores)[max(1, len(scores) // reduction) - 1]


RATES = (1.0, 1 / 3, 3.0)
"""Each algorithm enters with the experiment's learning rate times each of these: none suits all algorithms."""

OnStage = Callable[[str, int, float], None]
"""A function that is told what comes next, in how many runs, and up to which share of each."""


@dataclass(frozen=True)
class Entry:
    """An algorithm with a learning rate, which takes part in a race."""

    experiment: Experiment
    scores: dict[int, float] = field(default_factory=dict)
    """The score at each step that the entry came to; lower is better."""

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return self.experiment.algorithm.title

    @property
    def trains_everybody(self) -> bool:
        """Whether the algorithm keeps all devices in training."""
        return about_of(self.experiment.algorithm.policy).trains_everybody

    @property
    def rank(self) -> tuple[int, float]:
        """Who came further is better; of those that came equally far, who has the lower score."""
        return -max(self.scores, default=0), self.scores[max(self.scores)] if self.scores else 0.0


def entries_of(base: Experiment, algorithms: Sequence[str]) -> tuple[list[Entry], dict[str, str]]:
    """Those of the algorithms that suit the experiment, with several learning rates; of the others, why not."""
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
    """All entries, the best first, and a sentence on each that crashed.

    The first step, which most do not survive, is run with the first seed only.
    """
    left, failures = list(entries), []
    for number, step in enumerate(STEPS):
        until = criterion.at * step / STEPS[-1]
        these = seeds[:1] if number == 0 else seeds
        if on_stage is not None:
            on_stage(f"race to {until:.4g} s", len(left) * len(these), step / STEPS[-1])
        wanted = [each.experiment.changed({"seed": seed}) for each in left for seed in these]
        found = iter(scheduler.run_cached(wanted, until))
        still = []
        for entry in left:
            results = [next(found) for _ in these]
            failed = [str(each) for each in results if isinstance(each, RunFailure)]
            failures += failed[:1]
            if not failed:
                scores = [criterion.score(each, until) for each in results if isinstance(each, Result)]
                entry.scores[step] = fmean(scores)
                still.append(entry)
        if not still:
            raise OffbeatError(f"none of the algorithms could be run: {'; '.join(dict.fromkeys(failures))}")
        limit = best_part([each.scores[step] for each in still])
        left = [each for each in still if each.scores[step] <= limit]
    return sorted(entries, key=lambda each: each.rank), list(dict.fromkeys(failures))


def finalists(entries: Sequence[Entry], count: int, always: str) -> list[Entry]:
    """The best entry of each of the best `count` algorithms, of one that is always among them if it raced, and of the
    best algorithm that does not keep all devices in training."""
    best: dict[str, Entry] = {}
    for entry in entries:
        if entry.scores:
            best.setdefault(entry.algorithm, entry)
    sparing = next((each.algorithm for each in best.values() if not each.trains_everybody), None)
    return [entry for place, entry in enumerate(best.values()) if place < count or entry.algorithm in (always, sparing)]
