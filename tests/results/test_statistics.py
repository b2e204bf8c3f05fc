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


def estimate(median: float, low: float, high: float, seeds: int, *, is_range: bool = True) -> Estimate:
    return Estimate(median=median, low=low, high=high, seeds=seeds, is_range=is_range)


def test_of_fewer_than_five_seeds_the_range_is_given() -> None:
    assert median_of([4.0, 1.0, 2.0]) == estimate(2.0, 1.0, 4.0, 3)
    assert median_of([0.0, 2.0, 4.0, 10.0], log=True) == estimate(3.0, 0.0, 10.0, 4)
    assert median_of([4.0, 1.0, 2.0]).word == "range"


def test_of_five_seeds_the_interval_is_students() -> None:
    """0 to 4: mean 2, standard deviation sqrt(2.5); 2.7764 sqrt(2.5 / 5) = 1.9632."""
    found = median_of(range(5))
    assert (found.median, found.seeds, found.word) == (2.0, 5, "95 % interval")
    assert (found.low, found.high) == pytest.approx((0.0368, 3.9632), abs=1e-4)


def test_the_interval_of_times_that_may_be_never_is_between_order_statistics() -> None:
    """Both ends of six seeds miss the median with probability 2 / 64 = 3.1 %; of five with 2 / 32 = 6.3 %, too much.
    Of nine the second and the eighth miss it with 2 (1 + 9) / 512 = 3.9 %, and the third with 2 (1 + 9 + 36) / 512."""
    assert median_of([1.0, 2.0, 3.0, 4.0, inf], log=True) == estimate(3.0, 1.0, inf, 5)
    assert median_of([1.0, 2.0, 3.0, 4.0, 5.0, inf], log=True) == estimate(3.5, 1.0, inf, 6, is_range=False)
    nine = [*map(float, range(1, 9)), inf]
    assert median_of(nine, log=True) == estimate(5.0, 2.0, 8.0, 9, is_range=False)
    assert median_of([0.0, *nine[:-1]], log=True) == estimate(4.0, 1.0, 7.0, 9, is_range=False)  # 0 has no logarithm
    assert median_of([1.0, 2.0, inf, inf]) == estimate(inf, 1.0, inf, 4)


def test_a_range_decides_nothing() -> None:
    """All of three seeds are faster: a range that excludes 1. The same ratios over six seeds are an interval."""
    few, many = median_of([1.5, 1.8, 2.0], log=True), median_of(2 * [1.5, 1.8, 2.0], log=True)
    assert not few.includes(1.0) and not few.excludes(1.0) and few.remark(1.0) == "on all 3 seeds"
    assert many.excludes(1.0) and many.remark(1.0) == ""
    assert not many.excludes(1.8) and median_of([0.5, 2.0]).remark(1.0) == "includes 1: not on all 2 seeds"


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
    found, mirrored = median_of(values), median_of([-value for value in values])
    near = pytest.approx((-found.median, -found.high, -found.low), rel=1e-9, abs=1e-9)
    assert (mirrored.median, mirrored.low, mirrored.high) == near


def test_a_speed_up_is_paired_by_seed() -> None:
    """Ratios 20/10, 30/20 and 80/20: 2, 1.5 and 4. Unpaired, the medians would say 30 / 20 = 1.5."""
    mine, theirs = {0: 10.0, 1: 20.0, 2: 20.0, 7: 1.0}, {0: 20.0, 1: 30.0, 2: 80.0}
    found = speed_up(mine, theirs)
    assert found == estimate(2.0, 1.5, 4.0, 3)
    assert speed_up_text(found) == "2.00 (range 1.50-4.00)"


def test_a_speed_up_whose_range_includes_1_is_printed_as_such() -> None:
    found = speed_up({0: 10.0, 1: 10.0, 2: 10.0}, {0: 9.0, 1: 15.0, 2: 20.0})
    assert speed_up_text(found) == "1.50 (range 0.90-2.00), includes 1"


def test_seeds_with_which_nobody_reached_the_target_say_nothing() -> None:
    assert speed_up({0: inf, 1: 2.0}, {0: inf, 1: 4.0}) == estimate(2.0, -inf, inf, 1, is_range=False)
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
    assert difference_text(found) == "+0.1 (range +0 to +0.4), includes 0"


def test_a_difference_of_two_seeds_has_a_range_and_of_one_has_none() -> None:
    assert difference_text(median_of([0.02, 0.04])) == "+0.03 (range +0.02 to +0.04)"
    assert difference_text(median_of([0.02])) == "+0.02 (one seed)"
