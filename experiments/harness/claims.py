"""Claims about pairs of methods, and the verdict that our runs give on each."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from math import inf, isfinite
from typing import Any, Literal

from experiments.harness.measurements import Measurement, by_seed
from offbeat.results.statistics import (
    FEWEST,
    Estimate,
    difference_text,
    differences,
    median_of,
    ratios,
    seeds_to_exclude,
    speed_up_text,
)

Verdict = Literal["agrees", "contradicts", "undecided", "not yet run", "no claim"]
VERDICTS: tuple[Verdict, ...] = ("agrees", "contradicts", "undecided", "not yet run")
"""The verdicts on a claim, as the overview counts them."""
Kind = Literal["better", "alike", "never", "measured"]
Published = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Published values by part, method and measure."""
ENOUGH = 0.5
"""The share of the published gap that a measured gap must exceed to agree."""
ALIKE = {"time_to_target": 0.1, "training_loss": 0.02}
"""The largest difference of times (as a share), losses and accuracies that still counts as alike."""
ALIKE_ACCURACY = 0.01

RULE = f"""\
Methods are compared seed by seed, by differences of accuracies or losses, or ratios of times to the target. The 95 %
interval of the median decides against a margin, half of the published gap (or no difference).
**agrees**: the interval lies above the margin. **contradicts**: below it. **undecided**: it includes the margin, or
there are fewer than {FEWEST} seeds (with times that are never reached, 6). *Alike* agrees if the interval lies within
10 % of the time, 1 point or a loss of 0.02; *never* agrees if no seed reaches the target. *Seeds to decide* is an
estimate."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement about two methods in one part of a study."""

    where: str
    """The table, figure or section of the paper; empty if the comparison is ours."""
    says: str
    part: str
    kind: Kind = "better"
    """better: `mine` is more accurate than `theirs`, or faster to the target; alike: neither is; never: `mine` does not
    reach the target; measured: nothing is claimed and the gap is only reported."""
    mine: str
    theirs: str = ""
    their_part: str = ""
    """The part of `theirs`, if it differs."""
    gap: float | None = None
    """The published difference of accuracies (0.2 is 20 points) or ratio of times (1.2: `theirs` takes 1.2 times as
    long); None if the paper gives no number."""
    measure: str = "final_accuracy"
    headline: bool = False
    """Whether the page and the figure of the study show the claim; its table has all of them."""
    top: bool = False
    """Whether the overview lists the claim, as one of the dozen that the papers stand for."""

    @property
    def about_time(self) -> bool:
        """Whether times to the target are compared, by their ratio."""
        return self.measure == "time_to_target"

    @property
    def published(self) -> str:
        """The published gap in words."""
        if self.kind == "measured":
            return "-"
        if self.gap is None:
            return self.kind
        if self.about_time:
            return f"{self.gap:.2f} times as fast"
        return f"{self.gap:+.4f}" if self.measure == "training_loss" else f"{_points(self.gap)} points"


def read_claims(entries: Iterable[Mapping[str, Any]], published: Published) -> Iterator[Claim]:
    """Make the claims of a TOML file.

    An entry has the fields of a claim, and stands for one claim per combination of the lists in its `for_each`. Names
    in braces are replaced in every text. The published gap is `gap`, or follows from `values` (of `mine` and of
    `theirs`), from `time_saved` (a share of the time of `theirs`), or from the published values of the two methods.

    >>> entry = {"for_each": {"theirs": ["B", "C"]}, "where": "Fig. 1", "says": "A beats {theirs}", "part": "p",
    ...          "mine": "A"}
    >>> [(claim.says, claim.gap) for claim in read_claims([entry], {"p": {"A": {"final_accuracy": 0.75},
    ...                                                                  "B": {"final_accuracy": 0.5}}})]
    [('A beats B', 0.25), ('A beats C', None)]
    """
    names = {field.name for field in fields(Claim)}
    for entry in entries:
        own = {key: value for key, value in entry.items() if key != "for_each"}
        choices: Mapping[str, Sequence[str]] = entry.get("for_each", {})
        for values in product(*choices.values()):
            chosen = dict(zip(choices, values, strict=True))
            words = own | chosen
            filled = {key: value.format(**words) if isinstance(value, str) else value for key, value in own.items()}
            claim = {key: value for key, value in chosen.items() if key in names} | filled
            yield _with_gap(claim, published)


