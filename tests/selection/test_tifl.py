"""TiFL's tiers, adaptive probabilities and credits, worked out by hand."""

import numpy as np
import pytest

from offbeat.algorithms import FedAvg, FedBuff
from offbeat.selection import Tifl
from offbeat.selection.tifl import TiflState
from offbeat.testing import ScriptedSession


def state_of(selector: Tifl, seconds: list[float], losses: list[float], credits: list[int] | None = None) -> TiflState:
    return TiflState(
        seconds=np.array(seconds),
        uploads=np.ones(len(seconds), dtype=np.int64),
        losses=np.array(losses),
        probabilities=np.full(selector.tiers, 1 / selector.tiers),
        credits=np.array(credits or [0] * selector.tiers),
    )


def test_tiers_are_groups_of_equal_number_by_mean_seconds() -> None:
    selector = Tifl(tiers=3)
    state = state_of(selector, [5.0, 1.0, 9.0, 2.0, 7.0, 0.0], [0.0] * 6)
    state.uploads[2] = 9  # a mean of 1 s
    state.uploads[5] = 0  # not measured
    # By mean: 1 and 2 (1 s each, in order of their numbers), 3 (2 s), 0 (5 s), 4 (7 s): ranks x 3 // 5.
    assert selector.tier_of(state).tolist() == [1, 0, 0, 1, 2, -1]


def test_devices_that_were_never_measured_come_first_then_those_of_one_tier() -> None:
    session = ScriptedSession(FedBuff(buffer=1, concurrency=1), devices=4, selector=Tifl(tiers=2))
    seen = [session.first.ordered[0]]
    for number in range(3):
        session.now += 1.0 + number
        seen += session.upload().ordered
    assert sorted(seen) == [0, 1, 2, 3]
    session.now += 10.0
    session.upload()
    fast, slow = set(seen[:2]), set(seen[2:])
    idle = [device for device in range(4) if session.is_idle(device)]
    for _ in range(20):
        picked = session.pick(3)
        first = [device for device in picked if device in (fast if picked[0] in fast else slow)]
        assert picked[: len(first)] == first  # the tier of the first, then the others
        assert sorted(picked) == idle


def test_tiers_that_do_not_improve_give_way_to_those_with_larger_losses() -> None:
    selector = Tifl(tiers=3, choice="adaptive")
    state = state_of(selector, [1.0, 2.0, 3.0], [0.5, 2.0, 1.0])
    state.used = 0
    selector.adapt(state)  # nothing to compare with yet
    assert state.probabilities.tolist() == pytest.approx([1 / 3] * 3)
    state.losses[0] = 0.4
    selector.adapt(state)  # tier 0 has improved
    assert state.probabilities.tolist() == pytest.approx([1 / 3] * 3)
    selector.adapt(state)  # and now has not: D = 3; tier 1 has the largest loss: 2/3, tier 2 has 1/3, tier 0 nothing
    assert state.probabilities.tolist() == pytest.approx([0.0, 2 / 3, 1 / 3])


def test_a_tier_without_credits_is_not_used_until_all_have_used_theirs() -> None:
    session = ScriptedSession(
        FedAvg(cohort=1), devices=2, selector=Tifl(tiers=2, choice="adaptive", credits=2), samples=[1, 1]
    )
    for _ in range(2):  # each device is measured
        session.now += 1.0
        session.upload(loss=1.0)
    used = []
    for _ in range(6):
        used.append(session.in_flight[session.newest].device)
        session.upload(loss=1.0)
    # Two credits each: among the first four orders by tier, each device has two.
    assert sorted(used[:4]) == [0, 0, 1, 1]
