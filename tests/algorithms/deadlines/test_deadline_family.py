"""SALF, Drop-Stragglers, Wait-Stragglers and ADEL-FL on two devices, with the arithmetic written out."""

from itertools import product
from math import exp, factorial
from typing import Any

import numpy as np
import pytest

from offbeat.algorithms import Adel, DropStragglers, HeteroFL, Salf, WaitStragglers
from offbeat.algorithms.deadlines.adel import RoundPlan
from offbeat.algorithms.deadlines.planner import miss_probabilities
from offbeat.algorithms.deadlines.rounds import bias_corrected
from offbeat.core.errors import InvalidInput
from offbeat.core.parameters import Layout
from offbeat.core.policy import Policy
from offbeat.testing import ScriptedSession

LAYOUT = Layout.of([("a.weight", (1,), True), ("b.weight", (1,), True)])  # two layers of one element
START = [1.0, 10.0]


def session_of(
    policy: Policy, devices: int = 2, horizon: float = 10.0, speed: float = 8.0, samples: int = 100, **work: Any
) -> ScriptedSession:
    """Devices of one speed that need 1 s to communicate; the first round has begun."""
    return ScriptedSession(
        policy,
        start=START,
        layout=LAYOUT,
        samples=[samples] * devices,
        speeds=[speed] * devices,
        communication=[1.0] * devices,
        horizon=horizon,
        batch_size=16,
        learning_rate=0.5,
        schedule="inverse",
        **work,
    )


def end_round(session: ScriptedSession, deliveries: list[tuple[list[float], int]]) -> float:
    """Each device delivers its model after so many slices, and the round ends; returns when."""
    for device, (model, slices) in enumerate(deliveries):
        session.upload(*model, device=device, slices=slices)
    session.fire("deadline")
    return session.now


def test_orders_of_a_round() -> None:
    session = session_of(Salf(rounds=4))
    orders = [given.order for given in session.first.orders]
    # T = 10 / 4 = 2.5; 1 s of it is for communication.
    assert [(order.unit, order.slices, order.batch_size) for order in orders] == [("layer", 2, 16)] * 2
    assert [order.budget for order in orders] == pytest.approx([1.5, 1.5])
    assert all(order.budget is not None and order.budget + 1.0 <= 2.5 for order in orders)
    assert session.timers == pytest.approx({"deadline": 2.5})


def test_salf_by_hand() -> None:
    # T = 2.5, lambda = 8 (2.5 - 1) / 16 = 0.75 layers each.
    #   layer b (last): p = e^-0.75 ^2 = e^-1.5 = 0.22313016
    #   layer a: p = (e^-0.75 (1 + 0.75))^2 = 0.22313016 3.0625 = 0.68333612
    # Device 0 delivers b = 12, device 1 both, (3, 14):
    #   a <- (3 - 0.68333612 1) / 0.31666388 = 7.3158455
    #   b <- (13 - 0.22313016 10) / 0.77686984 = 13.861651
    session = session_of(Salf(rounds=4))
    assert end_round(session, [([9.0, 12.0], 1), ([3.0, 14.0], 2)]) == pytest.approx(2.5)
    assert session.parameters == pytest.approx([7.3158455, 13.861651], rel=1e-5)
    assert session.version == 1


def test_salf_as_its_code_has_it() -> None:
    # a <- 1/2 (3 + 1) = 2,  b <- 1/2 (12 + 14) = 13.
    session = session_of(Salf(rounds=4, variant="code"))
    end_round(session, [([9.0, 12.0], 1), ([3.0, 14.0], 2)])
    assert session.parameters == pytest.approx([2.0, 13.0])


def test_a_layer_that_nobody_delivered_and_a_round_without_deliveries_change_nothing() -> None:
    session = session_of(Salf(rounds=4, variant="code"))
    end_round(session, [([9.0, 12.0], 1), ([9.0, 14.0], 1)])
    assert session.parameters == pytest.approx([1.0, 13.0])
    session = session_of(Salf(rounds=4))
    end_round(session, [([9.0, 12.0], 0), ([9.0, 14.0], 0)])
    assert session.parameters == pytest.approx(START)
    assert (session.version, session.counters.used, session.counters.discarded) == (1, 0, 2)
    assert session.counters.bytes_up == 0  # nothing done, nothing sent


