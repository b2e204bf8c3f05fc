"""SEAFL and SEAFL² on a model of two numbers: every weight worked out by hand; when they aggregate, whom they order,
and whom they notify. Whole runs are in test_seafl_runs.py, PORT's own rule is in test_port.py."""

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.algorithms.seafl import Port, Seafl, Seafl2, cosine
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Assignment, Left, Ready, StopNotice
from offbeat.core.orders import KnownOutcome, Outcome, Progress, Update
from offbeat.core.parameters import Vector
from offbeat.testing import ScriptedSession

EPOCHS = 3


def vector(*numbers: float) -> Vector:
    return np.array(numbers, dtype=np.float32)


def a_session(
    policy: Seafl, samples: Sequence[int] = (10,) * 8, start: tuple[float, float] = (0.0, 0.0)
) -> ScriptedSession:
    return ScriptedSession(policy, samples=samples, start=start, epochs=EPOCHS)


def notified(effects: list[Any]) -> list[int]:
    return [effect.ticket for effect in effects if isinstance(effect, StopNotice)]


def an_update(
    after: Vector, before: Vector, *, base: int = 0, samples: int = 10, device: int = 0, slices: int = EPOCHS
) -> Update:
    return Update(
        device=device,
        ticket=device + 1,
        base=base,
        base_parameters=before,
        samples=samples,
        progress=Progress(slices=slices),
        outcome=KnownOutcome(Outcome(parameters=after)),
    )


def at_version(policy: Seafl, version: int, *model: float) -> ScriptedSession:
    """A view of this version, whatever came before."""
    session = a_session(policy)
    session.version, session.parameters = version, vector(*model)
    return session


# Equations (4) to (8) ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("staleness", "gamma"),
    [
        (0, 3.0),  # 3 * 10 / (0 + 10)
        (2, 2.5),  # 3 * 10 / (2 + 10)
        (5, 2.0),  # 3 * 10 / (5 + 10)
        (10, 1.5),  # 3 * 10 / (10 + 10): half of it at the limit
    ],
)
def test_equation_4_the_weight_of_freshness(staleness: int, gamma: float) -> None:
    assert Seafl().freshness(staleness) == pytest.approx(gamma)


def test_equation_4_with_other_settings() -> None:
    assert Seafl(staleness_weight=2.0, staleness_limit=3.0).freshness(1) == pytest.approx(1.5)  # 2 * 3 / (1 + 3)


@pytest.mark.parametrize("staleness", [0, 1, 1000])
def test_equation_4_without_a_limit_is_alpha_whatever_the_staleness(staleness: int) -> None:
    assert Seafl(staleness_limit=inf).freshness(staleness) == 3.0


MODEL_1_0 = [
    ((2.0, 0.0), 1.0),  # cos 1: (1 + 1) / 2
    ((0.0, 5.0), 0.5),  # cos 0
    ((-7.0, 0.0), 0.0),  # cos -1: the opposite counts nothing
    ((3.0, 4.0), 0.8),  # cos 3/5: (0.6 + 1) / 2
    ((-3.0, 4.0), 0.2),  # cos -3/5
    ((0.0, 0.0), 1.0),  # it has not moved: cos 1
]


@pytest.mark.parametrize(("delta", "similarity"), MODEL_1_0)
def test_equation_5_compares_an_updates_movement_with_the_model(delta: tuple[float, float], similarity: float) -> None:
    base = vector(10.0, 20.0)  # which plays no part: only the movement from it does
    update = an_update(base + vector(*delta), base)
    view = at_version(Seafl(buffer=1, concurrency=1), 0, 4.0, 0.0)
    assert Seafl().likeness(update, view) == pytest.approx(similarity)
    assert Seafl(similarity_weight=2.5).likeness(update, view) == pytest.approx(2.5 * similarity)


@pytest.mark.parametrize(("delta", "similarity"), MODEL_1_0)
def test_equation_5_or_with_the_movement_of_the_model_since_the_base(
    delta: tuple[float, float], similarity: float
) -> None:
    base = vector(10.0, 20.0)
    update = an_update(base + vector(*delta), base)
    # The model [14, 20] is [4, 0] away from the base.
    view = at_version(Seafl(buffer=1, concurrency=1), 0, 14.0, 20.0)
    assert Seafl(similarity="movement").likeness(update, view) == pytest.approx(similarity)


