"""FedAvg on a model of two numbers: every mean worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.algorithms.fedavg import FedAvg
from offbeat.core.errors import DeviceFault, InvalidInput
from offbeat.core.messages import Assignment, Left, Ready
from offbeat.testing import ScriptedSession

SAMPLES = (10, 30, 60, 0)


def a_session(policy: FedAvg, present: tuple[int, ...] = (0, 1, 2)) -> ScriptedSession:
    return ScriptedSession(
        policy, samples=SAMPLES, present=present, epochs=2, learning_rate=0.5, learning_rate_decay=0.1
    )


def test_a_round_takes_the_mean_weighted_by_samples_when_all_have_reported() -> None:
    session = a_session(FedAvg(cohort=3))
    assert set(session.bases) == {0, 1, 2}
    session.upload(1.0, 4.0, device=2)
    session.upload(10.0, 0.0, device=0)
    assert session.version == 0, "the round waits for the slowest"
    session.upload(2.0, 8.0, device=1)
    # n = 10 + 30 + 60 = 100:  (10 * 10 + 30 * 2 + 60 * 1) / 100 = 2.2,  (10 * 0 + 30 * 8 + 60 * 4) / 100 = 4.8
    assert session.version == 1
    assert session.parameters == pytest.approx([2.2, 4.8])
    assert session.counters.used == 3
    assert session.counters.staleness_max == 0


def test_uniform_weights_do_not_look_at_samples() -> None:
    session = a_session(FedAvg(cohort=3, weighting="uniform"))
    session.upload(10.0, 0.0, device=0)
    session.upload(2.0, 8.0, device=1)
    session.upload(1.0, 4.0, device=2)
    # (10 + 2 + 1) / 3 = 13/3,  (0 + 8 + 4) / 3 = 4
    assert session.parameters == pytest.approx([13 / 3, 4.0])


def test_the_next_round_starts_from_the_new_model_with_the_decayed_learning_rate() -> None:
    session = a_session(FedAvg(cohort=1), present=(1,))
    (_, again) = session.upload(3.0, 5.0, device=1)
    assert isinstance(again, Assignment)
    assert (again.device, again.ticket, again.base) == (1, 2, 1)
    assert again.parameters.tolist() == [3.0, 5.0]
    # 0.5 * 0.1^1
    assert again.order.learning_rate == pytest.approx(0.05)
    assert (again.order.slices, again.order.prox) == (2, 0.0)


def test_a_lost_device_is_no_longer_waited_for_and_does_not_count() -> None:
    session = a_session(FedAvg(cohort=3))
    session.upload(10.0, 0.0, device=0)
    session.upload(2.0, 8.0, device=1)
    session.lose(device=2)
    # (10 * 10 + 30 * 2) / 40 = 4,  (10 * 0 + 30 * 8) / 40 = 6
    assert session.version == 1
    assert session.parameters.tolist() == [4.0, 6.0]
    assert set(session.bases) == {0, 1}, "the next round takes those that are there"


def test_a_device_lost_early_does_not_end_the_round() -> None:
    session = a_session(FedAvg(cohort=3))
    session.lose(device=0)
    session.upload(2.0, 8.0, device=1)
    assert (session.version, set(session.bases)) == (0, {2})


def test_a_round_in_which_nobody_reported_makes_no_version_and_the_next_begins() -> None:
    session = a_session(FedAvg(cohort=2))
    for device in set(session.bases):
        session.lose(device=device)
    assert session.version == 0
    assert len(set(session.bases)) == 1, "one of three was left"
    session.lose(device=next(iter(set(session.bases))))
    assert set(session.bases) == set(), "nobody is left: wait"
    session.handle(Ready(device=1), session.now)
    assert set(session.bases) == {1}


def test_devices_that_come_and_go_during_a_round_do_not_disturb_it() -> None:
    session = a_session(FedAvg(cohort=2), present=(0, 1))
    session.handle(Ready(device=2), session.now)
    assert set(session.bases) == {0, 1}
    session.handle(Left(device=2), session.now)
    assert (session.version, set(session.bases)) == (0, {0, 1})


def test_more_devices_in_a_round_than_there_are_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"algorithm\.cohort = 5: there are only 4 devices"):
        a_session(FedAvg(cohort=5))


def test_an_update_without_data_is_refused_so_that_no_round_weighs_nothing() -> None:
    session = a_session(FedAvg(cohort=1), present=(3,))
    with pytest.raises(DeviceFault, match="claims 0 samples"):
        session.upload(0.0, 0.0, device=3)
    assert session.parameters.tolist() == [0.0, 0.0]
    assert set(session.bases) == {3}


@given(st.permutations([0, 1, 2]), st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3))
def test_the_order_of_the_uploads_makes_no_difference(order: list[int], numbers: list[float]) -> None:
    session = a_session(FedAvg(cohort=3))
    for device in order:
        session.upload(numbers[device], 1.0, device=device)
    expected = sum(SAMPLES[device] * numbers[device] for device in range(3)) / 100
    assert session.parameters[0] == pytest.approx(expected, abs=1e-4)
    assert session.parameters[1] == pytest.approx(1.0)
