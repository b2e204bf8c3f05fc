"""A session with limits of participation: who is ordered, what is refused, when the run ends, what survives."""

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.algorithms import FedAvg, FedBuff
from offbeat.core.errors import DeviceFault, PolicyError
from offbeat.core.messages import Commit, Discard, Dispatch, Left, Ready, Uploaded
from offbeat.core.participation import Participation, ParticipationLimits
from offbeat.core.policy import Policy
from offbeat.testing import ScriptedSession
from offbeat.testing.scripted import Reaction


def session_of(policy: Policy, devices: int, **limits: Any) -> ScriptedSession:
    return ScriptedSession(policy, devices=devices, limits=ParticipationLimits(**limits))


def test_a_device_with_an_update_in_the_buffer_is_not_ordered_again() -> None:
    session = session_of(FedBuff(buffer=2, concurrency=1), 2, most=5)
    first = session.first.ordered[0]
    assert session.upload(1.0, 0.0).ordered == [1 - first]  # without limits either could be drawn
    assert session.upload(1.0, 0.0).used == [1, 2]


def test_a_device_contributes_at_most_m_times_and_then_the_run_ends() -> None:
    session = session_of(FedBuff(buffer=2, concurrency=2), 2, most=3)
    for _ in range(6):
        assert session.finished is None
        session.move(1.0, 0.0)
    assert session.participation is not None
    assert session.participation.contributions.tolist() == [3, 3]
    assert (session.version, session.finished) == (3, "participation")


@pytest.mark.parametrize(
    ("limits", "versions"),
    [({"most": 2}, 2), ({"most": 9, "separation": 3}, 1), ({"most": 9, "block": 4}, 1)],
    ids=["m", "band", "tree"],
)
def test_a_run_ends_when_no_device_may_contribute_to_the_next_version(limits: dict[str, int], versions: int) -> None:
    session = session_of(FedBuff(buffer=2, concurrency=2), 3, **limits)
    last = next(device for device in range(3) if session.is_idle(device))
    session.handle(Left(device=last))
    for _ in range(2 * versions):
        session.move(1.0, 0.0)
    assert (session.version, session.finished) == (versions, None)  # the last device may come back
    session.handle(Ready(device=last))
    session.move(1.0, 0.0)  # alone in the buffer
    assert (session.version, session.finished) == (versions, "participation")


def test_a_lost_order_does_not_count() -> None:
    session = session_of(FedBuff(buffer=1, concurrency=1), 1, most=1)
    session.lose()
    session.handle(Ready(device=0))
    assert session.move(1.0, 0.0).used == [2]
    assert session.finished == "participation"


def test_a_discarded_update_does_not_count() -> None:
    session = session_of(FedAvg(cohort=1), 1, most=1)
    assert session.upload(slices=0).discarded == [1]
    assert session.move(1.0, 0.0).used == [2]


def test_a_second_upload_for_one_order_is_refused() -> None:
    session = session_of(FedBuff(buffer=2, concurrency=2), 3, most=5)
    update = session.update(1.0, 0.0)
    event = Uploaded(device=update.device, ticket=update.ticket, update=update)
    session.handle(event)
    with pytest.raises(DeviceFault, match="does not hold"):
        session.handle(event)
    assert session.participation is not None and session.participation.snapshot().received.sum() == 1


def test_an_upload_beyond_the_limit_is_refused_and_changes_nothing() -> None:
    session = session_of(FedBuff(buffer=2, concurrency=2), 3, most=1)
    device = session.first.ordered[0]
    assert session.participation is not None
    session.participation.receive(99, device)  # as if a contribution was recorded elsewhere
    with pytest.raises(DeviceFault, match="may not contribute any more"):
        session.move(1.0, 0.0, device=device)
    assert session.counters.received == 0


def test_a_policy_that_orders_an_excluded_device_or_uses_it_twice_is_an_error() -> None:
    session = session_of(FedBuff(buffer=3, concurrency=3), 3, most=1)
    device = session.first.ordered[0]
    session.move(1.0, 0.0, device=device)
    with pytest.raises(PolicyError, match="may not contribute any more"):
        session._apply(Dispatch(device=device, order=session.order()), [])
    ledger = Participation(ParticipationLimits(most=3), 2)
    ledger.receive(1, 0)
    ledger.receive(2, 0)
    with pytest.raises(PolicyError, match="two updates of one device"):
        ledger.commit([1, 2], 1)