def test_equation_5_a_fresh_update_has_no_global_movement_to_differ_from() -> None:
    base = vector(10.0, 20.0)
    for after in (vector(-1.0, 3.0), vector(11.0, 20.0)):
        view = at_version(Seafl(buffer=1, concurrency=1), 0, 10.0, 20.0)
        assert Seafl(similarity="movement").likeness(an_update(after, base), view) == 1.0


def test_equation_5_nothing_is_compared_if_similarity_counts_nothing() -> None:
    view = at_version(Seafl(buffer=1, concurrency=1), 0, 1.0, 0.0)
    assert Seafl(similarity_weight=0.0).likeness(an_update(vector(1.0, 0.0), vector(0.0, 0.0)), view) == 0.0


def test_the_cosine_stays_in_its_bounds_whatever_the_rounding() -> None:
    one = vector(0.1, 0.7)
    for scale in (1e-30, 1e-3, 1.0, 3.3, 1e30):
        assert cosine(one, np.float32(scale) * one) == pytest.approx(1.0)
        assert -1.0 <= cosine(one, np.float32(-scale) * one) <= cosine(one, np.float32(scale) * one) <= 1.0


def test_equation_6_weighs_by_data_freshness_and_similarity() -> None:
    policy = Seafl(buffer=1, concurrency=1)  # alpha 3, beta 10, mu 1
    view = at_version(policy, 5, 4.0, 0.0)
    buffer = [
        an_update(vector(2.0, 0.0), vector(0.0, 0.0), base=5, samples=10),  # s 0, cos 1: 10 * (3 + 1)       = 40
        an_update(vector(0.0, 5.0), vector(0.0, 0.0), base=3, samples=20),  # s 2, cos 0: 20 * (2.5 + 0.5)   = 60
        an_update(vector(-1.0, 0.0), vector(0.0, 0.0), base=0, samples=50),  # s 5, cos -1: 50 * (2 + 0)     = 100
    ]
    weights = policy.weights(buffer, view)
    assert weights == pytest.approx([40.0, 60.0, 100.0])
    assert [weight / sum(weights) for weight in weights] == pytest.approx([0.2, 0.3, 0.5])


def aggregated_twice(policy: Seafl) -> tuple[ScriptedSession, list[float]]:
    """Two versions by three devices with 7, 8 and 28 samples, the third of them stale; the model after each."""
    session = a_session(policy, samples=(7, 8, 28), start=(1.0, 0.0))
    session.upload(3.0, 0.0, device=0)
    session.upload(1.0, 6.0, device=1)
    first = session.parameters.tolist()
    session.upload(3.0, 2.0, device=2)
    session.upload(0.0, 3.0, device=1)
    return session, first


def test_equations_7_and_8_with_a_stale_update() -> None:
    session, first = aggregated_twice(Seafl(buffer=2, concurrency=3, staleness_limit=2.0, mixing=0.5))
    # Version 0, w = [1, 0]; gamma(0) = 3.
    #   device 0: Delta = [2, 0], cos 1, s = 1:    7 * (3 + 1)   = 28
    #   device 1: Delta = [0, 6], cos 0, s = 1/2:  8 * (3 + 1/2) = 28,  so p = 1/2, 1/2
    #   w_new = ([3, 0] + [1, 6]) / 2 = [2, 3];  w = 1/2 [1, 0] + 1/2 [2, 3] = [1.5, 1.5]
    assert first == pytest.approx([1.5, 1.5])
    # Version 1, w = [1.5, 1.5]; gamma(1) = 3 * 2 / (1 + 2) = 2.
    #   device 2: base 0, Delta = [3, 2] - [1, 0] = [2, 2], cos 1, s = 1:      28 * (2 + 1)   = 84
    #   device 1: base 1, Delta = [0, 3] - [1.5, 1.5] = [-1.5, 1.5], cos 0:     8 * (3 + 1/2) = 28,  so p = 3/4, 1/4
    #   w_new = 3/4 [3, 2] + 1/4 [0, 3] = [2.25, 2.25];  w = 1/2 [1.5, 1.5] + 1/2 [2.25, 2.25] = [1.875, 1.875]
    assert (session.version, session.counters.staleness_sum) == (2, 1)
    assert session.parameters == pytest.approx([1.875, 1.875])


