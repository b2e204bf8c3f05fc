"""Balanced selection: devices with the fewest orders come first, newcomers begin level with the others."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.algorithms import FedAvg, FedBuff
from offbeat.experiment.run_settings import Stop
from offbeat.fleet import RatioFleet
from offbeat.selection import Balanced, Uniform
from offbeat.testing import ScriptedSession, toy_simulation


def orders_of(session: ScriptedSession) -> list[int]:
    saved = session.snapshot().selection
    assert saved is not None
    counts: list[int] = saved.state.orders.tolist()
    return counts


def test_devices_with_the_fewest_orders_come_first() -> None:
    session = ScriptedSession(FedBuff(buffer=1, concurrency=2), devices=4, selector=Balanced())
    slow, fast = session.first.ordered  # 1 order each
    others = {0, 1, 2, 3} - {slow, fast}
    third = session.upload(device=fast).ordered[0]
    assert third in others  # 0 orders; the fast device, also idle, has 1
    assert session.upload(device=third).ordered == [*(others - {third})]
    twice = session.upload(ticket=4).ordered[0]  # 1 order each: by chance
    assert orders_of(session)[slow] == 1 and orders_of(session)[twice] == 2
    # The slow device comes back with 1 order; the two others that are idle have 1 too, `twice` is in training.
    assert session.upload(device=slow).ordered[0] != twice
    assert sorted(orders_of(session)) == [1, 1, 2, 2]


def test_a_slow_device_is_ordered_as_soon_as_it_is_back() -> None:
    session = ScriptedSession(FedBuff(buffer=1, concurrency=2), devices=4, selector=Balanced())
    slow = session.first.ordered[0]
    for _ in range(9):  # three more orders for each of the three others
        session.upload(ticket=session.newest)
    assert orders_of(session)[slow] == 1 and min(orders_of(session)[device] for device in {0, 1, 2, 3} - {slow}) == 3
    assert session.upload(device=slow).ordered == [slow]


def test_a_device_that_comes_late_begins_with_the_fewest_orders_of_the_others() -> None:
    session = ScriptedSession(FedBuff(buffer=1, concurrency=1), devices=3, present=[0, 1], selector=Balanced())
    for _ in range(5):
        session.upload()
    assert orders_of(session) == [3, 3, 0]  # six orders
    session.come(2)
    assert orders_of(session) == [3, 3, 3]
    seen = [session.upload().ordered[0] for _ in range(6)]
    assert sorted(seen[:3]) == sorted(seen[3:]) == [0, 1, 2]  # in turn, not three times in a row


def test_a_device_that_returns_keeps_its_orders_if_it_has_more_than_the_fewest() -> None:
    session = ScriptedSession(FedBuff(buffer=1, concurrency=1), devices=3, present=[0, 1], selector=Balanced())
    while orders_of(session) != [2, 1, 0] and orders_of(session) != [1, 2, 0]:
        session.upload()
    (ahead,) = (device for device in (0, 1) if orders_of(session)[device] == 2)
    session.lose(device=ahead)  # its lost order counts; the other one is ordered next
    session.come(ahead)
    assert orders_of(session)[:2] == [2, 2]


def test_a_device_that_finds_nobody_keeps_its_orders() -> None:
    session = ScriptedSession(FedAvg(cohort=1), devices=1, selector=Balanced())
    session.lose()
    assert session.come(0).ordered == [0] and orders_of(session) == [2]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=60, max_size=60))
def test_orders_differ_by_two_at_most_if_no_order_is_overtaken_by_more_than_are_idle(choices: list[int]) -> None:
    """12 devices, 4 in training: an order is uploaded before 8 later ones have been given."""
    session = ScriptedSession(FedBuff(buffer=3, concurrency=4), devices=12, selector=Balanced())
    for choice in choices:
        tickets, before = sorted(session.in_flight), orders_of(session)
        due = tickets[0] if session.newest - tickets[0] >= 8 else tickets[choice % 4]
        idle = {session.in_flight[due].device, *(device for device in range(12) if session.is_idle(device))}
        (picked,) = session.upload(ticket=due).ordered
        assert before[picked] == min(before[device] for device in idle)
        assert np.ptp(orders_of(session)) <= 2


def test_slow_devices_contribute_as_often_as_fast_ones_and_less_often_under_a_uniform_draw() -> None:
    uploads: dict[str, list[int]] = {}
    for selector in (Balanced(), Uniform()):
        simulation = toy_simulation(
            FedBuff(buffer=4, concurrency=10),
            troubled=False,
            speeds=RatioFleet(ratio=8.0),
            stop=Stop(updates=600, time=1e6),
            selector=selector,
        )
        for _ in simulation:
            pass
        simulation.accounts.take_closed()  # counts them
        uploads[selector.about.name] = [each.used for each in simulation.accounts.table()]
    assert sum(uploads["balanced"]) == sum(uploads["uniform"]) == 600
    assert np.ptp(uploads["balanced"]) <= 2  # 600 uploads of 24 devices: 25 each
    assert np.ptp(uploads["uniform"]) > 10
