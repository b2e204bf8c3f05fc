"""Statistics over seeds: medians with bootstrap intervals, and ratios and differences paired by seed.

A seed determines the partition, the fleet's random draws and the initial model, and all algorithms of a comparison
share it. Comparing two algorithms by pairs with the same seed removes the effect that the seed has on both. Results are
deterministic: up to `MOST_ENUMERATED` values all resamples are enumerated, of more they are drawn from a fixed stream.

A run that did not reach its target has an infinite time, which medians and intervals accept.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import floor, inf

import numpy as np

from offbeat.core.errors import InvalidInput
from offbeat.core.streams import stream
from offbeat.results.result import Result

LEVEL = 0.95
"""The share of the resampled medians within an interval."""
MOST_ENUMERATED = 6
"""Most values for which all resamples are enumerated (6^6 = 46,656)."""
DRAWN = 20_000
"""Number of resamples that are drawn of more values."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A median over seeds and its bootstrap interval; for a single seed the interval is from -inf to inf."""

    median: float
    low: float
    high: float
    seeds: int
    """Number of seeds."""

    def includes(self, value: float) -> bool:
        """Whether the interval includes the value."""
        return self.low <= value <= self.high

    def text(self, write: Callable[[float], str] = "{:.3g}".format) -> str:
        """The median and its interval as text; `write` formats a number.

        >>> median_of([1.0, 2.0, 4.0]).text(), median_of([2.0]).text()
        ('2 (1-4)', '2 (one seed)')
        """
        if self.seeds == 1:
            return f"{write(self.median)} (one seed)"
        return f"{write(self.median)} ({write(self.low)}-{write(self.high)})"


def median_of(values: Iterable[float], level: float = LEVEL) -> Estimate:
    """The median of the values, one per seed, with its percentile bootstrap interval.

    The same number of resampled medians is left out at both ends, rounded down. Nothing is interpolated, so values may
    be infinite.
    """
    numbers = np.sort(np.array(list(values), dtype=np.float64))
    count = len(numbers)
    if count == 0 or np.isnan(numbers).any():
        raise InvalidInput(f"no median of {numbers.tolist()}")
    if count == 1:
        return Estimate(median=numbers.item(), low=-inf, high=inf, seeds=1)
    medians = np.sort(_medians(numbers[_resamples(count)]))
    out = floor((1 - level) / 2 * len(medians))
    return Estimate(
        median=_medians(numbers[None]).item(),
        low=medians[out].item(),
        high=medians[len(medians) - 1 - out].item(),
        seeds=count,
    )


def _resamples(count: int) -> np.typing.NDArray[np.int64]:
    """The indices of the values in each resample, sorted within it."""
    if count <= MOST_ENUMERATED:
        indices = np.array(list(product(range(count), repeat=count)))
    else:
        indices = stream(0, "bootstrap", count).integers(count, size=(DRAWN, count))
    return np.sort(indices, axis=1)


def _medians(rows: np.typing.NDArray[np.float64]) -> np.typing.NDArray[np.float64]:
    """The median of each sorted row. Halves are added, because the sum of two numbers could overflow."""
    middle = rows.shape[1] // 2
    upper = rows[:, middle]
    lower = upper if rows.shape[1] % 2 else rows[:, middle - 1]
    return lower / 2 + upper / 2


# Paired by seed ------------------------------------------------------------------------------------------------------


def by_seed(results: Iterable[Result], measure: Callable[[Result], float]) -> dict[int, float]:
    """The measure of each run, by seed."""
    return {result.seed: measure(result) for result in results}


def _shared(mine: Mapping[int, float], theirs: Mapping[int, float]) -> Sequence[int]:
    seeds = sorted(mine.keys() & theirs.keys())
    if not seeds:
        raise InvalidInput("the runs share no seed: compare runs with the same seeds")
    return seeds


def speed_up(mine: Mapping[int, float], theirs: Mapping[int, float], level: float = LEVEL) -> Estimate | None:
    """The speed-up: the median over seeds of `theirs` divided by `mine`.

    A seed with which only `mine` reached the target counts as infinite, one with which only `theirs` did as 0, and one
    with which neither did is left out; None if no seed is left.
    """
    pairs = [(theirs[seed], mine[seed]) for seed in _shared(mine, theirs)]
    ratios = [_ratio(*pair) for pair in pairs if pair != (inf, inf)]
    return median_of(ratios, level) if ratios else None


def _ratio(theirs: float, mine: float) -> float:
    if mine == 0:
        return 1.0 if theirs == 0 else inf
    return theirs / mine


def difference(mine: Mapping[int, float], theirs: Mapping[int, float], level: float = LEVEL) -> Estimate:
    """The difference: the median over seeds of `mine` minus `theirs`.

    Equal values, infinite ones too, differ by 0.
    """
    pairs = ((mine[seed], theirs[seed]) for seed in _shared(mine, theirs))
    return median_of((0.0 if one == other else one - other for one, other in pairs), level)


def speed_up_text(estimate: Estimate | None) -> str:
    """A speed-up as text, with a remark if the interval includes 1.

    >>> speed_up_text(median_of([1.5, 2.0, 1.8])), speed_up_text(median_of([0.9, 2.0, 1.8]))
    ('1.80 (1.50-2.00)', '1.80 (0.90-2.00), includes 1')
    """
    if estimate is None:
        return "-"
    undecided = estimate.seeds > 1 and estimate.includes(1.0)
    return estimate.text("{:.2f}".format) + (", includes 1" if undecided else "")


def difference_text(estimate: Estimate, write: Callable[[float], str] = "{:+.3g}".format) -> str:
    """A difference as text, with a remark if the interval includes 0.

    >>> difference_text(median_of([0.01, 0.02, -0.01]))
    '+0.01 (-0.01 to +0.02), includes 0'
    """
    if estimate.seeds == 1:
        return estimate.text(write)
    text = f"{write(estimate.median)} ({write(estimate.low)} to {write(estimate.high)})"
    return text + (", includes 0" if estimate.includes(0.0) else "")