def test_equations_7_and_8_by_the_movement_of_the_model() -> None:
    session, first = aggregated_twice(
        Seafl(buffer=2, concurrency=3, staleness_limit=2.0, mixing=1.0, similarity="movement")
    )
    # Version 0: both are fresh, cos 1: 7 * 4 and 8 * 4.  w = 7/15 [3, 0] + 8/15 [1, 6] = [29/15, 48/15]
    assert first == pytest.approx([29 / 15, 3.2])
    # Version 1, w - w_0 = [14/15, 48/15], along [7, 24], which is 25 long.
    #   device 2: Delta = [2, 2], cos = (7 + 24) / (25 sqrt 2) = 0.8768124, s = 0.9384062:  28 * 2.9384062 = 82.275374
    #   device 1: fresh, cos 1:                                                              8 * 4         = 32
    #   p = 0.7199746, 0.2800254;  w = 0.7199746 [3, 2] + 0.2800254 [0, 3]
    assert session.parameters == pytest.approx([2.1599238, 2.2800254], rel=1e-6)


def test_the_published_share_of_the_aggregate_is_four_fifths() -> None:
    session = a_session(Seafl(buffer=1, concurrency=1), start=(10.0, 0.0))
    session.upload(20.0, 5.0, ticket=1)
    assert session.parameters == pytest.approx([18.0, 4.0])  # 0.2 [10, 0] + 0.8 [20, 5]


NUMBERS = st.floats(-100, 100, width=32)
POLICIES = st.builds(
    lambda kind, limit, alpha, mu, similarity: kind(
        buffer=1,
        concurrency=1,
        mixing=1.0,
        staleness_limit=limit,
        staleness_weight=alpha,
        similarity_weight=mu,
        similarity=similarity,
    ),
    st.sampled_from([Seafl, Seafl2, Port]),
    st.sampled_from([1.0, 3.0, 10.0, inf]),
    st.sampled_from([0.5, 3.0]),
    st.sampled_from([0.0, 1.0, 4.0]),
    st.sampled_from(["model", "movement", "last-step"]),
)


@st.composite
def buffers(draw: st.DrawFn) -> list[Update]:
    """Up to six updates at version 9 from anywhere."""
    points = st.tuples(NUMBERS, NUMBERS)
    return [
        an_update(
            vector(*draw(points)),
            vector(*draw(points)),
            base=draw(st.integers(0, 9)),
            samples=draw(st.integers(1, 10_000)),
            device=device,
        )
        for device in range(draw(st.integers(1, 6)))
    ]


@given(policy=POLICIES, buffer=buffers(), model=st.tuples(NUMBERS, NUMBERS), common=st.tuples(NUMBERS, NUMBERS))
@settings(max_examples=40, deadline=None)
def test_weights_are_never_negative_and_what_all_updates_agree_on_is_followed_to_the_letter(
    policy: Seafl, buffer: list[Update], model: tuple[float, float], common: tuple[float, float]
) -> None:
    view = at_version(policy, 9, *model)
    weights = policy.weights(buffer, view)
    assert all(weight >= 0 for weight in weights)
    assert sum(weights) > 0
    # As the weights are normalised, updates that agree are followed: the model that all of them are ...
    agreed = vector(*common)
    if isinstance(policy, Port):  # ... or the movement that all of them made
        same = [
            an_update(update.base_parameters + agreed, update.base_parameters, base=update.base) for update in buffer
        ]
        expected = view.parameters + agreed
    else:
        same = [an_update(agreed, update.base_parameters, base=update.base) for update in buffer]
        expected = agreed
    assert policy.new_version(same, view) == pytest.approx(expected, rel=1e-5, abs=1e-4)


def test_orders_say_what_to_do_on_notice() -> None:
    for kind in (Seafl2, Port):
        for on_notice, drops in (("finish-epoch", False), ("last-finished", True)):
            policy = kind.model_validate({"buffer": 1, "concurrency": 2, "on_notice": on_notice})
            session = ScriptedSession(policy, devices=2)
            again = session.upload(1.0, 1.0, device=0)
            assert [given.order.drops_unfinished for given in (*session.first.orders, *again.orders)] == [drops] * 3
        assert kind().on_notice == "finish-epoch"


