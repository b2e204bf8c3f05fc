"""REFL's selection: measured availability, and devices that were ordered recently come last."""

from offbeat.algorithms import FedAvg
from offbeat.selection import LeastAvailable
from offbeat.testing import ScriptedSession


def test_the_device_that_was_available_for_the_shortest_time_comes_first() -> None:
    # At 30 s: device 0 was available for 30 s, device 1 for 0-5 and 20-30 = 15 s, device 2 for 10-30 = 20 s.
    session = ScriptedSession(FedAvg(cohort=1), devices=4, present=[0, 1, 3], selector=LeastAvailable(hold_off=0))
    trained = session.first.ordered[0]
    others = [device for device in (0, 1, 3) if device != trained]
    session.now = 5.0
    session.leave(others[0])
    session.now = 10.0
    session.come(2)
    session.now = 20.0
    session.come(others[0])
    session.now = 30.0
    assert session.pick(3) == [others[0], 2, others[1]]


def test_a_lost_order_ends_a_period_of_availability() -> None:
    session = ScriptedSession(FedAvg(cohort=2), devices=2, selector=LeastAvailable(hold_off=0))
    session.now = 4.0
    session.lose(device=1)
    session.now = 8.0
    session.come(1)  # at 8 s: 8 s against 4 s
    saved = session.snapshot().selection
    assert saved is not None and saved.state.available.tolist() == [0.0, 4.0]
    assert saved.state.since.tolist() == [0.0, 8.0]


def test_devices_that_were_ordered_recently_come_last() -> None:
    session = ScriptedSession(FedAvg(cohort=1), devices=3, selector=LeastAvailable(hold_off=2))
    seen = [session.first.ordered[0]]
    for _ in range(2):
        seen += session.upload().ordered
    assert sorted(seen) == [0, 1, 2]  # nobody twice within two versions
    assert session.upload().ordered == [seen[0]]  # ordered at version 0; now is version 3, the others at 1 and 2