def test_a_band_keeps_contributions_apart_and_a_tree_takes_one_of_each_device() -> None:
    everyone = np.arange(1, dtype=np.int32)
    band = Participation(ParticipationLimits(most=9, separation=3), 1)
    tree = Participation(ParticipationLimits(most=9, block=4), 1)
    for ledger in (band, tree):
        ledger.receive(1, 0)
        ledger.commit([1], 2)
    # Last in version 2: a band of 3 is open again for version 5; the tree of versions 1 to 4 for version 5.
    assert [len(band.allowed(everyone, version)) for version in (3, 4, 5, 6)] == [0, 0, 1, 1]
    assert [len(tree.allowed(everyone, version)) for version in (3, 4, 5, 6)] == [0, 0, 1, 1]
    for ledger in (band, tree):
        ledger.receive(2, 0)
        ledger.commit([2], 5)
    assert [len(band.allowed(everyone, version)) for version in (7, 8, 9)] == [0, 1, 1]
    assert [len(tree.allowed(everyone, version)) for version in (7, 8, 9)] == [0, 0, 1]


def test_the_ledger_survives_a_snapshot() -> None:
    def session() -> ScriptedSession:
        return session_of(FedBuff(buffer=2, concurrency=2), 3, most=2)

    straight, before = session(), session()
    for each in (straight, before):
        each.move(1.0, 0.0)
        each.move(2.0, 0.0)
        each.move(3.0, 0.0)
    after = session()
    after.restore(before.copied())
    while straight.finished is None:
        assert straight.move(1.0, 0.0).ordered == after.move(1.0, 0.0).ordered
    assert after.finished == straight.finished == "participation"
    assert after.participation is not None and straight.participation is not None
    assert after.participation.contributions.tolist() == straight.participation.contributions.tolist()


events = st.lists(
    st.tuples(st.sampled_from(["upload", "upload", "upload", "lose", "ready", "leave", "resume"]), st.integers(0, 7)),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(events, st.integers(1, 3), st.sampled_from([(1, 1), (2, 1), (3, 1), (1, 2), (1, 4)]), st.booleans())
def test_no_sequence_of_events_breaks_a_limit(
    happening: list[tuple[str, int]], most: int, spacing: tuple[int, int], rounds: bool
) -> None:
    separation, block = spacing
    policy: Policy = FedAvg(cohort=2) if rounds else FedBuff(buffer=2, concurrency=3)
    limits = {"most": most, "separation": separation, "block": block}
    session = session_of(policy, 8, **limits)
    contributed: dict[int, list[int]] = {device: [] for device in range(8)}
    device_of: dict[int, int] = {}
    for what, number in happening:
        if session.finished is not None:
            break
        device_of |= {ticket: held.device for ticket, held in session.in_flight.items()}
        tickets = sorted(session.in_flight)
        reaction = Reaction()
        match what:
            case "upload" if tickets:
                reaction = session.move(1.0, float(number), ticket=tickets[number % len(tickets)])
            case "lose" if tickets:
                reaction = session.lose(ticket=tickets[number % len(tickets)])
            case "ready" if session.is_away(number):
                session.handle(Ready(device=number))
            case "leave" if session.is_idle(number):
                session.handle(Left(device=number))
            case "resume":
                resumed = session_of(policy, 8, **limits)
                resumed.restore(session.copied())
                session = resumed
        for ticket in reaction.used:
            contributed[device_of[ticket]].append(session.version)
    for versions in contributed.values():
        assert len(versions) <= most
        assert len(versions) == len(set(versions))
        assert all(later - earlier >= separation for earlier, later in pairwise(versions))
        assert max(Counter((version - 1) // block for version in versions).values(), default=0) <= (
            1 if block > 1 else most
        )
    assert session.participation is not None
    assert session.participation.contributions.tolist() == [len(contributed[device]) for device in range(8)]
    assert session.audit() == []


def test_actions_of_a_policy_are_checked_before_anything_changes() -> None:
    session = session_of(FedBuff(buffer=2, concurrency=2), 3, most=1)
    with pytest.raises(PolicyError, match="not a received update"):
        session._apply(Commit(parameters=session.parameters, used=(7,)), [])
    with pytest.raises(PolicyError, match="not a received update"):
        session._apply(Discard(ticket=7, reason="none"), [])
    assert session.audit() == []
