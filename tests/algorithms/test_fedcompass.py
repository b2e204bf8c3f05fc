"""FedCompass on a model of two numbers: groups, steps, weights and losses, computed by hand."""

import pytest

from offbeat.algorithms import FedCompass
from offbeat.core.errors import InvalidInput
from offbeat.testing import ScriptedSession
from offbeat.testing.scripted import Reaction

RULE = FedCompass(min_steps=2, max_steps=10, alpha=0.8, exponent=1.0)


def arrive(session: ScriptedSession, at: float, device: int, *model: float) -> Reaction:
    """An upload at a time; without numbers the device has not moved its base."""
    session.now = at
    return session.upload(*model, device=device)


def steps(session: ScriptedSession) -> dict[int, int]:
    """The steps ordered from each device in training."""
    assert all(held.order.unit == "step" for held in session.in_flight.values())
    return {held.device: held.order.slices for held in session.in_flight.values()}


def grouped() -> ScriptedSession:
    """Devices 0 and 1 in group 1, device 2 in group 2, device 3 still with its first order."""
    session = ScriptedSession(RULE, devices=4)
    assert steps(session) == {0: 10, 1: 10, 2: 10, 3: 10} and not session.timers
    assert arrive(session, 10.0, 0, 10.0, 0.0).used == [1]
    # a = 0.8 / 4, fresh: w = 0.2 [10, 0].  S_0 = 1: a group of its own, 10 steps, T = 20, latest 10 + 15
    assert session.parameters.tolist() == pytest.approx([2.0, 0.0])
    assert steps(session)[0] == 10 and session.timers == {"1": 25.0}
    arrive(session, 15.0, 1, 0.0, 10.0)
    # staleness 1: a = 0.2 / 2, w = 0.9 [2, 0] + 0.1 [0, 10].  S_1 = 1.5: floor((20 - 15) / 1.5) = 3 steps in group 1
    assert session.parameters.tolist() == pytest.approx([1.8, 1.0])
    assert steps(session)[1] == 3
    arrive(session, 18.0, 2, 1.8, 1.0)
    # S_2 = 1.8: floor(2 / 1.8) = 1 < 2 steps in group 1; a new one: floor((25 + 10 * 1 - 18) / 1.8) = 9
    assert steps(session)[2] == 9
    assert session.timers == {"1": 25.0, "2": pytest.approx(18 + 1.5 * 9 * 1.8)}
    return session


def test_a_device_joins_the_group_in_which_it_does_most_steps_or_opens_one() -> None:
    session = grouped()
    assert arrive(session, 20.0, 0, 7.0, 0.0).used == []
    assert 0 not in steps(session), "it waits for its group"
    assert arrive(session, 21.0, 1, 0.0, 7.0).used == [5, 6]
    # version 3; staleness 2 and 1: a = 0.2 / 3 and 0.2 / 2, so that 1 - sum = 5/6
    expected = [5 / 6 * 1.8 + 0.2 / 3 * 7.0, 5 / 6 * 1.0 + 0.1 * 7.0]
    assert session.parameters.tolist() == pytest.approx(expected)
    # S_1 = 0.1 * 1.5 + 0.9 * 6 / 3 = 1.95
    assert session.state.seconds[1] == pytest.approx(1.95)
    # device 0 (S = 1) first: floor(34.2 - 21) = 13 > 10 steps in group 2, and alone floor(42.3 + 18 - 21) = 39 > 10:
    # 10 steps in group 3, T = 31. Device 1: floor(13.2 / 1.95) = 6 in group 2, floor(10 / 1.95) = 5 in group 3
    assert (steps(session)[0], steps(session)[1]) == (10, 6)
    assert session.state.group_of == {2: 2, 0: 3, 1: 2}


def test_a_group_waits_until_its_latest_time_and_stragglers_go_to_the_next_version() -> None:
    session = grouped()
    arrive(session, 20.0, 0, 7.0, 0.0)
    fired = session.fire("1")
    assert session.now == 25.0 and fired.used == [5], "device 1 has not arrived"
    before = session.parameters.tolist()
    late = arrive(session, 26.0, 1, 0.0, 7.0)
    assert late.used == [] and session.parameters.tolist() == before
    # ordered at once: S_1 = 0.1 * 1.5 + 0.9 * 11 / 3 = 3.45, floor((34.2 - 26) / 3.45) = 2 steps in group 2, where
    # device 0 does floor(34.2 - 25) = 9
    assert (steps(session)[0], steps(session)[1]) == (9, 2)
    arrive(session, 34.0, 0)
    arrive(session, 34.0, 1)
    assert arrive(session, 34.0, 2).used == [6, 8, 9, 7], "the late upload first"


def test_late_uploads_make_a_version_at_the_latest_time_of_a_group_from_which_nothing_came() -> None:
    session = grouped()
    session.lose(device=3)
    assert session.fire("1").used == [], "nothing is there"
    assert arrive(session, 26.0, 0, 7.0, 0.0).used == []
    assert arrive(session, 26.0, 1, 0.0, 7.0).used == []
    assert 1 not in session.state.groups, "no device left"
    assert session.fire("2").used == [5, 6]


def test_a_lost_device_leaves_its_group() -> None:
    session = grouped()
    arrive(session, 20.0, 0, 7.0, 0.0)
    assert session.lose(device=1).used == [5], "all others have arrived"
    session.lose(device=2)
    assert [*session.state.groups] == [3], "an empty group is forgotten"
    session.come(1)
    assert steps(session)[1] in range(2, 11), "with the speed that is known"
    session.lose(device=3)
    session.come(3)
    assert steps(session)[3] == 10 and 3 not in session.state.group_of, "its first order again"


def test_a_device_that_waits_and_leaves_is_ordered_when_it_is_back_and_its_upload_used() -> None:
    session = grouped()
    arrive(session, 20.0, 0, 7.0, 0.0)
    session.leave(0)
    session.come(0)
    assert 0 not in steps(session), "it still waits"
    session.leave(0)
    assert arrive(session, 21.0, 1, 0.0, 7.0).used == [5, 6]
    session.come(0)
    assert 0 in steps(session)


def test_steps_are_those_of_the_local_table_unless_they_are_given() -> None:
    """Mean 20 samples, batches of 8: 3 steps an epoch, 4 epochs; a fifth of 12 is 2."""
    session = ScriptedSession(FedCompass(), samples=[10, 30], epochs=4, batch_size=8)
    assert (session.state.most, session.state.fewest) == (12, 2)
    assert ScriptedSession(FedCompass(), devices=1, epochs=3, batch_size=0).state.most == 3
    with pytest.raises(InvalidInput, match=r"algorithm\.min_steps = 3 exceeds max_steps = 2"):
        FedCompass(min_steps=3, max_steps=2).check(4)
