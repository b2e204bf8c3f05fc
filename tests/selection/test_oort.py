"""Oort's scores, cut-off, exploration and pacer, worked out by hand."""

from math import log, sqrt

import numpy as np
import pytest

from offbeat.algorithms import FedAvg
from offbeat.selection import Oort
from offbeat.selection.oort import OortState
from offbeat.testing import ScriptedSession

ALL = np.array([0, 1, 2], dtype=np.int32)


def state_of(utility: list[float], seconds: list[float], rounds: list[int], percentile: float = 10.0) -> OortState:
    return OortState(
        utility=np.array(utility),
        seconds=np.array(seconds),
        round=np.array(rounds),
        by_score=np.zeros(len(utility), dtype=bool),
        exploration=0.9,
        percentile=percentile,
    )


def test_score_is_normalised_utility_plus_uncertainty_with_a_penalty_for_slow_devices() -> None:
    # U = 10, 20, 50: U_min = .999 x 10 = 9.99, range 40.01. Durations 1, 2, 8: T = 2, the value at int(3 x .5) = 1.
    # t = 5. Device 2: (1 + sqrt(.1 ln 5 / 4)) (2 / 8)^2.
    state = state_of([10.0, 20.0, 50.0, np.nan], [1.0, 2.0, 8.0, np.nan], [1, 2, 4, 1], percentile=50.0)
    uncertain = 0.1 * log(5)
    expected = [
        0.01 / 40.01 + sqrt(uncertain / 1),
        10.01 / 40.01 + sqrt(uncertain / 2),
        (1.0 + sqrt(uncertain / 4)) / 16,
    ]
    np.testing.assert_allclose(Oort().scores(ALL, state, now=5), expected)


def test_utilities_above_the_quantile_are_clipped_and_all_durations_may_be_preferred() -> None:
    # The quantile .5 of 10, 20, 50 is 20. In round 1, ln 1 = 0: no uncertainty. The range is still that of all.
    state = state_of([10.0, 20.0, 50.0], [1.0, 2.0, 8.0], [1, 1, 1], percentile=100.0)
    np.testing.assert_allclose(Oort(clip=0.5).scores(ALL, state, now=1), [0.01 / 40.01, 10.01 / 40.01, 10.01 / 40.01])


def test_only_devices_above_the_cut_off_are_drawn_in_proportion_to_their_scores() -> None:
    # U = 10, 80, 100 in round 1: scores .01 / 90.01, 70.01 / 90.01 = .778 and 1. The cut-off of one pick is .7 x 1.
    state = state_of([10.0, 80.0, 100.0], [1.0, 1.0, 1.0], [1, 1, 1], percentile=100.0)
    view = ScriptedSession(FedAvg(cohort=1), selector=Oort())._selection
    assert view is not None
    picks = [Oort().exploit(1, ALL, state, view)[0] for _ in range(400)]
    assert set(picks) == {1, 2} and 0.5 < picks.count(2) / 400 < 0.63  # 1 / 1.778 = .5625
    assert {Oort(cut_off=0.8).exploit(1, ALL, state, view)[0] for _ in range(20)} == {2}
    assert sorted(Oort(cut_off=0.8).exploit(2, ALL, state, view)) == [1, 2]


def pacer(history: list[float], percentile: float = 10.0) -> float:
    """The percentile after rounds in which one device picked by score brought these utilities."""
    selector, state = Oort(pacer_rounds=2), state_of([1.0], [1.0], [1], percentile)
    for utility in history:
        state.gained = [utility]
        selector.pace(state)
    return state.percentile


def test_the_pacer_relaxes_when_utility_is_flat_and_tightens_when_it_jumps() -> None:
    assert pacer([4, 4, 4]) == 10.0  # it compares two spans of two rounds: not yet
    assert pacer([4, 4, 4, 4.75]) == 15.0  # 8 and 8.75: less than 10 % more
    assert pacer([4, 4, 6, 6]) == 10.0  # 8 and 12
    assert pacer([1, 1, 6, 6]) == 5.0  # 2 and 12: five times 2 more
    assert pacer([1, 1, 6, 6], percentile=5.0) == 5.0  # never below one step
    assert pacer([4, 4, 4, 4, 4, 4], percentile=98.0) == 100.0  # and never above all


def test_exploration_prefers_devices_with_many_samples_and_decays_with_every_version() -> None:
    session = ScriptedSession(FedAvg(cohort=1), samples=[1, 1, 1000, 1], selector=Oort(window=1.0))
    assert session.first.ordered == [2]  # a window of one device: the one with the most samples
    session.upload(loss=1.0)
    assert session.snapshot().selection is not None
    assert session.snapshot().selection.state.exploration == pytest.approx(0.9 * 0.95)  # type: ignore[union-attr]


def test_orders_ask_for_squared_losses_unless_the_mean_is_enough() -> None:
    for selector, asked in ((Oort(), True), (Oort(loss="mean"), False)):
        session = ScriptedSession(FedAvg(cohort=1), selector=selector)
        assert session.first.orders[0].order.squared_loss is asked


def test_a_loss_that_is_not_finite_counts_as_no_utility() -> None:
    session = ScriptedSession(FedAvg(cohort=1), devices=1, selector=Oort())
    session.upload(loss=float("nan"))
    saved = session.snapshot().selection
    assert saved is not None and saved.state.utility.tolist() == [0.0]
