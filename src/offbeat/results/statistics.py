"""Statistics over seeds: medians with ranges or 95 % intervals, and ratios and differences paired by seed.

A seed determines the partition, the fleet's random draws and the initial model, and all algorithms of a comparison
share it. Comparing two algorithms by pairs with the same seed removes the effect that the seed has on both.

From `FEWEST` seeds on, the interval is Student's t: of the logarithms for times and speed-ups, of the values themselves
for accuracies, losses and differences. It assumes that these spread about symmetrically; a simulation in
`tests/results/test_coverage.py` counts how often it includes the true median. A run that did not reach its target has
an infinite time. Then the interval is the exact one of the median between two order statistics, which assumes nothing
and needs 6 seeds. Of fewer seeds only the range is given, smallest to largest, which supports no claim beyond "on all n
seeds".
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from scipy.special import bdtr, stdtrit

from offbeat.core.errors import InvalidInput
from offbeat.results.result import Result

FEWEST = 5
"""Fewest seeds with an interval. With three, Student's interval covers 79 % if runs come in two kinds (stuck or not),
because all three are often of one kind; with five it covers 94 %."""
INTERVAL = "95 % interval"
TAIL = 0.025
"""The share of samples whose interval may lie above the true median, and of those whose interval may lie below it."""
Floats = np.typing.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A median over seeds with its 95 % interval or, of few seeds, its range; for a single seed from -inf to inf."""

    median: float
    low: float
    high: float
    seeds: int
    """Number of seeds."""
    is_range: bool = False
    """Whether `low` and `high` are the smallest and the largest value, for lack of seeds."""

    @property
    def word(self) -> str:
        """What `low` and `high` are, as tables, plots and pages call it."""
        return "range" if self.is_range else INTERVAL

    def includes(self, value: float) -> bool:
        """Whether the interval or range includes the value."""
        return self.low <= value <= self.high

    def excludes(self, value: float) -> bool:
        """Whether there is an interval, and it excludes the value: what a claim needs."""
        return not self.is_range and not self.includes(value)

    def remark(self, none: float) -> str:
        """What the seeds say against `none` (0 for a difference, 1 for a ratio), in words; empty if they decide.

        >>> median_of([1.5, 2.0, 1.8]).remark(1.0), median_of([0.9, 2.0, 1.8]).remark(1.0)
        ('on all 3 seeds', 'includes 1: not on all 3 seeds')
        >>> median_of([0.9, 2.0, 1.8, 1.7, 1.0], log=True).remark(1.0)
        'includes 1: not distinguishable with these seeds'
        """
        if self.seeds == 1:
            return "one seed"
        if not self.includes(none):
            return f"on all {self.seeds} seeds" if self.is_range else ""
        undecided = f"not on all {self.seeds} seeds" if self.is_range else "not distinguishable with these seeds"
        return f"includes {none:g}: {undecided}"

    def text(self, write: Callable[[float], str] = "{:.3g}".format, *, word: bool = True) -> str:
        """The median and its interval or range as text; `write` formats a number, `word` names a range as such.

        >>> median_of([1.0, 2.0, 4.0]).text(), median_of([1.0, 2.0, 3.0, 4.0, 5.0]).text(), median_of([2.0]).text()
        ('2 (range 1-4)', '3 (1.04-4.96)', '2 (one seed)')
        """
        if self.seeds == 1:
            return f"{write(self.median)} (one seed)"
        return (
            f"{write(self.median)} ({'range ' if word and self.is_range else ''}{write(self.low)}-{write(self.high)})"
        )


def words(seeds: Iterable[int]) -> str:
    """What is given of samples with these numbers of seeds, for the caption of a table or a plot.

    >>> words([3, 3]), words([5, 8]), words([3, 5])
    ('range', '95 % interval', 'range below 5 seeds, else 95 % interval')
    """
    several = [count for count in seeds if count > 1]
    if any(count < FEWEST for count in several):
        return "range" if max(several) < FEWEST else f"range below {FEWEST} seeds, else {INTERVAL}"
    return INTERVAL


