"""Robust rules: golden numbers by hand, and what holds for any numbers."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.algorithms import FedASMU, FedAsync, FedAvg, FedBuff
from offbeat.core.combining import Combiner, Contributions, Floats
from offbeat.core.snapshot import decode, encode
from offbeat.testing import ScriptedSession
from offbeat.testing.toy import toy_simulation
from offbeat.trust.filters import AsyncFilter, Throttle, outlying
from offbeat.trust.robust import (
    Bucketing,
    CentredClipping,
    CoordinateMedian,
    Krum,
    MultiKrum,
    TrimmedMean,
    krum_scores,
)
from offbeat.trust.settings import COMBINERS
from offbeat.trust.trusted import AflGuard, TrustedRule, ZenoPlusPlus


def contributions(rows: Any, weights: list[float] | None = None, divisor: float | None = None) -> Contributions:
    """Movements from zero with staleness 0, of devices 0, 1, ..."""
    models = [np.array(row, dtype=np.float32) for row in rows]
    weights = weights or [1.0] * len(models)
    return Contributions(
        models=models,
        references=[np.zeros_like(model) for model in models],
        weights=weights,
        divisor=divisor or sum(weights),
        devices=list(range(len(models))),
        staleness=[0] * len(models),
        samples=[10] * len(models),
    )


def combined(rule: Combiner, given_: Contributions, state: Any = None) -> Floats:
    view: Any = ScriptedSession(FedAvg(cohort=1), devices=100, start=[0.0] * given_.size)
    movement = rule.combine(given_, rule.State() if state is None else state, view)
    return movement(slice(0, given_.size))


# By hand --------------------------------------------------------------------------------------------------------------


def test_weights_enter_robust_rules_as_one_common_factor() -> None:
    rows = [[1.0], [2.0], [9.0]]
    assert combined(CoordinateMedian(), contributions(rows, [1.0, 0.5, 0.5], 4.0)).tolist() == [1.0]  # 2 * 2/4


def test_the_trimmed_mean_leaves_out_f_on_both_sides() -> None:
    rows = [[1.0, 0.0], [2.0, -70.0], [3.0, 1.0], [4.0, 2.0], [50.0, 3.0]]
    # f = ceil(0.2 * 5) = 1: (2 + 3 + 4) / 3 and (0 + 1 + 2) / 3
    assert combined(TrimmedMean(attackers=0.2), contributions(rows)).tolist() == [3.0, 1.0]


def test_krum_takes_the_movement_nearest_to_its_neighbours() -> None:
    rows = [[0.0], [1.0], [1.5], [4.0], [90.0]]
    # f = 1, so 5 - 1 - 2 = 2 nearest: 0: 1 + 2.25; 1: 0.25 + 1; 1.5: 0.25 + 2.25; 4: 6.25 + 9; 90: far
    assert krum_scores(contributions(rows), 1).tolist()[:4] == [3.25, 1.25, 2.5, 15.25]
    assert combined(Krum(attackers=0.2), contributions(rows)).tolist() == [1.0]
    # Multi-Krum keeps 5 - 1 = 4: (0 + 1 + 1.5 + 4) / 4
    assert combined(MultiKrum(attackers=0.2), contributions(rows)).tolist() == [1.625]


def test_centred_clipping_steps_from_the_last_centre() -> None:
    rule, state = CentredClipping(radius=1.0, iterations=2), CentredClipping.State()
    # first centre 0: clip(3) = 1, clip(-1) = -1, clip(4) = 1: 1/3; then from 1/3: 1, -1, 1 again: 2/3
    assert combined(rule, contributions([[3.0], [-1.0], [4.0]]), state).tolist() == pytest.approx([2 / 3])
    # from 2/3: 1/3, 1, 1 in the first step: 13/9; from there -4/9, 5/9 and 1: 13/9 + 10/27
    assert combined(rule, contributions([[1.0], [2.0], [9.0]]), state).tolist() == pytest.approx([13 / 9 + 10 / 27])
    assert rule.metrics(state) == {"clip_radius": 1.0}


def test_centred_clipping_takes_the_median_distance_as_its_radius() -> None:
    # distances 1, 2 and 60 from 0: radius 2; (1 + 2 + 2) / 3
    rule = CentredClipping(iterations=1)
    assert combined(rule, contributions([[1.0], [2.0], [60.0]])).tolist() == pytest.approx([5 / 3])


def test_buckets_have_fixed_members() -> None:
    rows = [[0.0], [2.0], [4.0], [6.0], [800.0], [10.0]]
    # three buckets: devices 0, 3: mean 3; 1, 4: 401; 2, 5: 7
    assert combined(Bucketing(buckets=3), contributions(rows)).tolist() == [7.0]
    rule = Bucketing(buckets=3, rule="trimmed-mean", attackers=0.3)  # f = 1 of 3 buckets
    assert combined(rule, contributions(rows)).tolist() == [7.0]


def test_asyncfilter_leaves_out_what_is_far_from_its_group() -> None:
    rows = [[1.0], [1.2], [0.8], [-9.0], [1.0]]
    state = AsyncFilter.State()
    # the median is 1: distances 0, 0.2, 0.2, 10, 0; the mean of the other four is 1
    assert combined(AsyncFilter(), contributions(rows), state).tolist() == pytest.approx([1.0])
    assert AsyncFilter().metrics(state) == {"filtered_updates": 1.0}
    assert state.averages[0].tolist() == pytest.approx([1.0])
    combined(AsyncFilter(memory=0.5), contributions([[3.0], [3.0], [3.0]]), state)
    assert state.averages[0].tolist() == pytest.approx([2.0])  # half of 1 and half of 3


def test_asyncfilter_keeps_a_buffer_without_outliers() -> None:
    assert outlying(np.array([1.0, 1.1, 1.2, 0.9]), 2.0) == set()
    assert outlying(np.array([1.0, 9.0]), 2.0) == set()


def test_throttle_discounts_repeats_within_a_round_and_centres_the_next() -> None:
    rule = Throttle(radius=5.0, discount=2.0)
    session = ScriptedSession(FedBuff(buffer=1, concurrency=2), devices=2, combiner=rule)
    session.move(4.0, 0.0, device=0)
    session.move(4.0, 0.0, device=0)  # a repeat: half
    assert session.parameters.tolist() == [6.0, 0.0]
    session.move(0.0, 8.0, device=1)  # staleness 2: 1/sqrt(3) of 8 clipped to 5; all devices have appeared
    assert session.parameters.tolist() == pytest.approx([6.0, 5 / 3**0.5])
    assert session.combiner_state.uploads == {}
    assert session.combiner_state.centre.tolist() == [2.0, 2.5]  # ([4, 0] + [0, 5]) / 2


def test_throttle_clips_to_the_median_over_devices_of_their_last_norms() -> None:
    policy, rule = FedAsync(concurrency=4, alpha=1.0, staleness="constant"), Throttle(discount=1.0)
    session = ScriptedSession(policy, combiner=rule)
    session.upload(1.0, 0.0, device=0)
    session.upload(3.0, 0.0, device=1)  # norm 2; fewer than three devices: not clipped
    session.upload(903.0, 0.0, device=2)  # median of 1, 2 and 900
    assert session.combiner_state.radius == 2.0
    assert session.parameters.tolist() == [5.0, 0.0]
    session.upload(906.0, 0.0, device=2)  # one vote per device, however often it reports
    assert session.parameters.tolist() == [7.0, 0.0]


def test_zeno_judges_each_update_of_fedasmu_from_the_current_version() -> None:
    policy = FedASMU(cohort=2, lambda_0=1.0, sigma_0=1.0, iota_0=0.0)
    trusted = np.array([3.0, 4.0], dtype=np.float32)
    session = ScriptedSession(policy, combiner=ZenoPlusPlus(), trusted=lambda parameters, version: trusted)
    session.upload(30.0, 40.0, ticket=1)  # scaled to [3, 4]; alpha = 1/2
    assert session.parameters.tolist() == [1.5, 2.0]
    session.upload(1.5, 1.0, ticket=2)  # [0, -1] from the version points away from [3, 4]: no movement
    assert session.parameters.tolist() == [1.5, 2.0]
    assert session.version == 2 and session.own_metrics()["rejected_updates"] == 1.0


def test_rules_with_trusted_samples_by_hand() -> None:
    rows = [[3.0, 4.0], [0.0, 5.0], [-3.0, -4.0], [60.0, 80.0]]

    def result(rule: TrustedRule) -> list[float]:
        view: Any = SimpleNamespace(trusted_movement=lambda: np.array([3.0, 4.0], dtype=np.float32))
        state = rule.State()
        found = rule.combine(contributions(rows), state, view)(slice(0, 2)).tolist()
        assert state.rejected == (2 if isinstance(rule, AflGuard) else 1)
        return found  # type: ignore[no-any-return]

    # AFLGuard: distances 0, sqrt(10), 10 and 95 from v; at most 1.5 * 5. ([3, 4] + [0, 5]) / 4
    assert result(AflGuard(tolerance=1.5)) == pytest.approx([0.75, 2.25])
    # Zeno++: the last is scaled to [3, 4], the third points away. ([3, 4] + [0, 5] + [3, 4]) / 4
    assert result(ZenoPlusPlus()) == pytest.approx([1.5, 3.25])


# For any numbers ------------------------------------------------------------------------------------------------------

UNTRUSTED = [name for name, kind in COMBINERS.items() if not issubclass(kind, TrustedRule)]
numbers, large = st.floats(-1e3, 1e3, width=32), st.floats(-1e6, 1e6, width=32)
honest_and_hostile = st.integers(1, 3).flatmap(
    lambda hostile: st.tuples(
        st.lists(st.tuples(numbers, numbers), min_size=2 * hostile + 1, max_size=9),
        st.lists(
            st.tuples(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6, width=32)),
            min_size=hostile,
            max_size=hostile,
        ),
    )
)


@given(honest_and_hostile)
def test_median_and_trimmed_mean_stay_within_the_honest_range(rows: tuple[list[Any], list[Any]]) -> None:
    honest, hostile = np.array(rows[0], dtype=np.float32), rows[1]
    given_ = contributions([*rows[0], *hostile])
    share = min(len(hostile) / len(given_), 0.49)
    for rule in (CoordinateMedian(), TrimmedMean(attackers=share)):
        found = combined(rule, given_)
        assert (found >= honest.min(axis=0) - 1e-3).all()
        assert (found <= honest.max(axis=0) + 1e-3).all()


@pytest.mark.parametrize("rule", [CoordinateMedian(), TrimmedMean(), MultiKrum(), CentredClipping()], ids=type)
@given(rows=st.lists(st.tuples(numbers, numbers), min_size=3, max_size=7, unique=True), seed=st.integers(0, 99))
def test_the_order_of_updates_does_not_matter(rule: Combiner, rows: list[Any], seed: int) -> None:
    shuffled = np.random.default_rng(seed).permutation(np.array(rows, dtype=np.float32))
    one, other = combined(rule, contributions(rows)), combined(rule, contributions(shuffled))
    if not isinstance(rule, MultiKrum):  # equal scores are decided by the order
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("name", UNTRUSTED)
def test_blocks_change_no_number(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(size=(7, 50))
    rule = COMBINERS[name]()
    whole = combined(rule, contributions(rows))
    monkeypatch.setattr("offbeat.core.parameters.BLOCK", 16)
    view: Any = ScriptedSession(FedAvg(cohort=1), devices=100, start=[0.0] * 50)
    movement = rule.combine(contributions(rows), rule.State(), view)
    parts = [movement(slice(first, min(first + 16, 50))) for first in range(0, 50, 16)]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-12)


@pytest.mark.parametrize("name", UNTRUSTED)
def test_a_run_with_a_rule_resumes_with_the_same_numbers(name: str) -> None:
    whole, first, second = (
        toy_simulation(FedBuff(buffer=4, concurrency=8), combiner=COMBINERS[name]()) for _ in range(3)
    )
    for _ in whole:
        pass
    turns = iter(first)
    for _ in range(50):
        next(turns)
    tree, arrays = encode(first.snapshot())
    second.restore(decode(tree, {key: array.copy() for key, array in arrays.items()}, second.snapshot_types))
    for _ in second:
        pass
    assert second.session.parameters.tobytes() == whole.session.parameters.tobytes()
    assert second.session.version == whole.session.version > 5
