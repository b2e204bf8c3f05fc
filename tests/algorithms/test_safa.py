"""SAFA by hand: what a round picks, what the cache holds, who begins anew, and when a round is over.

Four devices with 1, 2, 3 and 4 samples, so that each model in the cache counts a tenth as often as its samples say.
"""

import json
from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.algorithms.safa import Safa
from offbeat.core.messages import Left, Ready, Resolved, TimerFired, TimerSet
from offbeat.core.snapshot import decode, encode
from offbeat.experiment.run_settings import Stop
from offbeat.testing import ScriptedSession, check_accounts, check_events, toy_simulation

START = (10.0, 0.0)


def a_session(policy: Safa, samples: Sequence[int] = (1, 2, 3, 4)) -> ScriptedSession:
    return ScriptedSession(policy, samples=samples, start=START, epochs=2)


def in_cache(session: ScriptedSession, device: int) -> list[float]:
    numbers: list[float] = session.state.cache.vectors[device].tolist()
    return numbers


# Rounds and the cache ------------------------------------------------------------------------------------------------


def test_everybody_is_ordered_at_the_start() -> None:
    session = a_session(Safa(share=0.5))
    assert {flight.device for flight in session.in_flight.values()} == {0, 1, 2, 3}


def after_round_1() -> ScriptedSession:
    """Devices 0 and 1 were picked; 2 and 3 go on from version 0."""
    session = a_session(Safa(share=0.5))
    effects = session.upload(20.0, 10.0, device=0)
    assert (session.version, set(effects.ordered)) == (0, set()), "who has uploaded waits for the end of the round"
    assert set(session.upload(0.0, 10.0, device=1).ordered) == {0, 1}
    return session


def test_a_version_is_the_mean_of_the_whole_cache_and_who_has_not_reported_counts_with_the_initial_model() -> None:
    session = after_round_1()
    # (1 [20, 10] + 2 [0, 10] + 3 [10, 0] + 4 [10, 0]) / 10 = [90, 30] / 10
    assert session.parameters == pytest.approx([9.0, 3.0])
    assert (session.version, session.counters.used) == (1, 2)
    assert [(flight.device, flight.base) for flight in session.in_flight.values()][:2] in (
        [(2, 0), (3, 0)],
        [(3, 0), (2, 0)],
    ), "tolerable devices keep what they have"


def after_round_2() -> ScriptedSession:
    """Devices 2 and 3 were picked; what device 0 brought before them counts from the next version on."""
    session = after_round_1()
    session.upload(30.0, 0.0, device=0)  # first, but picked last round
    assert session.version == 1
    session.upload(0.0, 20.0, device=2)
    assert session.version == 1, "only one that was not picked last round"
    undrafted = session.state.arrived[0].ticket
    effects = session.upload(5.0, 5.0, device=3)
    assert undrafted not in effects.used
    assert len(effects.used) == 2
    assert set(effects.ordered) == {0, 2, 3}
    return session


def test_who_was_not_picked_last_round_comes_before_who_was_faster() -> None:
    session = after_round_2()
    assert session.state.picked == {2, 3}
    # Device 0 still counts with [20, 10]: (1 [20, 10] + 2 [0, 10] + 3 [0, 20] + 4 [5, 5]) / 10 = [40, 110] / 10
    assert session.parameters == pytest.approx([4.0, 11.0])
    assert in_cache(session, 0) == [30.0, 0.0], "it is there for the next version"


def test_an_undrafted_upload_counts_from_the_next_version_and_is_used_once() -> None:
    session = after_round_2()
    (undrafted,) = session.received
    session.upload(10.0, 10.0, device=2)
    session.upload(0.0, 0.0, device=3)
    session.upload(20.0, 0.0, device=1)
    assert session.version == 2, "two of the three were picked last round"
    effects = session.lose(device=0)
    # Nobody is in training: the round is over. Picked: 1, not picked last round, then 2, which came before 3.
    assert session.state.picked == {1, 2}
    # (1 [30, 0] + 2 [20, 0] + 3 [10, 10] + 4 [5, 5]) / 10 = [120, 50] / 10
    assert session.parameters == pytest.approx([12.0, 5.0])
    assert effects.used[0] == undrafted
    assert len(effects.used) == 3
    assert in_cache(session, 3) == [0.0, 0.0]
    assert len(session.received) == 1, "now device 3's is to be used"
    for device in (1, 2):
        session.upload(device=device)
    assert undrafted not in session.upload(device=3).used