def median_of(values: Iterable[float], *, log: bool = False) -> Estimate:
    """The median of the values, one per seed, with its interval or range; `log` for times and ratios.

    The logarithms of 1, 2, 4, 8 and 16 have mean ln 4 and standard deviation sqrt(2.5) ln 2 = 1.096. Student's quantile
    with 4 degrees of freedom is 2.776, so the interval is 4 divided and multiplied by exp(2.776 * 1.096 / sqrt(5)).

    >>> median_of([1.0, 2.0, 4.0, 8.0, 16.0], log=True).text()
    '4 (1.03-15.6)'
    """
    numbers = np.sort(np.array(list(values), dtype=np.float64))
    count = len(numbers)
    if count == 0 or np.isnan(numbers).any():
        raise InvalidInput(f"no median of {numbers.tolist()}")
    middle = numbers[(count - 1) // 2] / 2 + numbers[count // 2] / 2  # halves, because a sum could overflow
    if count == 1:
        return Estimate(median=middle.item(), low=-inf, high=inf, seeds=1)
    ends = _interval(numbers, log=log)
    low, high = ends or (numbers[0], numbers[-1])
    return Estimate(
        median=middle.item(),
        low=float(min(low, middle)),  # of seven seeds or more the mean may be further from the median than the ends
        high=float(max(high, middle)),
        seeds=count,
        is_range=ends is None,
    )


def _interval(numbers: Floats, *, log: bool) -> tuple[float, float] | None:
    """The 95 % interval of the median of sorted numbers; None of too few."""
    count = len(numbers)
    with np.errstate(divide="ignore"):
        scaled = np.log(numbers) if log else numbers
    if not np.isfinite(scaled).all():
        inner = sum(bdtr(left_out, count, 0.5) <= TAIL for left_out in range(count // 2))
        return (numbers[inner - 1], numbers[count - inner]) if inner else None
    if count < FEWEST:
        return None
    half = stdtrit(count - 1, 1 - TAIL) * scaled.std(ddof=1) / np.sqrt(count)
    low, high = scaled.mean() - half, scaled.mean() + half
    return (np.exp(low), np.exp(high)) if log else (low, high)


def seeds_to_exclude(values: Iterable[float], value: float, *, log: bool = False, most: int = 1000) -> int | None:
    """The estimated number of seeds with which the interval would exclude a value, if the spread stays as it is.

    Student's interval excludes it as soon as its half-width is below the distance from the mean, and the interval
    between order statistics if few enough of the values are on the other side. None of a single value, or if more than
    `most` seeds are needed.

    >>> seeds_to_exclude([1.0, 2.0, 3.0], 0.0), seeds_to_exclude([1.0, 2.0, 3.0], 1.5)
    (5, 18)
    >>> seeds_to_exclude([2.0, 3.0, inf, inf], 1.0, log=True), seeds_to_exclude([0.5, inf], 1.0, log=True)
    (6, None)
    """
    numbers = np.array(list(values), dtype=np.float64)
    with np.errstate(divide="ignore"):
        scaled, limit = (np.log(numbers), np.log(value)) if log else (numbers, value)
    if len(numbers) < 2:
        return None
    finite = bool(np.isfinite(scaled).all())
    beyond = min(np.mean(scaled <= limit), np.mean(scaled >= limit))
    for count in range(FEWEST, most + 1):
        if finite:
            half = stdtrit(count - 1, 1 - TAIL) * scaled.std(ddof=1) / np.sqrt(count)
            enough = half < abs(scaled.mean() - limit)
        else:
            enough = bdtr(np.floor(beyond * count), count, 0.5) <= TAIL
        if enough:
            return count
    return None


# Paired by seed ------------------------------------------------------------------------------------------------------


def by_seed(results: Iterable[Result], measure: Callable[[Result], float]) -> dict[int, float]:
    """The measure of each run, by seed."""
    return {result.seed: measure(result) for result in results}


def _shared(mine: Mapping[int, float], theirs: Mapping[int, float]) -> Sequence[int]:
    seeds = sorted(mine.keys() & theirs.keys())
    if not seeds:
        raise InvalidInput("the runs share no seed: compare runs with the same seeds")
    return seeds


def ratios(mine: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """`theirs` divided by `mine` for each seed.

    A seed with which only `mine` reached the target counts as infinite, one with which only `theirs` did as 0, and one
    with which neither did is left out.
    """
    pairs = [(theirs[seed], mine[seed]) for seed in _shared(mine, theirs)]
    return [_ratio(*pair) for pair in pairs if pair != (inf, inf)]


def speed_up(mine: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """The speed-up: the median over seeds of the `ratios`; None if neither reached the target with any seed."""
    found = ratios(mine, theirs)
    return median_of(found, log=True) if found else None


def _ratio(theirs: float, mine: float) -> float:
    if mine == 0:
        return 1.0 if theirs == 0 else inf
    return theirs / mine


def differences(mine: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """`mine` minus `theirs` for each seed. Equal values, infinite ones too, differ by 0."""
    pairs = ((mine[seed], theirs[seed]) for seed in _shared(mine, theirs))
    return [0.0 if one == other else one - other for one, other in pairs]


def difference(mine: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate:
    """The difference: the median over seeds of the `differences`."""
    return median_of(differences(mine, theirs))


def speed_up_text(estimate: Estimate | None) -> str:
    """A speed-up as text, with a remark if the interval or range includes 1.

    >>> speed_up_text(median_of([1.5, 2.0, 1.8])), speed_up_text(median_of([0.9, 2.0, 1.8]))
    ('1.80 (range 1.50-2.00)', '1.80 (range 0.90-2.00), includes 1')
    """
    if estimate is None:
        return "-"
    undecided = estimate.seeds > 1 and estimate.includes(1.0)
    return estimate.text("{:.2f}".format) + (", includes 1" if undecided else "")


def difference_text(estimate: Estimate, write: Callable[[float], str] = "{:+.3g}".format) -> str:
    """A difference as text, with a remark if the interval or range includes 0.

    >>> difference_text(median_of([0.01, 0.02, -0.01]))
    '+0.01 (range -0.01 to +0.02), includes 0'
    """
    if estimate.seeds == 1:
        return estimate.text(write)
    word = "range " if estimate.is_range else ""
    text = f"{write(estimate.median)} ({word}{write(estimate.low)} to {write(estimate.high)})"
    return text + (", includes 0" if estimate.includes(0.0) else "")