def test_deltas_are_averaged_from_their_own_bases_and_models_as_they_are() -> None:
    # Weights alike (similarity 0, no limit, equal samples); model [0, 0], then device 0 makes it [4, 0] by half a step.
    results = {}
    for aggregate in ("models", "deltas"):
        settings = {"buffer": 1, "concurrency": 2, "mixing": 0.5, "similarity_weight": 0.0, "aggregate": aggregate}
        session = ScriptedSession(Seafl.model_validate(settings), devices=2)
        session.upload(8.0, 0.0, device=0)
        assert session.parameters.tolist() == [4.0, 0.0]
        session.upload(0.0, 2.0, device=1)  # from the base [0, 0]: it moved by [0, 2]
        results[aggregate] = session.parameters.tolist()
    # models: 1/2 [4, 0] + 1/2 [0, 2];  deltas: [4, 0] + 1/2 [0, 2]
    assert results == {"models": [2.0, 1.0], "deltas": [4.0, 1.0]}
    assert Seafl().aggregate == "models" and Port().aggregate == "deltas"


@given(buffer=buffers(), model=st.tuples(NUMBERS, NUMBERS))
@settings(max_examples=40, deadline=None)
def test_the_aggregate_lies_among_the_updates(buffer: list[Update], model: tuple[float, float]) -> None:
    policy = Seafl(mixing=1.0, buffer=1, concurrency=1)
    new = policy.new_version(buffer, at_version(policy, 9, *model))
    points = np.array([update.parameters for update in buffer])
    assert (points.min(axis=0) - 1e-3 <= new).all()
    assert (new <= points.max(axis=0) + 1e-3).all()


# Settings ------------------------------------------------------------------------------------------------------------


def test_the_defaults_are_the_published_ones() -> None:
    policy = Seafl()
    assert (policy.buffer, policy.concurrency, policy.staleness_limit) == (10, 20, 10.0)
    assert (policy.staleness_weight, policy.similarity_weight, policy.mixing) == (3.0, 1.0, 0.8)
    assert (policy.similarity, policy.replace) == ("model", "random")


@pytest.mark.parametrize("policy", [Seafl, Seafl2, Port])
def test_a_buffer_that_can_never_fill_is_refused(policy: type[Seafl]) -> None:
    with pytest.raises(InvalidInput, match=r"algorithm\.buffer = 5 exceeds algorithm\.concurrency = 4"):
        a_session(policy(buffer=5, concurrency=4))


def test_more_concurrency_than_devices_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"algorithm\.concurrency = 9: there are only 8 devices"):
        a_session(Seafl(buffer=2, concurrency=9))


def test_weights_that_are_all_nothing_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"staleness_weight and algorithm\.similarity_weight are both 0"):
        a_session(Seafl(buffer=1, concurrency=2, staleness_weight=0.0, similarity_weight=0.0))


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_a_limit_that_is_none_is_refused(limit: float) -> None:
    with pytest.raises(InvalidInput, match="staleness_limit"):
        Seafl(staleness_limit=limit)


@pytest.mark.parametrize("name", ["staleness_weight", "similarity_weight"])
def test_infinite_weights_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        Seafl.model_validate({name: inf})


def test_updates_that_all_point_away_from_the_model_do_not_end_the_run() -> None:
    session = a_session(Seafl(buffer=1, concurrency=1, staleness_weight=0.0), start=(1.0, 0.0))
    session.upload(-1.0, 0.0, ticket=1)  # Delta = [-2, 0], cos -1: it weighs nothing, and there is no other
    assert session.version == 1


# When it aggregates --------------------------------------------------------------------------------------------------


def test_it_waits_for_k_uploads_and_not_for_one_more() -> None:
    session = a_session(Seafl(buffer=3, concurrency=5))
    for number, ticket in enumerate((1, 2, 3)):
        assert (session.version, len(session.state.buffer)) == (0, number)
        session.upload(3.0, 0.0, ticket=ticket)
    assert (session.version, session.counters.used, session.state.buffer) == (1, 3, [])


def waits_for_ticket_2(policy: type[Seafl] = Seafl) -> ScriptedSession:
    """K = 1, M = 3, beta = 2; ticket 2 has come to the limit, and another upload is in the buffer."""
    session = a_session(policy(buffer=1, concurrency=3, staleness_limit=2.0))
    session.upload(ticket=1)
    session.upload(ticket=3)
    assert (session.version, session.in_flight[2].base) == (2, 0)
    session.upload(ticket=session.newest)
    assert (session.version, len(session.state.buffer)) == (2, 1)
    return session


