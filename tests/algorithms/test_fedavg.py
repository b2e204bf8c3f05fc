"""FedAvg on a model of two numbers: every mean worked out by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.algorithms.fedavg import FedAvg
from offbeat.core.effects import Assignment
from offbeat.core.errors import DeviceFault, InvalidInput
from offbeat.core.events import Left, Lost, Ready, Started, Uploaded
from offbeat.core.orders import KnownOutcome, LocalWork, Outcome, Progress, Update
from offbeat.core.parameters import Layout
from offbeat.core.session import Session

SAMPLES = (10, 30, 60, 0)


def a_session(policy: FedAvg, present: tuple[int, ...] = (0, 1, 2)) -> Session:
    session = Session(
        policy,
        parameters=np.zeros(2, dtype=np.float32),
        layout=Layout.flat(2),
        samples=np.array(SAMPLES),
        training=LocalWork(epochs=2, learning_rate=0.5, learning_rate_decay=0.1),
        present=np.isin(np.arange(4), present),
    )
    session.handle(Started(), 0.0)
    return session


def ticket_of(session: Session, device: int) -> int:
    return next(ticket for ticket, flight in session.in_flight.items() if flight.device == device)


def upload(session: Session, device: int, *numbers: float) -> list[Any]:
    ticket = ticket_of(session, device)
    base = session.in_flight[ticket].base
    update = Update(
        device=device,
        ticket=ticket,
        base=base,
        base_parameters=session.kept(base),
        samples=SAMPLES[device],
        progress=Progress(slices=2),
        outcome=KnownOutcome(Outcome(parameters=np.array(numbers, dtype=np.float32))),
    )
    return session.handle(Uploaded(device=device, ticket=ticket, update=update), session.now)


def lose(session: Session, device: int) -> list[Any]:
    return session.handle(Lost(device=device, ticket=ticket_of(session, device)), session.now)


def at_work(session: Session) -> set[int]:
    return {flight.device for flight in session.in_flight.values()}


def test_a_round_takes_the_mean_weighted_by_samples_when_all_have_reported() -> None:
    session = a_session(FedAvg(cohort=3))
    assert at_work(session) == {0, 1, 2}
    upload(session, 2, 1.0, 4.0)
    upload(session, 0, 10.0, 0.0)
    assert session.version == 0, "the round waits for the slowest"
    upload(session, 1, 2.0, 8.0)
    # n = 10 + 30 + 60 = 100:  (10 * 10 + 30 * 2 + 60 * 1) / 100 = 2.2,  (10 * 0 + 30 * 8 + 60 * 4) / 100 = 4.8
    assert session.version == 1
    assert session.parameters == pytest.approx([2.2, 4.8])
    assert session.counters.used == 3
    assert session.counters.staleness_max == 0


def test_uniform_weights_do_not_look_at_samples() -> None:
    session = a_session(FedAvg(cohort=3, weighting="uniform"))
    upload(session, 0, 10.0, 0.0)
    upload(session, 1, 2.0, 8.0)
    upload(session, 2, 1.0, 4.0)
    # (10 + 2 + 1) / 3 = 13/3,  (0 + 8 + 4) / 3 = 4
    assert session.parameters == pytest.approx([13 / 3, 4.0])


def test_the_next_round_starts_from_the_new_model_with_the_decayed_learning_rate() -> None:
    session = a_session(FedAvg(cohort=1), present=(1,))
    (_, again) = upload(session, 1, 3.0, 5.0)
    assert isinstance(again, Assignment)
    assert (again.device, again.ticket, again.base) == (1, 2, 1)
    assert again.parameters.tolist() == [3.0, 5.0]
    # 0.5 * 0.1^1
    assert again.order.learning_rate == pytest.approx(0.05)
    assert (again.order.slices, again.order.prox) == (2, 0.0)


def test_a_lost_device_is_no_longer_waited_for_and_does_not_count() -> None:
    session = a_session(FedAvg(cohort=3))
    upload(session, 0, 10.0, 0.0)
    upload(session, 1, 2.0, 8.0)
    lose(session, 2)
    # (10 * 10 + 30 * 2) / 40 = 4,  (10 * 0 + 30 * 8) / 40 = 6
    assert session.version == 1
    assert session.parameters.tolist() == [4.0, 6.0]
    assert at_work(session) == {0, 1}, "the next round takes those that are there"


def test_a_device_lost_early_does_not_end_the_round() -> None:
    session = a_session(FedAvg(cohort=3))
    lose(session, 0)
    upload(session, 1, 2.0, 8.0)
    assert (session.version, at_work(session)) == (0, {2})


def test_a_round_in_which_nobody_reported_makes_no_version_and_the_next_begins() -> None:
    session = a_session(FedAvg(cohort=2))
    for device in at_work(session):
        lose(session, device)
    assert session.version == 0
    assert len(at_work(session)) == 1, "one of three was left"
    lose(session, next(iter(at_work(session))))
    assert at_work(session) == set(), "nobody is left: wait"
    session.handle(Ready(device=1), session.now)
    assert at_work(session) == {1}


def test_devices_that_come_and_go_during_a_round_do_not_disturb_it() -> None:
    session = a_session(FedAvg(cohort=2), present=(0, 1))
    session.handle(Ready(device=2), session.now)
    assert at_work(session) == {0, 1}
    session.handle(Left(device=2), session.now)
    assert (session.version, at_work(session)) == (0, {0, 1})


def test_more_devices_in_a_round_than_there_are_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"algorithm\.cohort = 5: there are only 4 devices"):
        a_session(FedAvg(cohort=5))


def test_an_update_without_data_is_refused_so_that_no_round_weighs_nothing() -> None:
    session = a_session(FedAvg(cohort=1), present=(3,))
    with pytest.raises(DeviceFault, match="claims 0 samples"):
        upload(session, 3, 0.0, 0.0)
    assert session.parameters.tolist() == [0.0, 0.0]
    assert at_work(session) == {3}


@given(st.permutations([0, 1, 2]), st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3))
def test_the_order_of_the_uploads_makes_no_difference(order: list[int], numbers: list[float]) -> None:
    session = a_session(FedAvg(cohort=3))
    for device in order:
        upload(session, device, numbers[device], 1.0)
    expected = sum(SAMPLES[device] * numbers[device] for device in range(3)) / 100
    assert session.parameters[0] == pytest.approx(expected, abs=1e-4)
    assert session.parameters[1] == pytest.approx(1.0)