def test_an_undrafted_upload_that_its_device_replaces_in_time_is_never_used() -> None:
    session = after_round_2()
    (undrafted,) = session.received
    session.upload(0.0, 0.0, device=0)  # the cache entry [30, 0] has been in no version, and never will
    effects = session.upload(0.0, 0.0, device=1)
    assert session.version == 3
    assert undrafted not in effects.used
    assert undrafted not in session.received, "it is given up, not kept for ever"
    assert session.counters.discarded == 1


def test_arrival_decides_among_those_who_were_not_picked() -> None:
    # Quota ceil(0.25 * 4) = 1: the first upload ends the round.
    session = a_session(Safa(share=0.25))
    session.upload(0.0, 0.0, device=2)
    assert (session.version, session.state.picked) == (1, {2})
    session.upload(0.0, 0.0, device=2)
    assert session.version == 1, "picked last time"
    session.upload(0.0, 0.0, device=3)
    assert (session.version, session.state.picked) == (2, {3})


def test_if_all_were_picked_last_time_the_fastest_are_picked_when_nobody_is_in_training() -> None:
    session = a_session(Safa(share=0.5), samples=(1, 1))
    session.upload(0.0, 0.0, device=1)
    assert (session.version, session.state.picked) == (1, {1})
    session.lose(device=0)
    session.upload(0.0, 0.0, device=1)
    assert (session.version, session.state.picked) == (2, {1})


def test_with_a_share_of_one_every_round_waits_for_all() -> None:
    session = a_session(Safa(share=1.0))
    for version in range(3):
        for device in (3, 1, 0):
            session.upload(device=device)
            assert session.version == version
        session.upload(device=2)
        assert session.version == version + 1


@pytest.mark.parametrize(
    ("share", "devices", "quota"), [(0.1, 24, 3), (0.25, 4, 1), (0.26, 4, 2), (1.0, 7, 7), (0.01, 5, 1)]
)
def test_the_quota_is_the_share_of_all_devices_rounded_up(share: float, devices: int, quota: int) -> None:
    policy = Safa(share=share)
    assert policy.quota(a_session(policy, samples=[1] * devices)) == quota


@pytest.mark.parametrize(("share", "devices", "quota"), [(0.07, 100, 7), (0.55, 100, 55), (0.14, 50, 7)])
def test_the_quota_of_a_share_that_is_a_whole_number_is_that_number(share: float, devices: int, quota: int) -> None:
    policy = Safa(share=share)
    assert policy.quota(a_session(policy, samples=[1] * devices)) == quota


def test_who_has_uploaded_and_left_counts_and_is_ordered_when_it_is_back() -> None:
    session = a_session(Safa(share=0.5))
    session.upload(20.0, 10.0, device=0)
    session.handle(Left(device=0), 1.0)
    assert set(session.upload(0.0, 10.0, device=1).ordered) == {1}
    assert session.parameters == pytest.approx([9.0, 3.0])
    assert set(session.handle(Ready(device=0), 2.0).ordered) == {0}


def test_a_lost_device_keeps_its_place_in_the_cache() -> None:
    session = after_round_1()
    session.lose(device=0)
    session.upload(0.0, 20.0, device=2)
    session.upload(5.0, 5.0, device=3)
    # as in round 2: (1 [20, 10] + 2 [0, 10] + 3 [0, 20] + 4 [5, 5]) / 10
    assert session.parameters == pytest.approx([4.0, 11.0])


# Deprecated devices --------------------------------------------------------------------------------------------------


def with_a_deprecated_device() -> ScriptedSession:
    """Three devices with a sample each, quota 1, tau = 1; device 2 works on version 0, and this is version 2."""
    session = a_session(Safa(share=0.3, lag_tolerance=1), samples=(1, 1, 1))
    assert session.upload(40.0, 0.0, device=0).notified == []
    # w_1 = ([40, 0] + [10, 0] + [10, 0]) / 3 = [20, 0]
    assert session.parameters == pytest.approx([20.0, 0.0])
    assert session.upload(40.0, 30.0, device=1).notified == [2], "lag 2 is more than 1"
    # w_2 = ([40, 0] + [40, 30] + [10, 0]) / 3 = [30, 10]
    assert session.parameters == pytest.approx([30.0, 10.0])
    return session


def test_a_tolerable_lag_is_no_reason_to_stop() -> None:
    session = a_session(Safa(share=0.3, lag_tolerance=2), samples=(1, 1, 1))
    session.upload(40.0, 0.0, device=0)
    assert session.upload(40.0, 30.0, device=1).notified == []
    session.upload(7.0, 8.0, device=2)
    assert (session.version, session.counters.discarded, session.counters.staleness_max) == (3, 0, 2)
    assert in_cache(session, 2) == [7.0, 8.0]


