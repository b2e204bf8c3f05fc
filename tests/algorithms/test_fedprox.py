"""FedProx: the proximal term and the time of a round travel with every order, and partial work counts."""

import pytest

from offbeat.algorithms.fedprox import FedProx
from offbeat.testing import ScriptedSession


def test_every_order_has_the_proximal_term_and_the_time_of_a_round() -> None:
    session = ScriptedSession(FedProx(cohort=2, mu=0.3, round_seconds=7.0), devices=2, epochs=5)
    assert [(order.order.prox, order.order.budget, order.order.slices) for order in session.first.orders] == [
        (0.3, 7.0, 5),
        (0.3, 7.0, 5),
    ]


def test_without_a_time_everybody_trains_all_epochs() -> None:
    assert ScriptedSession(FedProx(cohort=1)).first.orders[0].order.budget is None


def test_partial_work_counts_like_the_rest_and_work_without_an_epoch_is_discarded() -> None:
    session = ScriptedSession(FedProx(cohort=3, round_seconds=1.0), samples=[10, 30, 60], epochs=4)
    session.upload(8.0, 0.0, device=0, slices=1)
    assert session.upload(99.0, 99.0, device=2, slices=0).discarded == [session.counters.dispatched]
    session.upload(0.0, 4.0, device=1, slices=4)
    # (10 * 8 + 30 * 0) / 40 = 2,  (10 * 0 + 30 * 4) / 40 = 3: device 2 has no say
    assert session.version == 1
    assert session.parameters == pytest.approx([2.0, 3.0])
    assert (session.counters.used, session.counters.discarded) == (2, 1)