def test_it_waits_for_a_device_at_the_limit_and_goes_on_when_it_uploads() -> None:
    session = waits_for_ticket_2()
    session.upload(ticket=2)
    assert (session.version, session.counters.used, session.state.buffer) == (3, 4, [])
    assert session.counters.staleness_max == 2


def test_it_waits_for_a_device_at_the_limit_and_goes_on_when_it_is_lost() -> None:
    session = waits_for_ticket_2()
    session.lose(ticket=2)
    assert (session.version, session.counters.used, session.state.buffer) == (3, 3, [])
    assert len(session.in_flight) == 3


def test_what_arrives_while_it_waits_is_aggregated_with_the_rest() -> None:
    session = waits_for_ticket_2()
    session.upload(ticket=session.newest)
    assert (session.version, len(session.state.buffer), list(session.in_flight)) == (2, 2, [2])
    session.upload(ticket=2)
    assert (session.version, session.counters.used) == (3, 5)


def test_it_waits_for_all_that_are_at_the_limit() -> None:
    session = a_session(Seafl(buffer=2, concurrency=6, staleness_limit=1.0))
    for ticket in (1, 2):
        session.upload(ticket=ticket)  # version 1: tickets 3 to 6 are at the limit
    for number, ticket in enumerate((3, 4, 5)):
        session.upload(ticket=ticket)
        assert (session.version, len(session.state.buffer)) == (1, number + 1)
    session.upload(ticket=6)
    assert (session.version, session.counters.used, session.counters.staleness_max) == (2, 6, 1)


def test_a_device_below_the_limit_is_not_waited_for() -> None:
    session = a_session(Seafl(buffer=1, concurrency=2, staleness_limit=3.0))
    for version in (1, 2, 3):
        session.upload(ticket=session.newest)
        assert session.version == version
    session.upload(ticket=session.newest)
    assert session.version == 3, "the first order has come to staleness 3"


def test_without_a_limit_nobody_is_ever_waited_for_or_notified() -> None:
    session = a_session(Seafl2(buffer=1, concurrency=2, staleness_limit=inf))
    for version in range(1, 31):
        session.upload(ticket=session.newest)
        assert session.version == version
    assert (session.counters.notices, session.in_flight[1].base) == (0, 0)
    session.upload(ticket=1)
    assert (session.version, session.counters.staleness_max) == (31, 30)


def test_a_limit_between_two_whole_numbers_is_kept_too() -> None:
    session = a_session(Seafl(buffer=1, concurrency=2, staleness_limit=1.5))
    session.upload(ticket=session.newest)
    session.upload(ticket=session.newest)
    assert session.version == 1, "another version would make the first order's update 2 versions stale"


def test_if_nobody_is_left_in_training_the_buffer_is_aggregated_as_it_is() -> None:
    session = a_session(Seafl(buffer=3, concurrency=3, mixing=1.0), samples=(10, 10, 10))
    session.upload(6.0, 3.0, ticket=1)
    session.lose(ticket=2)
    assert (session.version, len(session.state.buffer)) == (0, 1)
    session.lose(ticket=3)
    assert (session.version, session.counters.used, session.parameters.tolist()) == (1, 1, [6.0, 3.0])
    assert len(session.in_flight) == 1, "the only device that is there trains"


def test_with_nothing_in_the_buffer_and_nobody_in_training_it_waits_for_a_device() -> None:
    session = a_session(Seafl(buffer=1, concurrency=1), samples=(10,))
    session.lose(ticket=1)
    assert (session.version, len(session.in_flight)) == (0, 0)
    assert session.handle(Ready(device=0), 1.0).ordered == [0]


# Whom it orders ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replace", ["random", "same"])
@pytest.mark.parametrize("policy", [Seafl, Seafl2, Port])
def test_the_concurrency_is_kept(policy: type[Seafl], replace: Any) -> None:
    session = a_session(policy(buffer=2, concurrency=4, staleness_limit=2.0, replace=replace))
    for number in range(40):
        busy = [update.device for update in session.state.buffer]
        busy += [flight.device for flight in session.in_flight.values()]
        assert len(set(busy)) == len(busy) == 4, "nobody is in training or in the buffer twice"
        tickets = list(session.in_flight)
        if number % 4 == 3:
            lost = session.in_flight[tickets[0]].device
            session.lose(ticket=tickets[0])
            session.handle(Ready(device=lost), session.now)
        else:
            session.upload(ticket=tickets[number % 3 % len(tickets)])
    assert session.version > 10


