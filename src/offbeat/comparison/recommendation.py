"""Recommend an algorithm for a fleet: race all that can run on it, then run the best on fresh seeds.

Algorithms race within equal budgets: with the shared number of devices in training and, where some train all devices by
definition, a second time with all devices. Each race has its own answer. All runs are in a cache below the output
directory, so an interrupted recommendation can be resumed.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import fmean

import tomli_w

from offbeat.algorithms import POLICIES, policy_class
from offbeat.algorithms.about import about_of
from offbeat.algorithms.sizes import in_training_of
from offbeat.comparison.fairness import alike, fresh_seeds, note_on_sizes, notes_on
from offbeat.comparison.planned import OnRunProgress, RunFailure, check_new_or_resumed
from offbeat.comparison.race import STEPS, Entry, OnAnswer, OnStage, Race, edge, entries_of, finalists, leaders
from offbeat.comparison.scheduler import RunScheduler, kept_in
from offbeat.core.errors import InvalidInput, OffbeatError, checks_keywords
from offbeat.experiment.locations import modules_line
from offbeat.experiment.schema import IN_TRAINING, Experiment
from offbeat.experiment.shipped import ExperimentSource, experiment_from
from offbeat.experiment.tables import Table
from offbeat.results.comparison import BASELINE, Comparison
from offbeat.results.criterion import Criterion
from offbeat.results.files import csv_of, replace_file
from offbeat.results.lock import DirectoryLock
from offbeat.results.metric import duration, megabytes, percent
from offbeat.results.plots import draw_comparison
from offbeat.results.result import Result
from offbeat.results.statistics import Estimate, by_seed, difference, median_of, speed_up
from offbeat.running.sizing import algorithm_settings, order_seconds

FINALISTS = 2
"""Number of algorithms that are run on fresh seeds, besides the baseline and the best with all devices."""
FILES = "recommendation.md, recommended.toml, accuracy.png, comparison.csv and race.csv"
ALL_DEVICES = ", all devices"
"""The end of the label of an algorithm that usually chooses devices and races with all of them."""
SLOW = 0.25
"""The share of the devices that counts as slow."""
EARLY = (1 / 3, 1 / 9)
"""Shares of the time at which the best algorithm is looked up again."""
LOST = 0.1
"""The share of lost uploads that is tried as a change."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A finalist, with its runs on the reported seeds."""

    entry: Entry
    results: list[Result]
    measures: dict[int, float]
    """The measure of each run, by seed."""
    estimate: Estimate

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return self.entry.algorithm

    def mean(self, key: str) -> float:
        """The mean over seeds of a number in the summaries."""
        return fmean(each.summary[key] for each in self.results)

    def score(self, criterion: Criterion, until: float) -> float:
        """The mean over seeds of the score at a time; lower is better."""
        return fmean(criterion.score(each, until) for each in self.results)


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The answer: the candidates, the best first, and sentences."""

    criterion: Criterion
    candidates: list[Candidate]
    using_all: Candidate | None = None
    """The best with all devices in training, if the candidates have fewer."""
    comparison: Comparison
    sentences: list[str]
    """What to run, how it compares, what it costs, and what would change the answer."""
    unsuited: dict[str, str]
    failures: list[str] = field(default_factory=list)

    @property
    def best(self) -> Candidate:
        """The recommended candidate."""
        return self.candidates[0]


@checks_keywords
def recommend(
    experiment: ExperimentSource,
    algorithms: Sequence[str] | None = None,
    *,
    out: str | os.PathLike[str] = "recommendation",
    seeds: int = 3,
    criterion: Criterion | None = None,
    jobs: int = 1,
    resume: bool = False,
    watch: OnRunProgress | None = None,
    on_stage: OnStage | None = None,
    on_answer: OnAnswer | None = None,
    address: str | None = None,
) -> Recommendation:
    """Recommend one of the algorithms (default: all, and the experiment's own) for the fleet, data and model.

    All race on a seed that is not reported (`comparison.race`). The best two and the baseline are then run on `seeds`
    seeds from the experiment's on; the best with all devices, which costs more, on half of them. Writes the answer, a
    plot, tables, and the experiments ready to deploy. With the `address` of a Ray cluster, its workers carry out the
    runs. `on_answer` is given a sentence on who leads whenever that may have changed.
    """
    given, root = experiment_from(experiment), Path(out)
    names = list(dict.fromkeys(algorithms or [*POLICIES, given.algorithm.name]))
    policies = {name: policy_class(algorithm_settings(given, name)[0]) for name in names}  # an unknown name is an error
    reported = range(given.seed, given.seed + seeds)
    wanted = criterion or Criterion.of(given)
    check_new_or_resumed(root, given, resume=resume)
    base = alike(given, names)
    everyone = [name for name in names if about_of(policies[name]).trains_all_devices]
    some = 0 < (base.in_training or 0) < base.data.devices
    two_races = some and 0 < len(everyone) < len(names)
    sparing = [name for name in names if name not in everyone] if two_races else names
    entries, unsuited = entries_of(base, sparing)
    scheduler = RunScheduler(root / "runs", jobs=jobs, watch=watch, address=address)
    if not entries:
        raise InvalidInput(f"no algorithm can run this experiment: {'; '.join(unsuited.values())}")
    with DirectoryLock(root), scheduler, kept_in(root):
        replace_file(root / "config.toml", tomli_w.dumps(given.given_table()).encode())
        race = Race(scheduler, wanted, fresh_seeds(reported)[0], on_stage, on_answer)
        title = f"{base.in_training} of {base.data.devices} devices in training" if two_races else "race"
        ranked = race.run(entries, title, last=STEPS[1], widened=FINALISTS)
        raced_by_all: list[Entry] = []
        if two_races:
            scaled = [each.name for each in leaders(ranked)[:FINALISTS]]
            others, more = all_device_entries(base, everyone, scaled)
            unsuited |= more
            raced_by_all = race.run(others, "all devices in training", last=STEPS[0], widened=1) if others else []
        chosen = finalists(ranked, FINALISTS, BASELINE)
        best_of_all = leaders(raced_by_all)[:FINALISTS]  # a ninth of the time may mislead: the second is run as well
        half = reported[: (seeds + 1) // 2]
        if on_stage is not None:
            on_stage("finalists on fresh seeds", len(chosen) * seeds + len(best_of_all) * len(half), 1.0)
        theirs = [*([reported] * len(chosen)), *([half] * len(best_of_all))]
        ended = _candidates([*chosen, *best_of_all], scheduler, wanted, theirs)
        candidates = [each for each in ended if not each.entry.all_devices]
        using_all = next((each for each in ended if each.entry.all_devices), None)
        if not candidates:
            raise OffbeatError("all finalists failed on the reported seeds")
        others_said = other_answers(candidates[:FINALISTS], scheduler, wanted, on_stage)
    found_all = [*candidates, *filter(None, [using_all])]
    first = {each.algorithm: each.entry.experiment for each in found_all}
    runs_of_all = [result for each in found_all for result in each.results]
    notes = [note_on_sizes(given, names), *notes_on(first, runs_of_all)]
    found = Recommendation(
        criterion=wanted,
        candidates=candidates,
        using_all=using_all,
        comparison=Comparison(runs_of_all, wanted.target, notes=notes),
        sentences=[
            *answer(candidates, wanted, using_all, base),
            *at_edges(found_all, [*ranked, *raced_by_all]),
            *others_said,
        ],
        unsuited=unsuited,
        failures=list(dict.fromkeys(race.failures)),
    )
    _write(found, [*ranked, *raced_by_all], root)
    return found


def all_device_entries(
    base: Experiment, everyone: Sequence[str], scaled: Sequence[str]
) -> tuple[list[Entry], dict[str, str]]:
    """Entries with all devices in training: of algorithms that always do, and of `scaled` ones if they can."""
    entries, unsuited = entries_of(base, everyone, all_devices=True)
    devices = base.data.devices
    whole = Experiment.parse(base.given_table() | {"compare": {**base.compare, IN_TRAINING: devices}})
    others, _ = entries_of(whole, scaled, all_devices=True, suffix=ALL_DEVICES)
    for each in others:
        policy = each.experiment.algorithm.policy
        number = in_training_of(type(policy), policy.model_dump(), devices)
        if number == devices:  # its own settings may say otherwise
            entries.append(each)
    return entries, unsuited


def _candidates(
    chosen: Sequence[Entry], scheduler: RunScheduler, criterion: Criterion, seeds: Sequence[Sequence[int]]
) -> list[Candidate]:
    """The finalists, each on its seeds, the best first, without those that failed on a seed."""
    wanted = [
        entry.experiment.changed({"seed": seed}) for entry, own in zip(chosen, seeds, strict=True) for seed in own
    ]
    found = iter(scheduler.run_cached(wanted))
    candidates = []
    for entry, own in zip(chosen, seeds, strict=True):
        results = [each for each in [next(found) for _ in own] if isinstance(each, Result)]
        if len(results) == len(own):
            measures = by_seed(results, criterion.measure)
            candidates.append(
                Candidate(
                    entry=entry,
                    results=results,
                    measures=measures,
                    estimate=median_of(measures.values(), log=criterion.kind == "time"),
                )
            )
    sign = 1 if criterion.lower_is_better else -1
    return sorted(candidates, key=lambda each: (sign * each.estimate.median, each.score(criterion, criterion.at)))


def _write(found: Recommendation, ranked: Sequence[Entry], root: Path) -> None:
    """Write the answer, the experiments to deploy, the plot and the tables."""
    best = found.best
    first, *others = found.sentences
    others += found.comparison.notes
    others += [f"{name} was not raced: {why}" for name, why in found.unsuited.items()]
    others += [f"Failed: {each}" for each in found.failures]
    lines = [f"# {best.algorithm}", "", first, "", *(f"- {each}" for each in others)]
    replace_file(root / "recommendation.md", ("\n".join(lines) + "\n").encode())
    files = {"recommended.toml": best} | ({"recommended-all-devices.toml": found.using_all} if found.using_all else {})
    for name, candidate in files.items():
        note = f"# {first_sentence(candidate, found.criterion)}\n"
        deployable = candidate.entry.experiment.changed(
            {"deployment": {"paced": False}}
        )  # devices have their own speed
        text = note + modules_line(deployable.own.values()) + deployable.toml()
        replace_file(root / name, text.encode())
    replace_file(root / "comparison.csv", found.comparison.csv_text().encode())
    steps = sorted({step for each in ranked for step in each.scores})
    records = [
        {
            "algorithm": each.algorithm,
            "all_devices": str(each.all_devices).lower(),
            "optimiser": each.experiment.local.optimiser,
            "learning_rate": each.rate,
            **{f"score_at_{found.criterion.at * step / STEPS[-1]:g}": each.scores.get(step) for step in steps},
        }
        for each in ranked
    ]
    replace_file(root / "race.csv", csv_of(records).encode())
    draw_comparison(found.comparison, root)


# The answer in words -------------------------------------------------------------------------------------------------


def answer(
    candidates: Sequence[Candidate], criterion: Criterion, using_all: Candidate | None, base: Experiment
) -> list[str]:
    """Sentences on the best candidate, how it compares with the others, and what it costs; and with all devices."""
    best, *others = candidates
    devices = base.data.devices
    some = "" if using_all is None else f"With {base.in_training} of {devices} devices in training: "
    sentences = [some + first_sentence(best, criterion)]
    if using_all is not None:
        times = using_all.mean("busy_seconds") / max(best.mean("busy_seconds"), 1e-9)
        seeds = using_all.measures.keys() & best.measures.keys()
        theirs, its = (fmean(each.measures[seed] for seed in seeds) for each in (using_all, best))
        lost = theirs >= its if criterion.lower_is_better else theirs <= its
        sentences.append(
            f"With all {devices} devices in training{', which gained nothing' if lost else ''}: "
            f"{first_sentence(using_all, criterion)} Compared with {best.algorithm}: "
            f"{against(using_all, best, criterion)}, for {times:.3g} times the device-seconds."
        )
    sentences += falls_back(best, criterion)
    sentences += [f"Compared with {each.algorithm}: {against(best, each, criterion)}." for each in others]
    sentences.append(f"A run of {duration(best.mean('time'))} costs {cost(best)}.")
    slow = slow_devices(best)
    return [*sentences, slow] if slow else sentences


def at_edges(candidates: Sequence[Candidate], entries: Sequence[Entry]) -> list[str]:
    """A sentence on each candidate whose learning rate is the lowest or the highest that was tried."""
    edges = [(each, edge(each.entry, entries)) for each in candidates]
    return [
        f"The learning rate of {each.algorithm}, {each.entry.rate:g}, is the {'highest' if times > 1 else 'lowest'} "
        f"that was tried: a {'higher' if times > 1 else 'lower'} one may be better."
        for each, times in edges
        if times is not None
    ]


def first_sentence(best: Candidate, criterion: Criterion) -> str:
    """What to run and its measure; or that no algorithm reached the target, and which came closest."""
    run = f"{best.algorithm} with {best.entry.step_size}"
    over = f" over {best.estimate.seeds} seeds" if best.estimate.seeds > 1 else ""  # the text of one says so
    if best.estimate.median < inf or criterion.kind != "time":
        return f"Run {run}: {criterion.title} {best.estimate.text(criterion.text)}{over}."
    assert criterion.target is not None
    nearest = median_of(criterion.best_value(each.rows) for each in best.results)
    return (
        f"No algorithm reached {criterion.metric.goal(criterion.target)} within {criterion.at:g} s with most seeds: "
        f"allow more time or lower the target. Closest: {run}, best {criterion.metric.title} "
        f"{nearest.text(criterion.value_text)}{over}."
    )


def falls_back(best: Candidate, criterion: Criterion) -> list[str]:
    """A warning if the best reaches the target but does not hold it until the end of the run."""
    metric = criterion.metric
    if criterion.kind != "time" or criterion.target is None or best.estimate.median == inf:
        return []
    last = median_of(criterion.value_at_end(each.rows) for each in best.results)
    if metric.reached(last.median, criterion.target):
        return []
    return [
        f"It does not hold the target: its final {metric.title} is {last.text(criterion.value_text)}. Stop the run at "
        f'the target (stop.target = {criterion.target:g}), or choose by the final value (objective "value").'
    ]


def against(best: Candidate, other: Candidate, criterion: Criterion) -> str:
    """How much better the best is than another, paired by seed, and whether the difference is distinguishable."""
    if criterion.kind == "time":
        found = speed_up(best.measures, other.measures)
        if found is None:
            return "neither reaches the target"
        low, median, high = (f"{value:.2f}".replace("inf", "∞") for value in (found.low, found.median, found.high))
        text, remark = f"{median} times as fast", found.remark(1.0)
    else:
        found = difference(best.measures, other.measures)
        unit, times, write = (" points", 100, "{:+.1f}") if criterion.metric.is_share else ("", 1, "{:+.3g}")
        low, median, high = (write.format(times * value) for value in (found.low, found.median, found.high))
        text, remark = f"{median}{unit}", found.remark(0.0)
    if found.seeds == 1:
        return f"{text} with one seed, which is too few to distinguish them"
    return f"{text}, paired by seed ({found.word} {low} to {high}{remark and ', ' + remark})"


def cost(candidate: Candidate) -> str:
    """Traffic and device time of a run, as means over seeds."""
    busy, wasted = candidate.mean("busy_seconds"), candidate.mean("wasted_seconds")
    share = percent(wasted / busy, 1) if busy else "0 %"
    return (
        f"{megabytes(candidate.mean('bytes_up'))} MB up, {megabytes(candidate.mean('bytes_down'))} MB down and "
        f"{busy:,.0f} device-seconds, {share} of them for updates that were not used"
    )


def slow_devices(candidate: Candidate) -> str | None:
    """The share of the slow devices in the used samples; None if the fleet is too large for a devices.csv."""
    shares = [share for share in map(slow_share, candidate.results) if share is not None]
    if not shares:
        return None
    counts, holds = (fmean(column) for column in zip(*shares, strict=True))
    return (
        f"The slowest quarter of the devices holds {percent(holds, 0)} of the data and contributed "
        f"{percent(counts, 0)} of the samples in used updates."
    )


def slow_share(result: Result) -> tuple[float, float] | None:
    """The slow devices' share of the samples in used updates, each use counted, and of all samples."""
    if result.experiment is None:
        return None
    rows = result.devices
    if not rows:
        return None
    seconds = order_seconds(result.experiment)
    slowest = sorted(range(len(seconds)), key=lambda device: -seconds[device])[: max(1, round(SLOW * len(seconds)))]
    used = sum(row["used"] * row["samples"] for row in rows)
    held = sum(row["samples"] for row in rows)
    slow_used = sum(rows[device]["used"] * rows[device]["samples"] for device in slowest)
    slow_held = sum(rows[device]["samples"] for device in slowest)
    return (slow_used / used if used else 0.0), (slow_held / held if held else 0.0)


# What would change the answer -----------------------------------------------------------------------------------------


def variants(experiment: Experiment) -> dict[str, Table]:
    """Changes to the experiment under which another algorithm might be the best, by their description."""
    unit = f"{experiment.local.unit}s"
    found: dict[str, Table] = {f"orders took twice as many {unit}": {"local": {unit: 2 * experiment.local.slices}}}
    if experiment.failures.lost_upload < LOST:
        found["one upload in ten were lost"] = {"failures": {"lost_upload": LOST}}
    return found


def other_wishes(candidates: Sequence[Candidate], criterion: Criterion) -> list[str]:
    """Sentences on which candidate is best with less time or less traffic."""
    best, sentences = candidates[0], []
    for share in EARLY:
        until = share * criterion.at
        early = min(candidates, key=lambda each: each.score(criterion, until))
        if early is not best:
            sentences.append(f"With only {duration(until)}, {early.algorithm} would be the best.")
            break
    else:
        sentences.append(f"With only {duration(EARLY[-1] * criterion.at)}, {best.algorithm} would still be the best.")
    cheapest = min(candidates, key=lambda each: each.mean("bytes_up") + each.mean("bytes_down"))
    if cheapest is not best:
        sentences.append(f"The candidate with the lowest traffic is {at_its_cost(cheapest, criterion)}.")
    return sentences


def at_its_cost(candidate: Candidate, criterion: Criterion) -> str:
    """The measure and the cost of a candidate."""
    measure = f"{criterion.title} {candidate.estimate.text(criterion.text)}"
    return f"{candidate.algorithm} ({measure}): {cost(candidate)}"


def other_answers(
    candidates: Sequence[Candidate], scheduler: RunScheduler, criterion: Criterion, on_stage: OnStage | None = None
) -> list[str]:
    """Sentences on when another candidate would be the best.

    Changes are tried with the first reported seed, and compared with the unchanged runs with that seed.
    """
    sentences = other_wishes(candidates, criterion)
    experiments = [each.entry.experiment for each in candidates]
    changes = [variants(each) for each in experiments]
    plain = _first([each.results[0] for each in candidates], criterion)
    for words in changes[0]:
        if on_stage is not None:
            on_stage(f"if {words}", len(experiments), 1.0)
        changed = [each.changed(change[words]) for each, change in zip(experiments, changes, strict=True)]
        first = _first(scheduler.run_cached(changed), criterion)
        if first is not None:
            sentences.append(f"If {words}, {changed_answer([each.algorithm for each in candidates], plain, first)}.")
    return sentences


def changed_answer(names: Sequence[str], plain: int | None, changed: int) -> str:
    """A clause on the best after a change, if one seed has number `plain` as the best before and `changed` after it.

    >>> changed_answer(["a", "b"], plain=0, changed=1), changed_answer(["a", "b"], plain=1, changed=0)
    ('b would be the best (one seed)', 'a would still be the best (one seed)')
    >>> changed_answer(["a", "b"], plain=1, changed=1)
    'b also wins on this seed without the change'
    """
    if changed == 0:
        return f"{names[0]} would still be the best (one seed)"
    if changed == plain:
        return f"{names[changed]} also wins on this seed without the change"
    return f"{names[changed]} would be the best (one seed)"


def _first(results: Sequence[Result | RunFailure], criterion: Criterion) -> int | None:
    """The index of the best run; None if all failed."""
    scores = {
        number: criterion.score(each, criterion.at) for number, each in enumerate(results) if isinstance(each, Result)
    }
    return min(scores, key=lambda number: scores[number], default=None)
