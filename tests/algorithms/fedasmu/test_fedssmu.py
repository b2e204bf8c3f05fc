"""FedSSMU's rounds on a model of two numbers: staleness within a round, when it ends, who gets a fresh model."""

from math import sqrt
from typing import Any

import numpy as np
import pytest

from offbeat.algorithms.fedasmu.server import FedSSMU
from offbeat.core.messages import Left, Ready, Resolved
from offbeat.core.parameters import Vector
from offbeat.experiment.run_settings import Stop
from offbeat.testing import ScriptedSession, toy_simulation


def vector(*numbers: float) -> Vector:
    return np.array(numbers, dtype=np.float32)


def a_session(devices: int = 8, **changes: Any) -> ScriptedSession:
    """lambda 1, sigma 1, iota 0, and nothing learns unless told."""
    fixed = {"lambda_0": 1.0, "sigma_0": 1.0, "iota_0": 0.0, "eta_lambda": 0.0, "eta_sigma": 0.0, "eta_iota": 0.0}
    policy = FedSSMU.model_validate({"cohort": 3} | fixed | changes)
    return ScriptedSession(policy, devices=devices, epochs=2, learning_rate=0.5, steps_per_slice=2)


def first_round(session: ScriptedSession) -> None:
    """Three uploads. k = 0, s = 1: xi = 1, alpha = 1/2.  k = 1, s = 2: xi = 1/2, alpha = 1/3.
    k = 2, s = 3: xi = 1/3, alpha = 1/4: it is sqrt(r) = 1 in the root, not the version."""
    session.upload(4.0, 0.0, ticket=1)
    assert session.parameters == pytest.approx([2.0, 0.0])  # 1/2 [4, 0]
    session.upload(2.0, 6.0, ticket=2)
    assert session.parameters == pytest.approx([2.0, 2.0])  # 2/3 [2, 0] + 1/3 [2, 6]
    session.upload(6.0, 2.0, ticket=3)
    assert session.parameters == pytest.approx([3.0, 2.0])  # 3/4 [2, 2] + 1/4 [6, 2]


def test_staleness_counts_the_merges_of_the_round_and_time_the_rounds() -> None:
    session = a_session()
    first_round(session)
    assert session.state.round == 2
    assert {flight.base for flight in session.in_flight.values()} == {3}
    session.upload(4.0, 2.0, ticket=4)
    # r = 2, k = 0, s = 1: xi = 1 / sqrt 2, alpha = 1 / (1 + sqrt 2) = sqrt 2 - 1
    assert session.parameters == pytest.approx([3 + sqrt(2) - 1, 2.0])


def test_control_gradients_use_the_round_of_the_aggregation_that_made_the_base() -> None:
    session = a_session(cohort=1, lambda_0=2.0, eta_lambda=0.8, eta_iota=0.4)
    for ticket in (1, 2, 3):  # nobody moves: nothing to adapt
        session.upload(ticket=ticket)
    session.upload(-2.0, 4.0, ticket=4)  # r = 4, s = 1: xi' = 2 / 2 = 1, alpha' = 1/2; u = [-2, 4]
    assert session.parameters.tolist() == [-1.0, 2.0]
    device = session.in_flight[5].device
    session.upload(0.0, 3.0, ticket=5)
    # It moved by [1, 1]: g = [-1, -1] / (0.5 * 4) = [-1/2, -1/2], <g, u> = -1; d alpha' / d xi' = 1/4;
    # d xi' / d lambda = 1 / (sqrt 4 * 1) = 1/2;  ln 1 = 0, so sigma has no slope.
    # lambda: 2 + 0.8 * 1/4 * 1/2 = 2.1;  iota: 0.4 * 1/4 = 0.1
    assert session.state.controls[device] == pytest.approx((2.1, 1.0, 0.1))


def test_beyond_the_bound_an_upload_is_discarded_and_does_not_count_as_a_merge() -> None:
    session = a_session(cohort=4, staleness_bound=2)
    session.upload(4.0, 0.0, ticket=1)
    session.upload(2.0, 6.0, ticket=2)  # s = 2, at the bound
    assert session.upload(9.0, 9.0, ticket=3) == [Resolved(tickets=(3,), used=False)]  # s = 3
    effects = session.upload(9.0, 9.0, ticket=4)  # still s = 3, and the round is over
    assert effects[0] == Resolved(tickets=(4,), used=False)
    assert len(effects.ordered) == 4
    assert (session.version, session.state.round, session.counters.discarded) == (2, 2, 2)
    assert session.metrics["too_stale"] == 2
    assert session.parameters == pytest.approx([2.0, 2.0])