def test_drop_stragglers_by_hand() -> None:
    for variant, expected in (("mean", [3.0, 14.0]), ("keep", [2.0, 12.0])):
        session = session_of(DropStragglers.model_validate({"rounds": 4, "variant": variant}))
        end_round(session, [([9.0, 12.0], 1), ([3.0, 14.0], 2)])
        assert session.parameters == pytest.approx(expected)
        assert (session.counters.used, session.counters.discarded) == (1, 1)
        assert session.counters.bytes_up == 8  # a straggler sends nothing
    session = session_of(DropStragglers(rounds=4))
    end_round(session, [([9.0, 12.0], 1), ([9.0, 14.0], 1)])
    assert session.parameters == pytest.approx(START)


def test_wait_stragglers_by_hand() -> None:
    session = session_of(WaitStragglers())
    assert all(given.order.budget is None for given in session.first.orders)
    session.upload(3.0, 12.0, device=0)
    assert session.version == 0, "the round waits for the slowest"
    session.upload(5.0, 14.0, device=1)
    assert session.parameters == pytest.approx([4.0, 13.0])
    assert len(session.in_flight) == 2  # the next round has begun
    session.fire("budget")
    assert session.finished == "time budget"
    assert session.now == pytest.approx(10.0)


def test_the_learning_rate_follows_the_round() -> None:
    session = session_of(DropStragglers(rounds=4))
    end_round(session, [([9.0, 12.0], 0), ([9.0, 14.0], 0)])
    assert [flight.order.learning_rate for flight in session.in_flight.values()] == [0.25, 0.25]  # 0.5 / (1 + 1)


def test_the_correction_is_unbiased_by_enumeration() -> None:
    # Three devices of equal rate, two layers; every combination of depths with its Poisson probability.
    # The expectation of (5) over all of them is the plain mean of the devices' models, whatever p.
    devices, rate = 3, 0.8
    models = [[2.0, 11.0], [4.0, 7.0], [-3.0, 30.0]]
    session = session_of(Salf(rounds=4), devices=devices)
    exactly = [exp(-rate) * rate**k / factorial(k) for k in (0, 1)]
    chance = [*exactly, 1.0 - sum(exactly)]
    missed = miss_probabilities(np.full(devices, rate), 2)
    expectation = np.zeros(2)
    for depths in product(range(3), repeat=devices):
        updates = [
            session.update(*models[each], device=each, slices=depth) for each, depth in enumerate(depths) if depth
        ]
        result = bias_corrected(updates, missed, session) if updates else session.parameters
        expectation += np.prod([chance[depth] for depth in depths]) * result.astype(np.float64)
    np.testing.assert_allclose(expectation, np.mean(models, axis=0), rtol=1e-6)


def test_adel_uses_its_plan_and_the_published_probabilities() -> None:
    policy = Adel(rounds=3, time_budget=9.0)
    session = session_of(policy)
    state = session.state
    T, m = state.deadlines[0], state.scale
    assert sum(state.deadlines) == pytest.approx(9.0) and sum(state.deadlines) <= 9.0
    assert state.deadlines == sorted(state.deadlines, reverse=True)
    assert [given.order.batch_size for given in session.first.orders] == [int(m * 8.0 * (T - 1.0) / T)] * 2  # (B3)
    # (7): with x = T/m, p of the last layer is e^-2x, of the first (e^-x (1 + x))^2.
    x = T / m
    last, first = exp(-2 * x), (exp(-x) * (1 + x)) ** 2
    assert end_round(session, [([9.0, 12.0], 1), ([3.0, 14.0], 2)]) == pytest.approx(T)
    expected = [(3.0 - first * 1.0) / (1 - first), (13.0 - last * 10.0) / (1 - last)]
    assert session.parameters == pytest.approx(expected, rel=1e-5)


