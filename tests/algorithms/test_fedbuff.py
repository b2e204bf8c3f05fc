"""FedBuff on a model of two numbers: every movement worked out by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.algorithms.fedbuff import FedBuff
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Lost
from offbeat.testing import ScriptedSession

DEVICES = 8


def a_session(policy: FedBuff, start: tuple[float, float] = (0.0, 0.0)) -> ScriptedSession:
    return ScriptedSession(policy, samples=range(1, DEVICES + 1), start=start)


def test_nothing_happens_to_the_model_before_the_buffer_is_full() -> None:
    session = a_session(FedBuff(buffer=3, concurrency=4))
    session.upload(3.0, 0.0, ticket=1)
    session.upload(0.0, 3.0, ticket=2)
    assert (session.version, session.parameters.tolist()) == (0, [0.0, 0.0])
    session.upload(3.0, 3.0, ticket=3)
    # (D1 + D2 + D3) / 3 = ((3 + 0 + 3) / 3, (0 + 3 + 3) / 3)
    assert (session.version, session.parameters.tolist()) == (1, [2.0, 2.0])
    assert session.state.updates == []


def test_samples_play_no_part() -> None:
    session = a_session(FedBuff(buffer=2, concurrency=2))
    session.upload(4.0, 0.0, ticket=1)
    session.upload(0.0, 4.0, ticket=2)
    assert session.parameters.tolist() == [2.0, 2.0]


def test_deltas_are_taken_from_the_updates_own_base_and_scaled_by_staleness() -> None:
    session = a_session(FedBuff(buffer=1, concurrency=4), start=(1.0, 1.0))
    session.upload(3.0, 1.0, ticket=1)
    # base 0, staleness 0: [1, 1] + ([3, 1] - [1, 1]) = [3, 1]
    assert session.parameters.tolist() == [3.0, 1.0]
    session.upload(2.0, 5.0, ticket=2)
    # Its base is still [1, 1], so D = [1, 4], not [2, 5] - [3, 1]. s(1) = 1/sqrt 2:
    # [3 + 0.7071068, 1 + 2.8284271]
    assert session.parameters == pytest.approx([3.7071068, 3.8284271])
    session.upload(1.0, 2.7320508, ticket=3)
    # D = [0, 1.7320508], staleness 2, s(2) = 1/sqrt 3 = 0.5773503: [0, 1]
    assert session.parameters == pytest.approx([3.7071068, 4.8284271])


@pytest.mark.parametrize(("staleness", "weight"), [(0, 1.0), (1, 0.70710678), (3, 0.5), (8, 1 / 3), (15, 0.25)])
def test_the_staleness_scale_is_one_over_the_root_of_one_plus_staleness(staleness: int, weight: float) -> None:
    assert FedBuff().scale(staleness) == pytest.approx(weight)


def movement_by_a_stale_and_a_fresh_update(policy: FedBuff) -> Any:
    """How the model moves by two updates: one with staleness 3 and delta [4, 0], one fresh with delta [0, 1]."""
    session = a_session(policy)
    for _ in range(6):  # three versions by two fresh updates of [2, 0] each, while ticket 1 keeps its base 0
        session.upload(session.parameters[0] + 2.0, 0.0, ticket=list(session.in_flight)[-1])
    before = session.parameters
    fresh = list(session.in_flight)[-1]
    assert (session.version, session.in_flight[1].base, session.in_flight[fresh].base) == (3, 0, 3)
    assert before.tolist() == [6.0, 0.0]
    session.upload(4.0, 0.0, ticket=1)
    session.upload(6.0, 1.0, ticket=fresh)
    return session.parameters - before


def test_the_sum_is_divided_by_k_as_published() -> None:
    # s(3) = 1/2:  (1/2 [4, 0] + 1 [0, 1]) / 2 = [1, 0.5]
    assert movement_by_a_stale_and_a_fresh_update(FedBuff(buffer=2, concurrency=2)).tolist() == [1.0, 0.5]


def test_or_by_the_sum_of_the_weights() -> None:
    # (1/2 [4, 0] + 1 [0, 1]) / (1/2 + 1) = [4/3, 2/3]
    policy = FedBuff(buffer=2, concurrency=2, normaliser="weights")
    assert movement_by_a_stale_and_a_fresh_update(policy) == pytest.approx([4 / 3, 2 / 3])


def test_the_server_learning_rate_scales_the_movement() -> None:
    session = a_session(FedBuff(buffer=2, concurrency=2, server_learning_rate=0.5), start=(10.0, 10.0))
    session.upload(14.0, 10.0, ticket=1)
    session.upload(10.0, 18.0, ticket=2)
    # [10, 10] + 0.5 / 2 * ([4, 0] + [0, 8]) = [11, 12]
    assert session.parameters.tolist() == [11.0, 12.0]


def test_a_delta_counts_the_staleness_at_aggregation_not_at_arrival() -> None:
    session = a_session(FedBuff(buffer=2, concurrency=4))
    session.upload(2.0, 0.0, ticket=1)
    session.upload(2.0, 0.0, ticket=2)  # version 1, model [2, 0]
    session.upload(0.0, 2.0, ticket=3)  # arrives at staleness 1 ...
    assert session.state.updates[0].base == 0
    session.upload(0.0, 2.0, ticket=4)  # ... and is used at staleness 1, as this one
    assert session.counters.staleness_sum == 2
    # [2, 0] + 1/2 (2 * 0.7071068 * [0, 2])
    assert session.parameters == pytest.approx([2.0, 1.4142136])


def test_the_concurrency_is_kept_full_after_every_upload_and_every_loss() -> None:
    session = a_session(FedBuff(buffer=3, concurrency=4))
    for number in range(1, 20):
        assert len(session.in_flight) == 4
        ticket = next(iter(session.in_flight))
        if number % 5:
            session.upload(0.0, 0.0, ticket=ticket)
        elif session.idle > 0:
            session.handle(Lost(device=session.in_flight[ticket].device, ticket=ticket), session.now)
    assert session.counters.lost == 3
    assert session.counters.dispatched == 4 + 19


def test_a_device_may_be_twice_in_one_buffer() -> None:
    session = a_session(FedBuff(buffer=3, concurrency=DEVICES))  # all are busy: who reports is ordered again
    session.upload(3.0, 0.0, ticket=1)
    again = list(session.in_flight)[-1]
    session.upload(3.0, 0.0, ticket=again)
    session.upload(3.0, 0.0, ticket=2)
    assert (session.version, session.parameters.tolist()) == (1, [3.0, 0.0])


def test_plato_takes_the_mean_of_the_buffered_models_whatever_their_bases() -> None:
    session = a_session(FedBuff(buffer=2, concurrency=4, variant="plato"), start=(1.0, 1.0))
    session.upload(3.0, 1.0, ticket=1)
    session.upload(1.0, 5.0, ticket=2)
    # ([3, 1] + [1, 5]) / 2
    assert session.parameters.tolist() == [2.0, 3.0]
    session.upload(4.0, 0.0, ticket=3)  # base [1, 1], staleness 1
    session.upload(0.0, 8.0, ticket=4)
    # ([4, 0] + [0, 8]) / 2, unscaled; published: [2, 3] + 1/2 s(1) ([3, -1] + [-1, 7])
    assert session.parameters.tolist() == [2.0, 4.0]


def test_plato_steps_from_the_current_model_by_the_server_learning_rate() -> None:
    session = a_session(FedBuff(buffer=1, concurrency=2, variant="plato", server_learning_rate=0.5))
    session.upload(4.0, 0.0, ticket=1)
    assert session.parameters.tolist() == [2.0, 0.0]
    session.upload(0.0, 4.0, ticket=2)
    # From [2, 0] half of the way to [0, 4]; from its own base, [0, 0], it would be + [0, 2] and scaled
    assert session.parameters.tolist() == [1.0, 2.0]


def test_plato_gives_no_order_for_an_upload_before_it_aggregates() -> None:
    session = a_session(FedBuff(buffer=2, concurrency=3, variant="plato"))
    assert session.upload(1.0, 1.0, ticket=1).ordered == []
    assert len(session.upload(1.0, 1.0, ticket=2).ordered) == 2
    assert len(session.in_flight) == 3
    with pytest.raises(InvalidInput, match=r"algorithm\.buffer = 3 exceeds algorithm\.concurrency = 2"):
        a_session(FedBuff(buffer=3, concurrency=2, variant="plato"))


@pytest.mark.parametrize("seed", range(8))
def test_plato_replaces_a_lost_device_at_once_but_never_by_one_whose_update_is_in_the_buffer(seed: int) -> None:
    session = ScriptedSession(FedBuff(buffer=3, concurrency=3, variant="plato"), devices=4, seed=seed)
    (spare,) = {0, 1, 2, 3} - set(session.bases)
    first, second, third = session.bases
    session.upload(3.0, 0.0, device=first)
    session.upload(0.0, 3.0, device=second)
    # Idle are now the two in the buffer and the spare one. Nothing is in flight after the loss, but no aggregation of
    # two updates follows: the spare device takes the lost one's place, and the buffer of three fills.
    reaction = session.lose(device=third)
    assert (list(reaction.ordered), reaction.used) == ([spare], [])
    # The lost device is ordered when it is back only after the aggregation: three are in training or in the buffer.
    assert session.come(third).ordered == []
    assert len(session.upload(3.0, 3.0, device=spare).used) == 3
    assert session.parameters.tolist() == [2.0, 2.0]
    assert len(session.in_flight) == 3


def test_plato_orders_nothing_if_all_idle_devices_are_in_the_buffer() -> None:
    session = ScriptedSession(FedBuff(buffer=3, concurrency=3, variant="plato"), devices=3)
    session.upload(3.0, 0.0, device=0)
    assert session.lose(device=1).ordered == []
    assert set(session.bases) == {2}


def test_plato_does_not_wait_for_those_that_are_lost() -> None:
    session = ScriptedSession(FedBuff(buffer=2, concurrency=2, variant="plato"), devices=2)
    ticket = session.ticket_of(device=0)
    session.upload(4.0, 2.0, device=0)
    assert session.lose(device=1).used == [ticket]
    assert session.parameters.tolist() == [4.0, 2.0]


def test_more_concurrency_than_devices_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"algorithm\.concurrency = 9: there are only 8 devices"):
        a_session(FedBuff(concurrency=9))


@given(st.lists(st.tuples(st.floats(-10, 10, width=32), st.floats(-10, 10, width=32)), min_size=3, max_size=3))
def test_fresh_updates_move_the_model_by_their_mean_whatever_the_normaliser(moves: list[tuple[float, float]]) -> None:
    for normaliser in ("K", "weights"):
        session = a_session(FedBuff(buffer=3, concurrency=3, normaliser=normaliser))
        for ticket, move in zip((1, 2, 3), moves, strict=True):
            session.upload(*move, ticket=ticket)
        assert session.parameters == pytest.approx(np.mean(moves, axis=0), abs=1e-5)
