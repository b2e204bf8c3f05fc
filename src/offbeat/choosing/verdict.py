"""A recommendation in words: the answer with its spread, what it costs, and what would change it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from offbeat.choosing.fair import SEEDS
from offbeat.choosing.race import Entry
from offbeat.comparison.cached_runs import CachedRuns
from offbeat.comparison.criterion import Criterion
from offbeat.comparison.fairness import order_seconds
from offbeat.results.comparison import megabytes, percent
from offbeat.results.result import Result
from offbeat.results.statistics import Estimate, difference, difference_text, speed_up, speed_up_text
from offbeat.running.directory import read_devices
from offbeat.settings.schema import Experiment
from offbeat.settings.tables import Table

SLOW = 0.25
"""The slowest quarter of the devices are the slow ones."""
EARLY = (1 / 3, 1 / 9)
"""Shares of the time at which another algorithm might be the best."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A finalist, with its runs on the reported seeds."""

    entry: Entry
    results: list[Result]
    measures: dict[int, float]
    """What each run comes to, by its seed."""
    estimate: Estimate

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return self.entry.algorithm

    def mean(self, key: str) -> float:
        """The mean over seeds of a number in the summaries."""
        return fmean(each.summary[key] for each in self.results)


def answer(candidates: Sequence[Candidate], criterion: Criterion) -> list[str]:
    """The best of the candidates, how it compares with the others, and what it costs."""
    best, *others = candidates
    rate = best.entry.experiment.local.learning_rate
    sentences = [
        f"Run {best.algorithm} with a learning rate of {rate:g}: {criterion.title} "
        f"{best.estimate.text(criterion.text)} over {best.estimate.seeds} seeds."
    ]
    sentences += [f"Against {each.algorithm}: {against(best, each, criterion)}." for each in others]
    sentences.append(f"It costs {cost(best)}.")
    slow = slow_devices(best)
    return [*sentences, slow] if slow else sentences


def against(best: Candidate, other: Candidate, criterion: Criterion) -> str:
    """How much better the best is than another, seed by seed, and whether the seeds tell them apart."""
    if criterion.kind == "time":
        found = speed_up(best.measures, other.measures)
        if found is None:
            return "neither reaches the target"
        undecided = found.includes(1.0)
        text = f"{speed_up_text(found)} times as fast"
    else:
        gap = difference(best.measures, other.measures)
        undecided = gap.includes(0.0)
        write = "{:+.1f} points".format if criterion.metric.is_share else "{:+.3g}".format
        text = difference_text(gap, lambda value: write(100 * value if criterion.metric.is_share else value))
    return text + ("; these seeds do not tell the two apart" if undecided else "")


def cost(candidate: Candidate) -> str:
    """What a run costs, as means over seeds."""
    busy, wasted = candidate.mean("busy_seconds"), candidate.mean("wasted_seconds")
    share = percent(wasted / busy, 1) if busy else "0 %"
    return (
        f"{megabytes(candidate.mean('bytes_up'))} MB up, {megabytes(candidate.mean('bytes_down'))} MB down and "
        f"{busy:,.0f} seconds of the devices' time, of which {share} went into updates that were not used"
    )


def slow_devices(candidate: Candidate) -> str | None:
    """How much the slow devices' data count in the model; None if the fleet is too large to know."""
    shares = [share for share in map(slow_share, candidate.results) if share is not None]
    if not shares:
        return None
    counts, holds = (fmean(column) for column in zip(*shares, strict=True))
    return (
        f"The slowest quarter of the devices holds {percent(holds, 0)} of the data, and {percent(counts, 0)} of what "
        "went into the model was theirs."
    )


def slow_share(result: Result) -> tuple[float, float] | None:
    """The slow devices' share of the samples that were used, counted with every use, and of those that there are."""
    if result.directory is None or result.experiment is None:
        return None
    rows = read_devices(result.directory)
    if not rows:
        return None
    seconds = order_seconds(result.experiment)
    slowest = sorted(range(len(seconds)), key=lambda device: -seconds[device])[: max(1, round(SLOW * len(seconds)))]
    used = sum(row["used"] * row["samples"] for row in rows)
    held = sum(row["samples"] for row in rows)
    slow_used = sum(rows[device]["used"] * rows[device]["samples"] for device in slowest)
    slow_held = sum(rows[device]["samples"] for device in slowest)
    return (slow_used / used if used else 0.0), (slow_held / held if held else 0.0)


# What would change it ------------------------------------------------------------------------------------------------


def variants(experiment: Experiment) -> dict[str, Table]:
    """Circumstances under which another algorithm might be the best: in words, and as changes to the experiment."""
    return {
        "one upload in ten were lost": {"failures": {"lost_upload": 0.1}},
        "an order were twice the work": {"local": {"epochs": 2 * experiment.local.epochs}},
    }


def other_answers(candidates: Sequence[Candidate], runs: CachedRuns, criterion: Criterion) -> list[str]:
    """Under which circumstances another of the candidates would be the best, as far as was tried."""
    best, sentences = candidates[0], []
    for share in EARLY:
        until = share * criterion.at
        early = min(candidates, key=lambda each: fmean(criterion.score(run.rows, until) for run in each.results))
        if early is not best:
            sentences.append(f"If you could only wait for {until:.4g} s, it would be {early.algorithm}.")
            break
    cheapest = min(candidates, key=lambda each: each.mean("bytes_up") + each.mean("bytes_down"))
    if cheapest is not best:
        sentences.append(f"If only traffic counted, it would be {cheapest.algorithm}, which costs {cost(cheapest)}.")
    for words in variants(best.entry.experiment):
        experiments = [each.entry.experiment for each in candidates]
        changed = [each.changed(variants(each)[words] | {"seed": SEEDS[0]}) for each in experiments]
        found = zip(candidates, runs.run(changed), strict=True)
        scores = {
            each.algorithm: criterion.score(run.rows, criterion.at) for each, run in found if isinstance(run, Result)
        }
        if scores:
            first = min(scores, key=lambda name: scores[name])
            still = "still " if first == best.algorithm else ""
            sentences.append(f"If {words}, it would {still}be {first} (one seed).")
    return sentences