# Rounds --------------------------------------------------------------------------------------------------------------


def test_a_round_orders_the_cohort_from_one_model_and_nobody_else_until_it_ends() -> None:
    session = a_session()
    assert (len(session.in_flight), session.state.round, session.timers) == (3, 1, {})
    assert session.upload(4.0, 0.0, ticket=1).ordered == []
    session.handle(Left(device=next(device for device in range(8) if session.is_idle(device))), 1.0)
    assert session.upload(4.0, 0.0, ticket=3).ordered == []
    assert session.upload(4.0, 0.0, ticket=2).tickets == [4, 5, 6]
    assert {flight.base for flight in session.in_flight.values()} == {3}


def test_lost_devices_do_not_hang_a_round() -> None:
    session = a_session()
    assert session.lose(ticket=1).ordered == []
    assert session.upload(4.0, 0.0, ticket=2).ordered == []
    assert session.lose(ticket=3).tickets == [4, 5, 6]
    assert (session.state.round, session.version) == (2, 1)


def test_a_round_that_lost_everybody_is_followed_by_another() -> None:
    session = a_session()
    for ticket in (1, 2):
        session.lose(ticket=ticket)
    assert session.lose(ticket=3).tickets == [4, 5, 6]
    assert (session.state.round, session.version) == (2, 0)


def test_a_device_that_is_lost_while_it_waits_for_nothing_newer_does_not_hang_a_round() -> None:
    session = a_session()
    session.upload(ticket=1)
    session.ask(ticket=2)
    session.lose(ticket=2)
    assert session.upload(ticket=3).tickets == [4, 5, 6]


def test_if_nobody_is_there_the_next_round_begins_with_whoever_comes_back() -> None:
    session = a_session(devices=3)
    devices = [flight.device for flight in session.in_flight.values()]
    for ticket in (1, 2, 3):
        session.lose(ticket=ticket)
    assert (len(session.in_flight), session.state.round) == (0, 1)
    assert session.handle(Ready(device=devices[0]), 1.0).tickets == [4]
    assert session.state.round == 2
    assert session.handle(Ready(device=devices[1]), 2.0).ordered == [], "it waits for the next round"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rounds_never_overlap_whatever_gets_lost(seed: int) -> None:
    simulation = toy_simulation(FedSSMU(cohort=6), seed=seed, devices=12, stop=Stop(updates=40, time=1e4))
    session, number = simulation.session, 0
    for _ in simulation:
        assert len(session.in_flight) <= 6
        assert number <= session.state.round <= number + 1
        number = session.state.round
        assert {flight.order.arguments["round"] for flight in session.in_flight.values()} <= {number}
        assert len({flight.base for flight in session.in_flight.values()}) <= 1
    assert simulation.reason == "updates"
    assert session.counters.lost > 0
    assert session.counters.staleness_max < 6


# Fresh models --------------------------------------------------------------------------------------------------------


def test_a_request_is_answered_after_the_first_merge_of_the_round() -> None:
    session = a_session()
    assert session.in_flight[3].order.arguments["round"] == 1
    assert session.ask(ticket=2).parameters is None, "k = 0"
    session.upload(4.0, 0.0, ticket=1)
    newer = session.ask(ticket=3)
    assert newer.parameters is not None
    assert (newer.version, newer.parameters.tolist()) == (1, [2.0, 0.0])


def test_in_a_later_round_too_there_is_nothing_fresh_before_its_first_merge() -> None:
    session = a_session()
    first_round(session)
    assert session.in_flight[4].order.arguments["round"] == 2
    assert session.ask(ticket=4).parameters is None, "k = 0, although the version is 3"
    session.upload(3.0, 2.0, ticket=5)
    answer = session.ask(ticket=6)
    assert answer.parameters is not None
    assert answer.version == 4  # k = 1: the device sees g - o + 1 = 2
    figures = session.metrics
    assert (figures["requests"], figures["requests_answered"]) == (2, 1)


@pytest.mark.parametrize(("dynamic", "fresh"), [(False, True), (True, False), (False, False)])
def test_the_ablations(dynamic: bool, fresh: bool) -> None:
    session = a_session(dynamic_weights=dynamic, fresh_models=fresh, eta_lambda=5.0, eta_sigma=5.0)
    first_round(session)
    session.upload(4.0, -7.0, ticket=4)
    assert session.in_flight[5].order.rule == ("fedasmu" if fresh else "plain")
    assert (session.metrics["lambda_spread"] > 0) is dynamic