def test_adel_as_its_code_has_it() -> None:
    # As SALF's: a <- 1/2 (3 + 1) = 2,  b <- 1/2 (12 + 14) = 13, whatever the probabilities.
    session = session_of(Adel(rounds=3, variant="code"))
    end_round(session, [([9.0, 12.0], 1), ([3.0, 14.0], 2)])
    assert session.parameters == pytest.approx([2.0, 13.0])
    # b alone from one of two: a as it was, b <- 1/2 (12 + 10)
    session = session_of(Adel(rounds=3, variant="code"))
    end_round(session, [([9.0, 12.0], 1), ([9.0, 14.0], 0)])
    assert session.parameters == pytest.approx([1.0, 11.0])


def test_a_warm_up_in_the_code_variant_counts_every_order_of_its_rounds() -> None:
    # Two rounds of two devices are U = 4. a: 3 once and 5 once, b: 12, 14 and 14:
    #   a <- 1/4 (3 + 5 + 2 1) = 2.5,  b <- 1/4 (12 + 14 + 14 + 10) = 12.5
    session = session_of(Adel(rounds=5, warmup_rounds=2, variant="code"))
    end_round(session, [([9.0, 12.0], 1), ([3.0, 14.0], 2)])
    end_round(session, [([9.0, 9.0], 0), ([5.0, 14.0], 2)])
    assert session.parameters == pytest.approx([2.5, 12.5])


def test_batches_by_speed_make_all_devices_come_equally_deep() -> None:
    # T = 10 / 2 = 5, B = 1, m = 1.5: floor(1.5 8 4/5) = floor(9.6) = 9 and floor(1.5 82 4/5) = 98 samples.
    for policy in (Salf(rounds=2, batch="speed", batch_scale=1.5), DropStragglers(rounds=2, batch="speed")):
        scale = policy.batch_scale
        session = ScriptedSession(
            policy,
            start=START,
            layout=LAYOUT,
            samples=[1000, 1000, 50],
            speeds=[8.0, 82.0, 82.0],
            communication=[1.0] * 3,
            horizon=10.0,
            batch_size=16,
        )
        sizes = [given.order.batch_size for given in session.first.orders]
        # m = 1: floor(6.4) = 6 and floor(65.6) = 65; the third device holds 50 samples only.
        assert sizes == ([9, 98, 50] if scale == 1.5 else [6, 65, 50])
        # Depths: P (T - B) / S = 8 4/9 and 82 4/98, both near T/m = 10/3; with 16 for all they would be 2 and 20.5.
        rates = policy.rates(5.0 * (1 - 1e-9), session.state, session)
        assert rates[:2] == pytest.approx([32 / 9, 328 / 98] if scale == 1.5 else [32 / 6, 328 / 65])


def test_batches_by_speed_share_the_time_of_several_local_steps_and_correct_with_their_own_probabilities() -> None:
    # E = 2, m = 2: floor(2 8/2 1.5/2.5) = floor(4.8) = 4 samples, so 8 1.5/4 = 3 layers in the time of a round.
    session = session_of(Salf(rounds=4, batch="speed", batch_scale=2.0, local_steps=2))
    assert {given.order.batch_size for given in session.first.orders} == {4}
    # p of a = (e^-3 (1 + 3))^2 = 16 e^-6 = 0.03966004, of b e^-6 = 0.00247875.
    end_round(session, [([9.0, 12.0], 1), ([3.0, 14.0], 2)])
    a, b = 16 * exp(-6), exp(-6)
    assert session.parameters == pytest.approx([(3 - a) / (1 - a), (13 - 10 * b) / (1 - b)], rel=1e-5)


def test_several_local_steps_share_the_time() -> None:
    # E = 2: P becomes 4 in (B3) and in Problem 2, and a device is asked for 2 x 2 layers.
    twice = session_of(Adel(rounds=3, local_steps=2), speed=16.0)
    once = session_of(Adel(rounds=3), speed=8.0)
    assert twice.state.deadlines == pytest.approx(once.state.deadlines)
    assert twice.state.scale == pytest.approx(once.state.scale)
    assert {given.order.slices for given in twice.first.orders} == {4}


