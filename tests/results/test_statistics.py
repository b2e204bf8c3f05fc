"""What several seeds say together: numbers worked out by hand, and what holds for any numbers."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.core.errors import InvalidInput
from offbeat.results.statistics import (
    Estimate,
    difference,
    difference_text,
    median_of,
    speed_up,
    speed_up_text,
)

Values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9)


def estimate(median: float, low: float, high: float, seeds: int) -> Estimate:
    return Estimate(median=median, low=low, high=high, seeds=seeds)


def test_the_interval_of_three_seeds_goes_from_the_lowest_to_the_highest() -> None:
    """Of 27 resamples 7 have the median 1 (111, and 3 places for each of a 2 or a 4): more than 2.5 % of 27 = 0.675."""
    assert median_of([4.0, 1.0, 2.0]) == estimate(2.0, 1.0, 4.0, 3)


def test_at_a_lower_level_the_interval_of_three_seeds_is_its_middle() -> None:
    """40 % leaves out 30 % of 27 = 8.1 at each end, so 8, among them the 7 resamples with median 1: the 9th is 2."""
    assert median_of([4.0, 1.0, 2.0], level=0.4) == estimate(2.0, 2.0, 2.0, 3)
    assert median_of([4.0, 1.0, 2.0], level=0.6) == estimate(2.0, 1.0, 4.0, 3)  # 20 % of 27 = 5.4 < 7
    # Nothing is drawn: exactly 7 resamples have the median 1, and as many the median 4.
    assert median_of([4.0, 1.0, 2.0], level=1 - 2 * 6.99 / 27).low == 1.0
    assert median_of([4.0, 1.0, 2.0], level=1 - 2 * 7.01 / 27).low == 2.0


def test_of_four_seeds_the_median_is_the_mean_of_the_two_in_the_middle() -> None:
    """256 resamples, 2.5 % are 6.4. Median 0 needs three 0s: 4 x 3 + 1 = 13 resamples, so the 7th is still 0."""
    assert median_of([0.0, 2.0, 4.0, 10.0]) == estimate(3.0, 0.0, 10.0, 4)


def test_with_seven_seeds_a_single_lowest_one_is_left_out() -> None:
    """The median is the lowest with probability P(Bin(7, 1/7) >= 4) = 1.0 % < 2.5 %, the next with P(Bin(7, 2/7) >= 4)
    = 10 %. So the interval goes from the second to the last but one."""
    assert median_of(range(7)) == estimate(3.0, 1.0, 5.0, 7)


def test_a_seed_that_never_reached_the_target_has_an_infinite_time() -> None:
    assert median_of([1.0, 2.0, inf]) == estimate(2.0, 1.0, inf, 3)
    assert median_of([1.0, 2.0, inf, inf]) == estimate(inf, 1.0, inf, 4)


def test_one_seed_has_no_interval() -> None:
    one = median_of([5.0])
    assert one.includes(0.0) and one.includes(1e9)
    assert one.text() == "5 (one seed)"
    assert speed_up_text(median_of([2.0])) == "2.00 (one seed)"


@pytest.mark.parametrize("values", [[], [1.0, float("nan")]])
def test_there_is_no_median_of_nothing(values: list[float]) -> None:
    with pytest.raises(InvalidInput, match="no median"):
        median_of(values)


@given(Values)
def test_the_interval_holds_the_median_and_depends_on_nothing_but_the_values(values: list[float]) -> None:
    found = median_of(values)
    assert found.low <= found.median <= found.high
    assert found == median_of(values[::-1])


@given(Values)
def test_intervals_are_symmetric(values: list[float]) -> None:
    """Exactly where all resamples are looked at: those of the values with another sign are the same, reversed."""
    found, mirrored = median_of(values[:6]), median_of([-value for value in values[:6]])
    assert (mirrored.median, mirrored.low, mirrored.high) == (-found.median, -found.high, -found.low)


def test_a_speed_up_is_paired_by_seed() -> None:
    """Ratios 20/10, 30/20 and 80/20: 2, 1.5 and 4. Unpaired, the medians would say 30 / 20 = 1.5."""
    mine, theirs = {0: 10.0, 1: 20.0, 2: 20.0, 7: 1.0}, {0: 20.0, 1: 30.0, 2: 80.0}
    found = speed_up(mine, theirs)
    assert found == estimate(2.0, 1.5, 4.0, 3)
    assert speed_up_text(found) == "2.00 (1.50-4.00)"


def test_a_speed_up_whose_interval_includes_1_is_printed_as_such() -> None:
    found = speed_up({0: 10.0, 1: 10.0, 2: 10.0}, {0: 9.0, 1: 15.0, 2: 20.0})
    assert speed_up_text(found) == "1.50 (0.90-2.00), includes 1"


def test_seeds_with_which_nobody_reached_the_target_say_nothing() -> None:
    assert speed_up({0: inf, 1: 2.0}, {0: inf, 1: 4.0}) == estimate(2.0, -inf, inf, 1)
    assert speed_up({0: inf}, {0: inf}) is None
    assert speed_up_text(None) == "-"
    assert speed_up({0: inf, 1: 2.0}, {0: 5.0, 1: inf}) == estimate(inf, 0.0, inf, 2)
    assert speed_up({0: 0.0, 1: 0.0}, {0: 0.0, 1: 3.0}) == estimate(inf, 1.0, inf, 2)


def test_runs_without_a_common_seed_cannot_be_paired() -> None:
    with pytest.raises(InvalidInput, match="share no seed"):
        speed_up({0: 1.0}, {1: 1.0})


def test_a_difference_is_paired_by_seed() -> None:
    found = difference({0: 0.9, 1: 0.8, 2: 0.7}, {0: 0.5, 1: 0.7, 2: 0.7})
    assert (round(found.median, 9), found.low, round(found.high, 9)) == (0.1, 0.0, 0.4)
    both = difference({0: inf, 1: 2.0, 2: 3.0}, {0: inf, 1: 1.0, 2: 1.0})  # two that diverged alike differ by nothing
    assert (both.low, both.median, both.high) == (0.0, 1.0, 2.0)
    assert difference_text(found) == "+0.1 (+0 to +0.4), includes 0"


def test_a_difference_of_two_seeds_has_an_interval_and_of_one_has_none() -> None:
    assert difference_text(median_of([0.02, 0.04])) == "+0.03 (+0.02 to +0.04)"
    assert difference_text(median_of([0.02])) == "+0.02 (one seed)"