def test_a_deprecated_device_is_told_to_stop_once() -> None:
    session = with_a_deprecated_device()
    assert session.upload(40.0, 0.0, device=0).notified == []
    assert (session.version, session.counters.notices) == (3, 1)


def test_a_deprecated_devices_upload_is_discarded_and_it_begins_anew() -> None:
    session = with_a_deprecated_device()
    ticket = session.ticket_of(2)
    effects = session.upload(1000.0, 1000.0, device=2)
    assert [effect for effect in effects if isinstance(effect, Resolved)] == [Resolved(tickets=(ticket,), used=False)]
    assert set(effects.ordered) == {2}
    assert (session.in_flight[session.ticket_of(2)].base, session.version) == (2, 2)
    assert (session.counters.discarded, session.state.arrived) == (1, [])


def test_a_deprecated_device_keeps_its_entry_until_it_is_sent_a_model() -> None:
    session = with_a_deprecated_device()
    assert in_cache(session, 2) == [10.0, 0.0], "it still trains from version 0"
    session.upload(70.0, 0.0, device=0)
    # w_3 = ([70, 0] + [40, 30] + [10, 0]) / 3 = [40, 10]
    assert session.parameters == pytest.approx([40.0, 10.0])


def test_the_entry_of_a_deprecated_device_is_reset_once_with_the_model_that_it_was_sent() -> None:
    session = with_a_deprecated_device()
    session.upload(70.0, 0.0, device=0)  # w_3 = [40, 10], see above
    assert session.upload(1000.0, 1000.0, device=2).discarded != []  # obeys now, and is sent w_3, not w_2 = [30, 10]
    assert session.bases[2] == 3
    assert in_cache(session, 2) == pytest.approx([40.0, 10.0])
    session.upload(40.0, 60.0, device=1)
    # w_4 = ([70, 0] + [40, 60] + [40, 10]) / 3 = [150, 70] / 3
    assert session.parameters == pytest.approx([50.0, 70 / 3])
    assert in_cache(session, 2) == pytest.approx([40.0, 10.0]), "once: it is in training from w_3"


def test_a_deprecated_device_that_obeys_at_once_counts_with_the_model_that_deprecated_it() -> None:
    session = with_a_deprecated_device()
    session.upload(1000.0, 1000.0, device=2)  # is sent w_2 = [30, 10]
    session.upload(40.0, 0.0, device=0)
    # ([40, 0] + [40, 30] + [30, 10]) / 3 = [110, 40] / 3
    assert session.parameters == pytest.approx([110 / 3, 40 / 3])


def test_a_deprecated_device_that_is_lost_is_reset_when_it_is_back() -> None:
    session = with_a_deprecated_device()
    session.lose(device=2)
    session.upload(70.0, 0.0, device=0)  # w_3 = [40, 10]
    assert in_cache(session, 2) == [10.0, 0.0]
    assert list(session.come(2).ordered) == [2]
    assert in_cache(session, 2) == pytest.approx([40.0, 10.0])


def test_after_it_has_begun_anew_a_devices_work_counts_again() -> None:
    session = with_a_deprecated_device()
    session.upload(1000.0, 1000.0, device=2)
    session.upload(31.0, 11.0, device=2)
    assert (session.version, session.state.picked) == (3, {2})
    # ([40, 0] + [40, 30] + [31, 11]) / 3 = [111, 41] / 3
    assert session.parameters == pytest.approx([37.0, 41 / 3])


def test_a_deprecated_device_that_is_lost_is_no_longer_waited_for() -> None:
    session = with_a_deprecated_device()
    session.lose(device=2)
    session.upload(0.0, 0.0, device=1)
    assert session.version == 2
    session.upload(0.0, 0.0, device=0)
    assert session.version == 3


# The round's time ----------------------------------------------------------------------------------------------------


def test_without_a_limit_no_timer_is_set() -> None:
    session = a_session(Safa(share=0.5))
    assert session.timers == {}


def test_when_its_time_is_up_a_round_ends_with_what_has_arrived() -> None:
    session = a_session(Safa(share=0.5, round_seconds=10.0))
    assert session.timers == {"round 0": 10.0}
    session.upload(20.0, 10.0, device=0)
    effects = session.handle(TimerFired(name="round 0"), 10.0)
    # (1 [20, 10] + 9 [10, 0]) / 10 = [110, 10] / 10
    assert session.parameters == pytest.approx([11.0, 1.0])
    assert (session.version, session.state.overdue) == (1, False)
    assert [effect for effect in effects if isinstance(effect, TimerSet)] == [TimerSet(name="round 1", at=20.0)]


