"""Claims of papers, and the rule by which runs of ours agree with them or not."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from experiments.measurements import Measurement, by_seed
from offbeat.results.statistics import Estimate, difference, difference_text, speed_up, speed_up_text

Verdict = Literal["agrees", "same order, smaller gap", "does not reproduce here", "not yet run"]
Kind = Literal["better", "alike", "never"]
ENOUGH = 0.5
"""The share of the published gap that a gap of ours must have to agree."""

RULE = """\
Two methods are compared seed by seed: by the difference of an accuracy or of a training loss, or by the ratio of two
times. The verdict is about the median over the seeds and its 95 % bootstrap interval. **agrees**: the whole interval
lies on the side that the paper says, and the median is at least half of the published gap (where the paper gives one).
**same order, smaller gap**: the interval lies on that side, and the median is less than half of the gap. **does not
reproduce here**: the interval includes no difference, or lies on the other side. A claim that two are alike agrees if
the interval includes no difference, and one that a method never gets to its target agrees if no seed does."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One thing that a paper says of two methods in one part of a reproduction."""

    where: str
    """The paper's table, figure or section."""
    says: str
    part: str
    kind: Kind
    """better: `mine` is more accurate than `theirs`, or sooner at the target; alike: neither is; never: `mine` does not
    get to the target."""
    mine: str
    theirs: str = ""
    their_part: str = ""
    """The part of `theirs`, if it is another one."""
    gap: float | None = None
    """What is published: a difference of accuracies (0.2 is 20 points), or a ratio of times (1.2: theirs takes 1.2
    times as long); None if the paper gives no number."""
    measure: str = "final_accuracy"
    """The number that is compared: an accuracy, or `time_to_target`."""
    one_of: str = ""
    """What the claim is one of many of; an overview counts such claims and does not list them."""

    @property
    def about_time(self) -> bool:
        """Whether times are compared, by their ratio."""
        return self.measure == "time_to_target"

    @property
    def published(self) -> str:
        """The published gap in words."""
        if self.gap is None:
            return self.kind
        if self.about_time:
            return f"{self.gap:.2f} times as fast"
        return f"{self.gap:+.4f}" if self.measure == "training_loss" else f"{_points(self.gap)} points"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim with what was measured and the verdict."""

    claim: Claim
    verdict: Verdict
    measured: str
    seeds: int
    estimate: Estimate | None = None
    """The measured gap, where there is one."""


def judged(claim: Claim, measurements: Sequence[Measurement]) -> Judged:
    """Hold a claim against the runs."""
    if claim.kind == "never":
        return _judged_never(claim, measurements)
    mine = by_seed(measurements, claim.part, claim.mine, claim.measure)
    theirs = by_seed(measurements, claim.their_part or claim.part, claim.theirs, claim.measure)
    seeds = len(mine.keys() & theirs.keys())
    if seeds < 2:
        return Judged(claim=claim, verdict="not yet run", measured="-", seeds=seeds)
    none = 1.0 if claim.about_time else 0.0
    gap = speed_up(mine, theirs) if claim.about_time else difference(mine, theirs)
    if gap is None:
        return Judged(claim=claim, verdict="does not reproduce here", measured="neither gets there", seeds=seeds)
    write = "{:+.3f}".format if claim.measure == "training_loss" else _points
    text = speed_up_text(gap).replace("inf", "∞") if claim.about_time else difference_text(gap, write)
    if gap.seeds < seeds:
        text += f"; neither gets there with {seeds - gap.seeds} of {seeds} seeds"
    found: Verdict = verdict(gap, claim.gap, none=none)
    if claim.kind == "alike":
        found = "agrees" if gap.includes(none) else "does not reproduce here"
    return Judged(claim=claim, verdict=found, measured=text, seeds=seeds, estimate=gap)


def gap_text(
    measurements: Sequence[Measurement], mine: str, theirs: str, part: str, *, measure: str = "final_accuracy"
) -> str:
    """By how much a method is ahead of another, as it stands in a table of claims; empty if it is not yet run."""
    claim = Claim(where="", says="", part=part, kind="better", mine=mine, theirs=theirs, measure=measure)
    found = judged(claim, measurements)
    return "" if found.verdict == "not yet run" else found.measured


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _judged_never(claim: Claim, measurements: Sequence[Measurement]) -> Judged:
    times = by_seed(measurements, claim.part, claim.mine, "time_to_target")
    if len(times) < 2:
        return Judged(claim=claim, verdict="not yet run", measured="-", seeds=len(times))
    reached = sum(time < inf for time in times.values())
    text = f"{reached} of {len(times)} seeds get there"
    found: Verdict = "does not reproduce here" if reached else "agrees"
    return Judged(claim=claim, verdict=found, measured=text, seeds=len(times))


def verdict(measured: Estimate, gap: float | None, *, none: float) -> Verdict:
    """The rule for a gap that is positive beyond `none`, which is 0 for a difference and 1 for a ratio.

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