def _with_gap(claim: dict[str, Any], published: Published) -> Claim:
    values, saved = claim.pop("values", None), claim.pop("time_saved", None)
    if saved is not None:
        values = 1 - saved, 1.0
    made = Claim(**claim)
    if values is None and made.gap is None and made.kind == "better":
        mine = published.get(made.part, {}).get(made.mine, {})
        theirs = published.get(made.their_part or made.part, {}).get(made.theirs, {})
        if made.measure in mine and made.measure in theirs:
            values = mine[made.measure], theirs[made.measure]
    if values is None:
        return made
    gap = values[1] / values[0] if made.about_time else values[0] - values[1]
    return Claim(**claim | {"gap": gap if isfinite(gap) else None})


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim with the measured gap and the verdict."""

    claim: Claim
    verdict: Verdict
    measured: str
    seeds: int
    estimate: Estimate | None = None
    """The measured gap; None if it has no number."""
    needed: int | None = None
    """Estimated number of seeds that would decide; None if it is decided, or if no number would."""

    @property
    def needed_text(self) -> str:
        """The number of seeds to decide, for a table."""
        if self.verdict != "undecided":
            return "-"
        return "over 1,000" if self.needed is None else str(self.needed)


def judged(claim: Claim, measurements: Sequence[Measurement]) -> Judged:
    """Compare a claim with the measurements, by RULE."""
    if claim.kind == "never":
        return _judged_never(claim, measurements)
    mine = by_seed(measurements, claim.part, claim.mine, claim.measure)
    theirs = by_seed(measurements, claim.their_part or claim.part, claim.theirs, claim.measure)
    seeds = len(mine.keys() & theirs.keys())
    if seeds < 2:
        return Judged(claim=claim, verdict="not yet run", measured="-", seeds=seeds)
    gaps = (ratios if claim.about_time else differences)(mine, theirs)
    if not gaps:
        never: Verdict = "no claim" if claim.kind == "measured" else "undecided"
        return Judged(claim=claim, verdict=never, measured="neither reaches it", seeds=seeds)
    gap = median_of(gaps, log=claim.about_time)
    write = "{:+.3f}".format if claim.measure == "training_loss" else _points
    text = speed_up_text(gap).replace("inf", "∞") if claim.about_time else difference_text(gap, write)
    if gap.seeds < seeds:
        text += f"; neither reaches it with {seeds - gap.seeds} of {seeds} seeds"
    if claim.kind == "measured":
        return Judged(claim=claim, verdict="no claim", measured=text, seeds=seeds, estimate=gap)
    found = verdict(gap, margins(claim), alike=claim.kind == "alike")
    needed = None
    if found == "undecided":
        estimates = [seeds_to_exclude(gaps, margin, log=claim.about_time) for margin in margins(claim)]
        needed = None if None in estimates else max(each for each in estimates if each is not None)
    return Judged(claim=claim, verdict=found, measured=text, seeds=seeds, estimate=gap, needed=needed)


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def margins(claim: Claim) -> list[float]:
    """The margin that the measured gap must exceed, or the two between which it is alike."""
    none = 1.0 if claim.about_time else 0.0
    if claim.kind != "alike":
        return [none if claim.gap is None else none + ENOUGH * (claim.gap - none)]
    width = ALIKE.get(claim.measure, ALIKE_ACCURACY)
    return [1 / (1 + width), 1 + width] if claim.about_time else [-width, width]


def verdict(measured: Estimate, limits: Sequence[float], *, alike: bool = False) -> Verdict:
    """Judge a measured gap against its margin or, if `alike`, its two margins.

    >>> five = median_of([0.18, 0.2, 0.3, 0.22, 0.25])  # the interval is 0.17 to 0.29
    >>> verdict(five, [0.1]), verdict(five, [0.2]), verdict(five, [0.3]), verdict(five, [0.1, 0.3], alike=True)
    ('agrees', 'undecided', 'contradicts', 'agrees')
    """
    if not all(measured.excludes(limit) for limit in limits):
        return "undecided"
    if not alike:
        return "agrees" if measured.low > limits[0] else "contradicts"
    return "agrees" if limits[0] < measured.low and measured.high < limits[1] else "contradicts"


def _judged_never(claim: Claim, measurements: Sequence[Measurement]) -> Judged:
    times = by_seed(measurements, claim.part, claim.mine, "time_to_target")
    if len(times) < 2:
        return Judged(claim=claim, verdict="not yet run", measured="-", seeds=len(times))
    reached = sum(time < inf for time in times.values())
    text = f"{reached} of {len(times)} seeds reach it"
    enough: Verdict = "agrees" if len(times) >= FEWEST else "undecided"
    needed = None if reached or enough == "agrees" else FEWEST
    return Judged(
        claim=claim, verdict="contradicts" if reached else enough, measured=text, seeds=len(times), needed=needed
    )