def test_when_its_time_is_up_and_nothing_has_arrived_it_ends_with_the_first_upload() -> None:
    session = a_session(Safa(share=0.5, round_seconds=10.0))
    session.handle(TimerFired(name="round 0"), 10.0)
    assert session.version == 0
    session.upload(20.0, 10.0, device=0)
    assert session.version == 1
    session.upload(device=1)
    assert session.version == 1, "the next round has its own time"


def test_an_overdue_round_does_not_end_with_a_deprecated_upload() -> None:
    session = a_session(Safa(share=0.3, lag_tolerance=1, round_seconds=10.0), samples=(1, 1, 1))
    session.upload(40.0, 0.0, device=0)
    session.upload(40.0, 30.0, device=1)
    session.handle(TimerFired(name="round 2"), 10.0)
    session.upload(0.0, 0.0, device=2)
    assert (session.version, session.counters.discarded) == (2, 1)


def test_the_timer_of_an_old_round_means_nothing() -> None:
    session = a_session(Safa(share=0.5, round_seconds=10.0))
    session.now = 4.0
    session.upload(device=0)
    session.upload(device=1)
    assert session.timers == {"round 0": 10.0, "round 1": 14.0}
    session.upload(device=2)
    session.handle(TimerFired(name="round 0"), 10.0)
    assert (session.version, session.state.overdue) == (1, False)
    session.handle(TimerFired(name="round 1"), 14.0)
    assert (session.version, session.state.picked) == (2, {2})


# Any settings, any seed, devices that fail ---------------------------------------------------------------------------

POLICIES = st.builds(
    Safa,
    share=st.sampled_from([0.05, 0.1, 0.3, 0.6, 1.0]),
    lag_tolerance=st.integers(1, 6),
    round_seconds=st.sampled_from([None, 0.5, 5.0, 20.0]),
)


@given(policy=POLICIES, seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_nothing_used_lags_more_than_it_may_and_every_version_is_the_mean_of_the_cache(policy: Safa, seed: int) -> None:
    simulation = toy_simulation(policy, seed=seed, stop=Stop(updates=60, time=1e5))
    session = simulation.session
    shares = np.array([session.samples(device) for device in range(session.devices)])
    version, checked = 0, 0
    before = dict(session.state.cache.vectors)
    for _ in simulation:
        # What is picked lags tau at the most; what was not picked in its round has grown older by one version.
        assert session.counters.staleness_max <= policy.lag_tolerance + 1
        assert sorted(session.state.cache.vectors) == list(range(session.devices))
        assert len(session.received) == len(session.state.undrafted) + len(session.state.arrived)
        if session.version > version:
            # What was not picked joins the cache after the version: in it the device counted as it did before.
            # So did a deprecated device that was sent the new version, which is then its entry.
            now, waiting = session.state.cache.vectors, session.state.undrafted
            late = {each for each in now if each in waiting or now[each] is session.parameters}
            cache = [(before if each in late else now)[each] for each in range(session.devices)]
            expected = shares @ np.array(cache, dtype=np.float64) / shares.sum()
            np.testing.assert_allclose(session.parameters, expected, rtol=1e-4, atol=1e-5)
            checked += 1
        version, before = session.version, dict(session.state.cache.vectors)
    assert checked == session.version > 0
    assert simulation.reason == "updates"


@given(policy=POLICIES, seed=st.integers(0, 10_000), share=st.floats(0, 1))
@settings(max_examples=10, deadline=None)
def test_cache_and_arrivals_are_never_lost_when_a_run_is_resumed(policy: Safa, seed: int, share: float) -> None:
    stop = Stop(updates=40, time=1e5)
    whole, stopped, resumed = (toy_simulation(policy, seed=seed, stop=stop) for _ in range(3))
    turns = list(whole)
    before = list(islice(stopped, int(share * len(turns))))
    tree, arrays = encode(stopped.snapshot())
    resumed.restore(decode(json.loads(json.dumps(tree)), arrays, resumed.snapshot_types))
    assert [row for row in before + list(resumed) if row is not None] == [row for row in turns if row is not None]
    assert resumed.session.parameters.tobytes() == whole.session.parameters.tobytes()


@given(policy=POLICIES, devices=st.integers(5, 20))
@settings(max_examples=6, deadline=None)
def test_no_update_is_used_twice_and_every_order_is_accounted_for(policy: Safa, devices: int) -> None:
    check_accounts(policy, devices)


@given(policy=POLICIES, choices=st.lists(st.integers(0, 10_000), max_size=60))
@settings(max_examples=25, deadline=None)
def test_no_sequence_of_events_breaks_it(policy: Safa, choices: list[int]) -> None:
    check_events(policy, choices, devices=6)