def a_round(scale: float = 8.0, ordered: tuple[int, ...] = (0, 1)) -> RoundPlan:
    """A round of 4 s with m = 8 in which both devices take part."""
    return RoundPlan(deadlines=[4.0], scale=scale, ordered=list(ordered))


@pytest.mark.parametrize(("steps", "batch"), [(1, 48), (2, 24), (3, 16)])
def test_b3_with_several_local_steps(steps: int, batch: int) -> None:
    # m P/E (T - B)/T = 8 (8/E) (4 - 1)/4 = 48/E samples for each of E steps.
    policy = Adel(rounds=1, local_steps=steps)
    assert policy.batches(4.0, a_round(), session_of(policy)).tolist() == [batch] * 2
    # Who holds fewer samples takes all that it has.
    assert policy.batches(4.0, a_round(), session_of(policy, samples=7)).tolist() == [7, 7]


@pytest.mark.parametrize(("steps", "x"), [(1, 0.5), (2, 1.0), (4, 2.0)])
def test_equation_7_with_several_local_steps(steps: int, x: float) -> None:
    # x = E T/m = E 4/8; the first layer is missed if both do at most one layer, the last if both do none.
    policy = Adel(rounds=1, local_steps=steps)
    missed = policy.missed(a_round(), session_of(policy))
    assert missed == pytest.approx([(exp(-x) * (1 + x)) ** 2, exp(-x) ** 2])


def test_exact_probabilities_are_those_of_the_batches_as_they_are_and_of_the_devices_that_take_part() -> None:
    # m = 8.3: 8.3 8 3/4 = 49.8, so batches of 49, and 8 3/49 layers on average; (7) has T/m = 4/8.3, which is less.
    exact, published = (Adel.model_validate({"rounds": 1, "probabilities": name}) for name in ("exact", "published"))
    session = session_of(exact)
    x, bound = 24 / 49, 4 / 8.3
    assert exact.missed(a_round(scale=8.3), session) == pytest.approx([(exp(-x) * (1 + x)) ** 2, exp(-x) ** 2])
    assert published.missed(a_round(scale=8.3), session) == pytest.approx(
        [(exp(-bound) * (1 + bound)) ** 2, exp(-bound) ** 2]
    )
    # Device 0 alone, which holds 12 samples: 8 3/12 = 2 layers.
    session = session_of(exact, samples=12)
    assert exact.missed(a_round(ordered=(0,)), session) == pytest.approx([exp(-2) * 3, exp(-2)])


def test_rho_c_is_at_least_the_weight_decay() -> None:
    def plan(strong_convexity: float, weight_decay: float) -> list[float]:
        session = session_of(Adel(rounds=3, strong_convexity=strong_convexity), weight_decay=weight_decay)
        return [*session.state.deadlines, session.state.scale]

    assert plan(0.1, 0.6) == plan(0.6, 0.0) != plan(0.1, 0.0)
    assert plan(0.1, 0.05) == plan(0.1, 0.0)


def test_salf_moves_a_layer_by_ten_times_the_step_at_most() -> None:
    # P = 0.16: 0.16 1.5/16 = 0.015 layers each, p of the last layer e^-0.03 = 0.970, kept at 0.9:
    # b <- (12 - 0.9 10) / 0.1 = 30, ten times as far as the device went; with 0.970 it would be 77.
    session = session_of(Salf(rounds=4), speed=0.16)
    end_round(session, [([9.0, 12.0], 1), ([9.0, 14.0], 0)])
    assert session.parameters == pytest.approx([1.0, 30.0], rel=1e-5)


def test_an_update_that_comes_after_its_round_is_discarded() -> None:
    session = session_of(Salf(rounds=4))
    session.fire("deadline")
    assert session.upload(9.0, 9.0, ticket=1).discarded == [1]
    assert session.parameters == pytest.approx(START)