def test_who_waits_in_the_buffer_is_not_ordered_before_it_is_aggregated() -> None:
    session = a_session(Seafl(buffer=3, concurrency=3), samples=(10, 10, 10, 10))
    waiting = session.in_flight[1].device
    session.upload(ticket=1)
    effects = session.lose(ticket=2)
    assert len(effects.ordered) == 1
    assert waiting not in effects.ordered, "two devices were idle, but one waits in the buffer"
    assert not session.lose(ticket=3).ordered, "only the one in the buffer is idle"


def test_by_default_anybody_idle_may_replace_those_who_reported() -> None:
    session = a_session(Seafl(buffer=1, concurrency=1))
    seen = set()
    for _ in range(60):
        seen |= {flight.device for flight in session.in_flight.values()}
        session.upload(ticket=session.newest)
    assert seen == set(range(8))


def test_with_same_only_those_who_reported_are_ordered_again() -> None:
    session = a_session(Seafl(buffer=2, concurrency=4, replace="same"))
    first = {flight.device for flight in session.in_flight.values()}
    for _ in range(20):
        reported = [update.device for update in session.state.buffer]
        ticket = session.newest
        reported.append(session.in_flight[ticket].device)
        effects = session.upload(ticket=ticket)
        assert effects.ordered == (reported if len(reported) == 2 else [])
        assert {flight.device for flight in session.in_flight.values()} | set(reported) == first
    assert session.version == 10


def test_with_same_a_reporter_that_left_is_replaced_by_another() -> None:
    session = a_session(Seafl(buffer=2, concurrency=2, replace="same"))
    gone, stays = session.in_flight[1].device, session.in_flight[2].device
    session.upload(ticket=1)
    session.handle(Left(device=gone), session.now)
    now_ordered = session.upload(ticket=2).ordered
    assert len(now_ordered) == 2
    assert stays in now_ordered
    assert gone not in now_ordered


def test_orders_after_an_aggregation_are_from_the_new_version() -> None:
    session = a_session(Seafl(buffer=1, concurrency=2, mixing=1.0))
    (order,) = (effect for effect in session.upload(4.0, 2.0, ticket=1) if isinstance(effect, Assignment))
    assert (order.base, order.parameters.tolist()) == (1, [4.0, 2.0])


# Notices -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Seafl2, Port])
def test_a_device_is_notified_once_when_it_comes_to_the_limit(policy: type[Seafl]) -> None:
    session = a_session(policy(buffer=1, concurrency=4, staleness_limit=2.0))
    assert notified(session.upload(ticket=1)) == [], "staleness 1"
    assert notified(session.upload(ticket=session.newest)) == [2, 3, 4]
    assert notified(session.upload(ticket=session.newest)) == []
    assert notified(session.upload(ticket=2)) == []
    assert notified(session.lose(ticket=3)) == []
    assert session.version == 2
    session.upload(ticket=4)
    assert (session.version, session.counters.notices) == (3, 3)


def test_seafl_notifies_nobody() -> None:
    session = waits_for_ticket_2(Seafl)
    session.upload(ticket=2)
    assert session.counters.notices == 0


def test_partial_work_counts_by_its_data_like_any_other() -> None:
    session = a_session(Seafl2(buffer=2, concurrency=2, mixing=1.0), samples=(10, 30))
    session.upload(4.0, 0.0, device=0, slices=1)
    session.upload(0.0, 4.0, device=1, slices=3)
    # The model [0, 0] has no direction: cos 1 for both. p = 10/40, 30/40, whatever the epochs.
    assert session.parameters == pytest.approx([1.0, 3.0])


def test_metrics_say_how_many_epochs_were_done_and_how_often_fewer_than_ordered() -> None:
    session = a_session(Seafl2(buffer=2, concurrency=2))
    assert session.metrics == {"mean_epochs": 0.0, "partial_updates": 0}
    session.upload(ticket=1, slices=3)
    assert session.metrics["mean_epochs"] == 0.0, "only what was aggregated counts"
    session.upload(ticket=2, slices=1)
    assert session.metrics == {"mean_epochs": 2.0, "partial_updates": 1}  # (3 + 1) / 2
    session.upload(ticket=3, slices=2)
    session.upload(ticket=4, slices=2)
    assert session.metrics == {"mean_epochs": 2.0, "partial_updates": 3}  # (3 + 1 + 2 + 2) / 4
