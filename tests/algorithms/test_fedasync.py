"""FedAsync on a model of two numbers: every weight and every mixture worked out by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.algorithms.fedasync import FedAsync
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Assignment, Lost, Ready, Resolved
from offbeat.testing import ScriptedSession, check_resume

DEVICES = 6


def a_session(policy: FedAsync, present: int = DEVICES) -> ScriptedSession:
    return ScriptedSession(policy, devices=DEVICES, present=range(present))


@pytest.mark.parametrize(
    ("staleness", "weight"),
    # (s + 1)^-0.5: 1, 1/sqrt 2, 1/2, 1/3, 1/10
    [(0, 1.0), (1, 2**-0.5), (3, 0.5), (8, 1 / 3), (99, 0.1)],
)
def test_the_polynomial_weight(staleness: int, weight: float) -> None:
    assert FedAsync(staleness="polynomial", exponent=0.5).scale(staleness) == pytest.approx(weight)


@pytest.mark.parametrize(
    ("staleness", "weight"),
    # b = 4, a = 10: full up to 4; then 1 / (10 (s - 4) + 1): 1/11 at 5, 1/21 at 6, 1/61 at 10
    [(0, 1.0), (3, 1.0), (4, 1.0), (5, 1 / 11), (6, 1 / 21), (10, 1 / 61)],
)
def test_the_hinge_is_full_up_to_and_at_its_grace_and_has_its_plus_one(staleness: int, weight: float) -> None:
    assert FedAsync(staleness="hinge", slope=10.0, grace=4).scale(staleness) == pytest.approx(weight)


def test_the_constant_weight_does_not_look_at_staleness() -> None:
    assert [FedAsync(staleness="constant").scale(staleness) for staleness in (0, 1, 1000)] == [1.0, 1.0, 1.0]


@given(st.sampled_from(["constant", "polynomial", "hinge"]), st.integers(0, 200))
def test_weights_lie_between_zero_and_one_and_never_rise_with_staleness(kind: Any, staleness: int) -> None:
    policy = FedAsync(staleness=kind)
    assert 0 < policy.scale(staleness + 1) <= policy.scale(staleness) <= policy.scale(0) == 1


def test_the_defaults_are_the_published_ones() -> None:
    policy = FedAsync()
    assert (policy.alpha, policy.exponent, policy.slope, policy.grace, policy.prox) == (0.6, 0.5, 10.0, 4, 0.005)
    assert policy.max_staleness is None


def test_an_upload_is_mixed_in_at_once() -> None:
    session = a_session(FedAsync(concurrency=2, alpha=0.6))
    session.upload(10.0, -5.0, ticket=session.ticket_of())
    # 0.4 * 0 + 0.6 * 10 = 6,  0.6 * -5 = -3
    assert session.version == 1
    assert session.parameters == pytest.approx([6.0, -3.0])


def test_a_stale_upload_weighs_less_by_its_own_staleness() -> None:
    session = a_session(FedAsync(concurrency=4, alpha=0.6, staleness="polynomial", exponent=0.5))
    session.upload(10.0, 0.0, ticket=1)  # staleness 0: 0.6 * 10 = 6
    assert session.parameters[0] == pytest.approx(6.0)
    session.upload(0.0, 10.0, ticket=2)
    # staleness 1, alpha = 0.6 / sqrt 2 = 0.4242641:  6 * 0.5757359 = 3.4544156,  10 * 0.4242641 = 4.2426407
    assert session.parameters == pytest.approx([3.4544156, 4.2426407])
    session.upload(0.0, 0.0, ticket=3)
    # staleness 2, alpha = 0.6 / sqrt 3 = 0.3464102:  3.4544156 * 0.6535898,  4.2426407 * 0.6535898
    assert session.parameters == pytest.approx([2.2577709, 2.7729468])
    assert (session.counters.staleness_sum, session.counters.staleness_max) == (3, 2)


def test_alpha_does_not_compound_from_update_to_update() -> None:
    session = a_session(FedAsync(concurrency=1, alpha=0.5, staleness="polynomial"))
    for _ in range(4):  # one device at a time: always fresh, so always alpha = 1/2
        session.upload(16.0, 16.0, ticket=session.ticket_of())
    # 8, 12, 14, 15: with a compounding weight (1/2, 1/4, ...) it would be 8, 10, ...
    assert session.parameters.tolist() == [15.0, 15.0]


def test_a_stale_upload_does_not_lower_the_weight_of_the_next_fresh_one() -> None:
    session = a_session(FedAsync(concurrency=2, alpha=0.5, staleness="hinge", slope=10.0, grace=0))
    session.upload(8.0, 8.0, ticket=1)  # fresh: 4
    session.upload(0.0, 0.0, ticket=2)  # staleness 1: alpha = 0.5 / 11 = 1/22, so 4 * 21/22
    session.upload(0.0, 0.0, ticket=session.newest)  # fresh again: alpha = 1/2
    assert session.parameters == pytest.approx([2 * 21 / 22, 2 * 21 / 22])


def test_a_compounding_weight_is_never_made_anew() -> None:
    session = a_session(FedAsync(concurrency=3, alpha=0.5, exponent=1.0, compounding=True))
    session.upload(8.0, 8.0, ticket=1)  # fresh, s = 1: alpha 1/2, so 4
    session.upload(0.0, 0.0, ticket=2)  # staleness 1, s = 1/2: alpha 1/4, so 4 * 3/4 = 3
    assert session.parameters.tolist() == [3.0, 3.0]
    session.upload(0.0, 0.0, ticket=3)  # staleness 2, s = 1/3: alpha 1/12, so 3 * 11/12 = 2.75
    assert session.parameters == pytest.approx([2.75, 2.75])
    session.upload(14.75, 14.75, ticket=session.newest)  # fresh, s = 1: alpha is still 1/12, so 2.75 + 12/12
    assert session.parameters == pytest.approx([3.75, 3.75])
    assert session.state.shrunk == pytest.approx(1 / 6)


def test_a_constant_weight_does_not_compound_and_a_discarded_update_does_not_count() -> None:
    session = a_session(FedAsync(concurrency=2, alpha=0.5, staleness="constant", compounding=True))
    session.upload(8.0, 8.0, ticket=1)
    session.upload(8.0, 8.0, ticket=2)  # staleness 1, alpha 1/2: (4 + 8) / 2
    assert session.parameters.tolist() == [6.0, 6.0]
    session = a_session(FedAsync(concurrency=2, compounding=True, max_staleness=0))
    session.upload(8.0, 8.0, ticket=1)
    session.upload(8.0, 8.0, ticket=2)
    assert (session.counters.discarded, session.state.shrunk) == (1, 1.0)


def test_a_run_with_a_compounding_weight_can_be_resumed() -> None:
    check_resume(FedAsync(concurrency=4, compounding=True), devices=12)


def test_exactly_at_the_hinge_the_weight_is_still_full() -> None:
    session = a_session(FedAsync(concurrency=3, alpha=0.5, staleness="hinge", slope=1.0, grace=1))
    session.upload(8.0, 8.0, ticket=1)  # staleness 0: 4
    session.upload(8.0, 8.0, ticket=2)  # staleness 1 = grace: alpha 1/2, (4 + 8) / 2 = 6
    assert session.parameters.tolist() == [6.0, 6.0]
    session.upload(8.0, 8.0, ticket=3)  # staleness 2: alpha = 0.5 / (1 * 1 + 1) = 1/4, 6 + (8 - 6) / 4 = 6.5
    assert session.parameters.tolist() == [6.5, 6.5]


def test_the_proximal_term_goes_into_every_order() -> None:
    session = a_session(FedAsync(concurrency=2, prox=0.25))
    (_, again) = session.upload(0.0, 0.0, ticket=1)
    assert isinstance(again, Assignment)
    assert again.order.prox == 0.25
    assert {flight.order.prox for flight in session.in_flight.values()} == {0.25}


def test_what_is_staler_than_the_bound_is_discarded_and_its_place_filled() -> None:
    session = a_session(FedAsync(concurrency=3, alpha=0.5, max_staleness=1, staleness="constant"))
    session.upload(8.0, 8.0, ticket=1)  # version 1
    session.upload(8.0, 8.0, ticket=2)  # staleness 1, at the bound: used, (4 + 8) / 2 = 6
    assert session.parameters.tolist() == [6.0, 6.0]
    resolved, again = session.upload(8.0, 8.0, ticket=3)  # staleness 2
    assert resolved == Resolved(tickets=(3,), used=False)
    assert isinstance(again, Assignment)
    assert again.base == 2
    assert (session.version, session.parameters.tolist()) == (2, [6.0, 6.0])
    assert (session.counters.used, session.counters.discarded) == (2, 1)
    assert len(session.in_flight) == 3


def test_a_bound_of_zero_takes_fresh_updates_only() -> None:
    session = a_session(FedAsync(concurrency=2, max_staleness=0))
    session.upload(1.0, 1.0, ticket=1)
    session.upload(1.0, 1.0, ticket=2)
    assert (session.counters.used, session.counters.discarded) == (1, 1)


def test_the_concurrency_is_kept_full_after_an_upload_a_loss_and_an_arrival() -> None:
    session = a_session(FedAsync(concurrency=3), present=3)
    assert len(session.in_flight) == 3
    session.handle(Lost(device=session.in_flight[1].device, ticket=1), 1.0)
    assert len(session.in_flight) == 2, "nobody is idle"
    session.handle(Ready(device=5), 2.0)
    assert len(session.in_flight) == 3
    session.handle(Ready(device=4), 3.0)
    assert len(session.in_flight) == 3
    session.upload(0.0, 0.0, ticket=session.ticket_of())
    assert len(session.in_flight) == 3
    session.handle(Lost(device=session.in_flight[session.newest].device, ticket=session.newest), 4.0)
    assert len(session.in_flight) == 3


def test_more_concurrency_than_devices_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"algorithm\.concurrency = 7: there are only 6 devices"):
        a_session(FedAsync(concurrency=7))