def test_a_warm_up_measures_applies_its_gradients_as_one_step_and_plans_the_rest() -> None:
    # Gradients: model = base - rate g, rate 0.5 in round 0 and 0.25 in round 1. Layer a: device 0 (1, 3), device 1
    # (2, 2); layer b: 0. Batch S: sigma^2 = mean of S 2 and 0 = S, G^2 = (1 + 9 + 4 + 4) / 4 = 4.5.
    session = session_of(Adel(rounds=5, warmup_rounds=2))
    before = list(session.state.deadlines)
    assert before == pytest.approx([2.0] * 5)
    scale, size = session.state.scale, session.first.orders[0].order.batch_size
    for number, gradients in enumerate([(1.0, 2.0), (3.0, 2.0)]):
        rate = 0.5 / (1 + number)
        for device in (0, 1):
            session.upload(1.0 - rate * gradients[device], 10.0, device=device)
        if number:
            policy = session.policy
            assert isinstance(policy, Adel)
            measured = policy.measured([*session.state.warm, *session.state.arrived], session.state, session)
            assert measured is not None and size is not None
            assert measured.gradient_variance == pytest.approx(size)
            assert measured.gradient_bound == pytest.approx(4.5)
        session.fire("deadline")
        if not number:
            assert session.parameters == pytest.approx(START)
    # The mean of the four is 1 - (0.5 + 1 + 0.75 + 0.5) / 4 = 0.3125; p is for a miss in both rounds, so squared:
    # with x = T/m, p of layer a = (e^-x (1 + x))^4.
    p = (exp(-2.0 / scale) * (1 + 2.0 / scale)) ** 4
    assert session.counters.used == 4
    assert session.parameters == pytest.approx([(0.3125 - p) / (1 - p), 10.0], rel=1e-5)
    rest = session.state.deadlines[2:]
    assert len(rest) == 3 and sum(rest) == pytest.approx(6.0) and rest == sorted(rest, reverse=True)


def test_a_warm_up_of_several_steps_measures_whole_runs_as_batches_of_all_their_samples() -> None:
    # E = 2 steps of S samples: the mean gradient is over 2 S. Layer a: 1 and 3 on device 0, so 2 S times a variance of
    # 2; layer b: 0. The second device was cut within its second step and does not count.
    policy = Adel(rounds=5, warmup_rounds=2, local_steps=2)
    session = session_of(policy)
    whole = [session.update(1.0 - 0.5 * 2 * gradient, 10.0, device=0) for gradient in (1.0, 3.0)]
    cut = session.update(1.0 - 0.5 * 9.0, 10.0, device=1, slices=3)
    measured = policy.measured([*whole, cut], session.state, session)
    size = session.first.orders[0].order.batch_size
    assert measured is not None and size is not None
    assert measured.gradient_variance == pytest.approx(2 * size * 2.0)
    assert measured.gradient_bound == pytest.approx((1.0 + 9.0) / 2)


def test_impossible_settings_are_one_sentence() -> None:
    with pytest.raises(InvalidInput, match=r"too short for 100 rounds: .* must exceed \d"):
        session_of(Adel(rounds=100))
    with pytest.raises(InvalidInput, match="the fastest link needs 1 s to communicate"):
        session_of(Salf(rounds=10))
    with pytest.raises(InvalidInput, match=r"set algorithm\.time_budget or stop\.time"):
        session_of(WaitStragglers(), horizon=float("inf"))
    with pytest.raises(InvalidInput, match="needs at least 2"):
        session_of(Adel(), devices=1)
    with pytest.raises(InvalidInput, match="must be below the planned number of rounds, 1"):
        session_of(Adel(rounds="auto", warmup_rounds=2, initial_distance=0.01))
    with pytest.raises(InvalidInput, match="must be 0, or from 2 to rounds - 1"):
        Adel(warmup_rounds=1)
    bare = ScriptedSession(HeteroFL(time_budget=5.0), start=START, layout=LAYOUT, devices=2, speeds=[1.0, 1.0])
    assert len(bare.state.deadlines) == 100
    with pytest.raises(InvalidInput, match="which this fleet does not provide"):
        ScriptedSession(Salf(time_budget=5.0), start=START, layout=LAYOUT)
