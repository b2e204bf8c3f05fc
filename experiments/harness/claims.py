"""Claims about pairs of methods, and the verdict that our runs give on each."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from math import inf, isfinite
from typing import Any, Literal

from experiments.harness.measurements import Measurement, by_seed
from offbeat.results.statistics import Estimate, difference, difference_text, speed_up, speed_up_text

Verdict = Literal["agrees", "same order, smaller gap", "does not reproduce here", "not yet run", "no claim"]
VERDICTS: tuple[Verdict, ...] = ("agrees", "same order, smaller gap", "does not reproduce here", "not yet run")
"""The verdicts on a claim, as the overview counts them."""
Kind = Literal["better", "alike", "never", "measured"]
Published = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Published values by part, method and measure."""
ENOUGH = 0.5
"""The smallest share of the published gap with which a measured gap agrees."""

RULE = """\
Two methods are compared seed by seed: by the difference of their accuracies or training losses, or by the ratio of
their times to the target. The verdict is on the median over seeds and its 95 % bootstrap interval. **agrees**: the
interval is on the published side, and the median is at least half of the published gap, if there is one. **same order,
smaller gap**: it is less than half. **does not reproduce here**: the interval includes no difference, or is on the
other side. *Alike* agrees if the interval includes no difference, *never* if no seed reaches the target."""


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


def judged(claim: Claim, measurements: Sequence[Measurement]) -> Judged:
    """Compare a claim with the measurements, by RULE."""
    if claim.kind == "never":
        return _judged_never(claim, measurements)
    mine = by_seed(measurements, claim.part, claim.mine, claim.measure)
    theirs = by_seed(measurements, claim.their_part or claim.part, claim.theirs, claim.measure)
    seeds = len(mine.keys() & theirs.keys())
    if seeds < 2:
        return Judged(claim=claim, verdict="not yet run", measured="-", seeds=seeds)
    found: Verdict
    none = 1.0 if claim.about_time else 0.0
    gap = speed_up(mine, theirs) if claim.about_time else difference(mine, theirs)
    if gap is None:
        found = "no claim" if claim.kind == "measured" else "does not reproduce here"
        return Judged(claim=claim, verdict=found, measured="neither reaches it", seeds=seeds)
    write = "{:+.3f}".format if claim.measure == "training_loss" else _points
    text = speed_up_text(gap).replace("inf", "∞") if claim.about_time else difference_text(gap, write)
    if gap.seeds < seeds:
        text += f"; neither reaches it with {seeds - gap.seeds} of {seeds} seeds"
    if claim.kind == "measured":
        found = "no claim"
    elif claim.kind == "alike":
        found = "agrees" if gap.includes(none) else "does not reproduce here"
    else:
        found = verdict(gap, claim.gap, none=none)
    return Judged(claim=claim, verdict=found, measured=text, seeds=seeds, estimate=gap)


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _judged_never(claim: Claim, measurements: Sequence[Measurement]) -> Judged:
    times = by_seed(measurements, claim.part, claim.mine, "time_to_target")
    if len(times) < 2:
        return Judged(claim=claim, verdict="not yet run", measured="-", seeds=len(times))
    reached = sum(time < inf for time in times.values())
    text = f"{reached} of {len(times)} seeds reach it"
    found: Verdict = "does not reproduce here" if reached else "agrees"
    return Judged(claim=claim, verdict=found, measured=text, seeds=len(times))


def verdict(measured: Estimate, gap: float | None, *, none: float) -> Verdict:
    """Judge a gap that should exceed `none`, which is 0 for a difference and 1 for a ratio.

    >>> from offbeat.results.statistics import median_of
    >>> verdict(median_of([0.18, 0.2, 0.3]), 0.25, none=0.0), verdict(median_of([0.02, 0.03, 0.04]), 0.25, none=0.0)
    ('agrees', 'same order, smaller gap')
    >>> verdict(median_of([-0.01, 0.2, 0.3]), 0.25, none=0.0)
    'does not reproduce here'
    """
    if not measured.low > none:
        return "does not reproduce here"
    if gap is None or measured.median - none >= ENOUGH * (gap - none):
        return "agrees"
    return "same order, smaller gap"
