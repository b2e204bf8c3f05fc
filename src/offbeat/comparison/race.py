"""A race of algorithms with several learning rates, in heats of growing length, all with the same devices in training.

Heat 1 runs every algorithm with the experiment's learning rate for a ninth of the time. The best third then tries a
lower and a higher rate, and the best third of all entries may continue to a third of the time. If the best rate of a
leading algorithm is the lowest or the highest that was tried, the next one is tried too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from offbeat.comparison.fairness import fair_experiments
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


FACTOR = 3.0
"""The ratio of neighbouring learning rates: no rate suits all algorithms."""
LEAST_TUNED = 4
"""Fewest algorithms that try other learning rates."""
WIDENED = 2
"""How often an algorithm whose best rate is the lowest or the highest gets another one."""

OnStage = Callable[[str, int, float], None]
"""A function that is given the title of the next stage, its number of runs, and the share of each run it computes."""
OnAnswer = Callable[[str], None]
"""A function that is given a sentence on who leads so far."""


@dataclass(frozen=True)
class Entry:
    """An algorithm with a learning rate, as it enters a race."""

    experiment: Experiment
    scores: dict[int, float] = field(default_factory=dict)
    """The score at each step that the entry reached; lower is better."""
    name: str = ""
    """The name of the algorithm in a comparison."""
    all_devices: bool = False
    """Whether it races with all devices in training."""

    @property
    def algorithm(self) -> str:
        """The label of the algorithm in tables."""
        return self.experiment.algorithm.title

    @property
    def rate(self) -> float:
        """The learning rate."""
        return self.experiment.local.learning_rate

    @property
    def step_size(self) -> str:
        """The learning rate in words, with the optimiser if it is not SGD."""
        optimiser = self.experiment.local.optimiser
        return f"learning rate {self.rate:g}" + (f" ({optimiser})" if optimiser != "sgd" else "")

    @property
    def rank(self) -> tuple[int, float]:
        """Sort key: entries that reached a later step come first, then those with the lower score."""
        return -max(self.scores, default=0), self.scores[max(self.scores)] if self.scores else 0.0

    def with_rate(self, times: float) -> "Entry":
        """The same algorithm and optimiser with another learning rate."""
        local = {"optimiser": self.experiment.local.optimiser, "learning_rate": float(f"{self.rate * times:.3g}")}
        changed = self.experiment.changed({"local": local})
        return Entry(changed, name=self.name, all_devices=self.all_devices)


def entries_of(
    base: Experiment, algorithms: Sequence[str], *, all_devices: bool = False, suffix: str = ""
) -> tuple[list[Entry], dict[str, str]]:
    """Entries for the algorithms that can run the experiment, with its learning rate; the others with the reason."""
    parts, entries, unsuited = ExperimentParts.of(base), [], {}
    for name in algorithms:
        try:
            (own,) = fair_experiments(base, [name], [base.seed])
            check_can_begin(own, parts)
        except InvalidInput as error:
            unsuited[name] = str(error)
            continue
        label = {"algorithm": {"label": own.algorithm.title + suffix}} if suffix else {}
        entries.append(Entry(own.changed(label), name=name, all_devices=all_devices))
    return entries, unsuited


def best_first(entries: Sequence[Entry]) -> list[Entry]:
    """The entries that have a score, the best first."""
    return sorted((each for each in entries if each.scores), key=lambda each: each.rank)


def leaders(entries: Sequence[Entry]) -> list[Entry]:
    """The best entry of each algorithm that has a score, the best first."""
    best: dict[str, Entry] = {}
    for entry in best_first(entries):
        best.setdefault(entry.algorithm, entry)
    return list(best.values())


def finalists(entries: Sequence[Entry], count: int, always: str) -> list[Entry]:
    """The best entries of the best `count` algorithms, and of the algorithm `always`; never one that failed."""
    return [each for place, each in enumerate(leaders(entries)) if place < count or each.algorithm == always]


def edge(entry: Entry, entries: Sequence[Entry]) -> float | None:
    """The factor towards rates that were not tried, if the entry has the lowest or highest of its algorithm's rates."""
    rates = sorted(each.rate for each in entries if each.algorithm == entry.algorithm and each.scores)
    if len(rates) < 2 or rates[0] < entry.rate < rates[-1]:
        return None
    return FACTOR if entry.rate == rates[-1] else 1 / FACTOR


class Race:
    """The heats of a race: their runs are in the cache of the scheduler, under one seed that is not reported."""

    def __init__(
        self,
        scheduler: RunScheduler,
        criterion: Criterion,
        seed: int,
        on_stage: OnStage | None = None,
        on_answer: OnAnswer | None = None,
    ) -> None:
        self._scheduler, self._criterion, self._seed = scheduler, criterion, seed
        self._on_stage, self._on_answer = on_stage, on_answer
        self.failures: list[str] = []

    def run(self, entries: Sequence[Entry], title: str, *, last: int, widened: int) -> list[Entry]:
        """All entries after the race, the best first; those without a score, which failed, are last.

        `last` is the last step that the best third races to; the best `widened` algorithms get further rates.
        """
        self._heat(entries, 1, title)
        if not any(each.scores for each in entries):
            raise OffbeatError(f"all algorithms failed: {'; '.join(dict.fromkeys(self.failures))}")
        self._tell(entries, title)
        best = leaders(entries)[: max(LEAST_TUNED, len(entries) // REDUCTION)]
        rates = [each.with_rate(times) for each in best for times in (1 / FACTOR, FACTOR)]
        self._heat(rates, 1, f"{title}, other learning rates")
        raced = [*entries, *rates]
        self._tell(raced, title)
        for step in (step for step in STEPS if 1 < step <= last):
            known = [each for each in raced if each.scores]
            limit = best_part([each.scores[1] for each in known])
            self._heat([each for each in known if each.scores[1] <= limit], step, title)
            self._tell(raced, title)
        for _ in range(WIDENED):
            beyond = [(each, edge(each, raced)) for each in leaders(raced)[:widened]]
            further = [(each, each.with_rate(times)) for each, times in beyond if times is not None]
            for step in (step for step in STEPS if step <= last):
                self._heat([new for old, new in further if step in old.scores], step, f"{title}, rates beyond the edge")
            raced += [new for _, new in further]
        return sorted(raced, key=lambda each: (not each.scores, each.rank))

    def _heat(self, entries: Sequence[Entry], step: int, title: str) -> None:
        """Run the entries up to a step, and note their scores; an entry that fails gets none."""
        until = self._criterion.at * step / STEPS[-1]
        if self._on_stage is not None and entries:
            self._on_stage(f"{title} to {until:.4g} s", len(entries), step / STEPS[-1])
        found = self._scheduler.run_cached([each.experiment.changed({"seed": self._seed}) for each in entries], until)
        for entry, result in zip(entries, found, strict=True):
            if isinstance(result, RunFailure):
                self.failures.append(str(result))
                entry.scores.clear()
            elif isinstance(result, Result):
                entry.scores[step] = self._criterion.score(result, until)

    def _tell(self, entries: Sequence[Entry], title: str) -> None:
        best = best_first(entries)[0]
        until = self._criterion.at * max(best.scores) / STEPS[-1]
        if self._on_answer is not None:
            algorithms = len({each.algorithm for each in entries})
            self._on_answer(
                f"So far, {title}: {best.algorithm} with {best.step_size} leads {algorithms} algorithms at "
                f"{until:.4g} s (one seed)."
            )
