"""FedSA (our reading): epochs and mixing weights worked out by hand."""

import pytest

from offbeat.algorithms.fedsa import FedSA
from offbeat.core.errors import InvalidInput
from offbeat.testing import ScriptedSession


def test_the_mixing_weight_falls_with_staleness() -> None:
    session = ScriptedSession(FedSA(concurrency=2, alpha=0.5, exponent=1.0), devices=4)
    session.upload(4.0, 0.0, ticket=1)
    # fresh: 0.5 * 1 = 0.5
    assert session.parameters.tolist() == [2.0, 0.0]
    session.upload(6.0, 8.0, ticket=2)
    # staleness 1: 0.5 / 2 = 0.25: 0.75 * [2, 0] + 0.25 * [6, 8]
    assert session.parameters.tolist() == [3.0, 2.0]


def test_a_device_gets_fewer_epochs_after_a_stale_update() -> None:
    session = ScriptedSession(FedSA(concurrency=2, epochs_exponent=1.0), devices=2, epochs=6)
    assert [order.order.slices for order in session.first.orders] == [6, 6], "nothing is known of anybody yet"
    slow = session.in_flight[2].device
    session.upload(ticket=1)
    reaction = session.upload(device=slow)
    # staleness 1: 6 / 2 = 3
    assert [(order.device, order.order.slices) for order in reaction.orders] == [(slow, 3)]


def test_epochs_are_rounded_to_the_nearest_whole_number() -> None:
    session = ScriptedSession(FedSA(concurrency=2, epochs_exponent=0.5), devices=2, epochs=5)
    slow = session.in_flight[2].device
    session.upload(ticket=1)
    # staleness 1: 5 / sqrt 2 = 3.54
    assert [order.order.slices for order in session.upload(device=slow).orders] == [4]


def test_staleness_counts_from_the_version_that_the_device_was_given_and_is_each_devices_own() -> None:
    policy = FedSA(concurrency=2, alpha=0.5, exponent=1.0, epochs_exponent=1.0)
    session = ScriptedSession(policy, devices=2, epochs=6)
    fast, slow = (session.in_flight[ticket].device for ticket in (1, 2))
    session.upload(4.0, 0.0, device=fast)
    reaction = session.upload(6.0, 8.0, device=fast)
    # version 1 was given and is still the last one, so this is fresh: 0.5 * [2, 0] + 0.5 * [6, 8]
    assert session.parameters.tolist() == [4.0, 4.0]
    assert [order.order.slices for order in reaction.orders] == [6]
    # version 0 was given, 2 is the last one: 6 / 3 = 2; then version 2 was given and 3 is the last one: 6 / 2 = 3
    assert [order.order.slices for order in session.upload(device=slow).orders] == [2]
    assert [order.order.slices for order in session.upload(device=fast).orders] == [3]


def test_the_convergence_phase_has_its_share_of_the_epochs_and_nobody_less_than_one() -> None:
    policy = FedSA(concurrency=1, convergence_version=2, convergence_share=0.4, epochs_exponent=0.0)
    session = ScriptedSession(policy, devices=1, epochs=5)
    epochs = [session.first.orders[0].order.slices, *(session.upload().orders[0].order.slices for _ in range(3))]
    # versions 0, 1, 2, 3: from version 2 on 0.4 * 5 = 2
    assert epochs == [5, 5, 2, 2]
    short = ScriptedSession(FedSA(concurrency=1, convergence_version=0, convergence_share=0.1), devices=1, epochs=2)
    assert short.first.orders[0].order.slices == 1


def test_more_in_training_than_there_are_devices_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"algorithm.concurrency = 5: there are only 4 devices"):
        FedSA(concurrency=5).check(4)
