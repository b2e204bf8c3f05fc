"""The asynchronous methods of recent years on a model of two numbers, computed by hand."""

from math import sqrt

import numpy as np
import pytest

from offbeat.algorithms import (
    Ace,
    Aced,
    Area,
    Ca2fl,
    DelayAdaptive,
    DelayedNesterov,
    Fadas,
    FedFa,
    FedStale,
    FedStaleWeight,
    FedVarp,
    Rennala,
    Ringleader,
    Ringmaster,
    RingmasterStop,
)
from offbeat.testing import ScriptedSession


def stale_by(session: ScriptedSession, versions: int, keep: int) -> None:
    """Commit versions that do not move the model, from any order but the one to keep."""
    for _ in range(versions):
        other = next(ticket for ticket in session.in_flight if ticket != keep)
        session.move(0.0, 0.0, ticket=other)


# CA²FL ----------------------------------------------------------------------------------------------------------------


def test_ca2fl_adds_the_mean_of_the_cache_as_it_was_at_the_last_version() -> None:
    session = ScriptedSession(Ca2fl(buffer=2, concurrency=2, server_learning_rate=0.5), devices=2)
    session.move(4.0, 0.0, device=0)
    session.move(0.0, 8.0, device=1)
    # h = 0, S = [4, 0] + [0, 8]:  w = 1/2 (S / 2) = [1, 2];  then h = ([4, 0] + [0, 8]) / 2 = [2, 4]
    assert session.parameters.tolist() == [1.0, 2.0]
    session.move(2.0, 0.0, device=0)
    session.move(0.0, 2.0, device=1)
    # S = ([2, 0] - [4, 0]) + ([0, 2] - [0, 8]) = [-2, -6]:  w += 1/2 ([2, 4] + [-1, -3]) = [0.5, 0.5]
    assert session.parameters.tolist() == [1.5, 2.5]
    session.move(0.0, 0.0, device=0)
    session.move(0.0, 0.0, device=1)
    # h = ([2, 0] + [0, 2]) / 2 = [1, 1], S = [-2, -2]:  w += 1/2 ([1, 1] - [1, 1])
    assert session.parameters.tolist() == [1.5, 2.5]


def test_ca2fl_counts_a_device_that_uploads_twice_in_one_buffer_by_its_change() -> None:
    session = ScriptedSession(Ca2fl(buffer=2, concurrency=1), devices=2, present=[0])
    session.move(4.0, 0.0)
    session.move(6.0, 0.0)
    # S = [4, 0] + ([6, 0] - [4, 0]) = [6, 0]:  w = S / 2;  h = [6, 0] / 2
    assert session.parameters.tolist() == [3.0, 0.0]
    assert session.state.mean.tolist() == [3.0, 0.0]


def test_a_quantised_cache_loses_nothing_of_the_movements() -> None:
    """What rounding takes from h is in S, so that the mean over a device's uploads is exact."""
    exact, coarse = (
        ScriptedSession(Ca2fl(buffer=1, concurrency=1, cache=cache), devices=1) for cache in ("memory", "quantised")
    )
    for session in (exact, coarse):
        session.move(1.0, 0.3)
        session.move(1.0, 0.3)
    # One device: w moves by h + (Delta - h) = Delta each time, whatever h is.
    assert coarse.parameters == pytest.approx([2.0, 0.6], rel=1e-6)
    assert exact.parameters == pytest.approx([2.0, 0.6], rel=1e-6)
    assert coarse.state.cache.vectors[0].dtype == np.int8
    # [1, 0.3] in steps of 1/127: 127 and 38
    assert coarse.state.cache.vectors[0].tolist() == [127, 38]
    assert coarse.state.mean == pytest.approx([1.0, 38 / 127])


# FADAS ----------------------------------------------------------------------------------------------------------------


def test_two_steps_of_fadas() -> None:
    session = ScriptedSession(Fadas(buffer=1, concurrency=1, server_learning_rate=1.0, epsilon=0.5), devices=1)
    session.move(4.0, 0.0)
    # m = 0.1 * 4, v = u = 0.01 * 16; corrected: m / 0.1 = 4, sqrt(u / 0.01) = 4:  w = 4 / (4 + 0.5)
    assert session.parameters[0] == pytest.approx(4 / 4.5, rel=1e-6)
    session.move(1.0, 0.0)
    # m = 0.9 * 0.4 + 0.1 = 0.46, v = 0.99 * 0.16 + 0.01 = 0.1684, u = max(0.16, v)
    step = (0.46 / (1 - 0.9**2)) / (sqrt(0.1684) / sqrt(1 - 0.99**2) + 0.5)
    assert session.parameters[0] == pytest.approx(4 / 4.5 + step, rel=1e-6)
    session.move(0.0, 0.0)
    # v = 0.99 * 0.1684 falls, u = 0.1684 stays
    step += (0.9 * 0.46 / (1 - 0.9**3)) / (sqrt(0.1684) / sqrt(1 - 0.99**3) + 0.5)
    assert session.parameters[0] == pytest.approx(4 / 4.5 + step, rel=1e-6)


def test_the_step_of_fadas_shrinks_with_the_largest_staleness() -> None:
    code, paper, off = (Fadas(server_learning_rate=0.4, delay_step=kind) for kind in ("code", "paper", "off"))
    assert [code.step(0), code.step(1), code.step(4)] == [0.4, 0.4, 0.1]
    assert [paper.step(2), paper.step(4)] == [0.4, 0.25]
    assert off.step(100) == 0.4
    session = ScriptedSession(
        Fadas(buffer=2, concurrency=3, server_learning_rate=0.4, epsilon=1e-12, delay_threshold=0), devices=3
    )
    session.move(1.0, 0.0, ticket=1)
    session.move(1.0, 0.0, ticket=2)
    assert session.parameters[0] == pytest.approx(0.4)
    session.move(1.0, 0.0, ticket=4)
    session.move(1.0, 0.0, ticket=3)  # staleness 1, the largest of the two: eta / 1
    assert session.parameters[0] == pytest.approx(0.8)


# Steps that depend on the delay ---------------------------------------------------------------------------------------


def test_a_delay_above_the_devices_in_training_shrinks_the_step() -> None:
    session = ScriptedSession(DelayAdaptive(concurrency=2, server_learning_rate=0.5), devices=3)
    stale_by(session, 4, keep=2)
    session.move(8.0, 0.0, ticket=2)
    # delay 4, C = 2: 1/2 * 2/4 * 8
    assert session.parameters.tolist() == [2.0, 0.0]
    assert [DelayAdaptive(concurrency=2).weight_at(delay) for delay in (0, 2, 3)] == [1.0, 1.0, 2 / 3]


def test_or_it_is_dropped() -> None:
    session = ScriptedSession(DelayAdaptive(concurrency=2, beyond="drop"), devices=3)
    stale_by(session, 3, keep=2)
    assert session.move(8.0, 0.0, ticket=2).discarded == [2]
    assert session.parameters.tolist() == [0.0, 0.0]


def test_ringmaster_applies_below_the_threshold_and_ignores_from_it_on() -> None:
    session = ScriptedSession(Ringmaster(concurrency=2, threshold=2, server_learning_rate=0.5), devices=3)
    stale_by(session, 1, keep=2)
    assert session.move(8.0, 0.0, ticket=2).used == [2]
    assert session.parameters.tolist() == [4.0, 0.0]
    ticket = session.newest
    stale_by(session, 2, keep=ticket)
    assert session.move(8.0, 0.0, ticket=ticket).discarded == [ticket]


def test_ringmaster_without_a_parameter() -> None:
    policy = Ringmaster(threshold="sqrt", server_learning_rate=2.0)
    assert [policy.limit(version) for version in (0, 3, 4, 9, 15)] == [1, 1, 2, 3, 3]
    assert policy.rate(0) == 2.0 and policy.rate(15) == pytest.approx(2 / 8)  # 16^0.75 = 8


def test_ringmaster_stops_a_device_when_its_update_would_be_ignored_and_only_once() -> None:
    session = ScriptedSession(RingmasterStop(concurrency=2, threshold=2), devices=2)
    slow = session.in_flight[2].device
    assert session.in_flight[2].order.drops_unfinished
    assert session.move(1.0, 0.0, ticket=1).notified == []
    assert session.move(1.0, 0.0, ticket=3).notified == [slow]
    assert session.move(1.0, 0.0, ticket=4).notified == []
    stopped = session.move(9.0, 9.0, ticket=2)
    assert stopped.discarded == [2] and stopped.ordered == [slow]
    assert session.parameters.tolist() == [3.0, 0.0]


def test_rennala_steps_on_the_mean_of_movements_from_one_version() -> None:
    session = ScriptedSession(Rennala(buffer=3, concurrency=2, server_learning_rate=0.5), devices=2)
    session.move(3.0, 0.0, ticket=1)
    session.move(3.0, 0.0, ticket=3)  # the same device again, from the same version
    assert session.move(0.0, 6.0, ticket=4).used == [1, 3, 4]
    assert session.parameters.tolist() == [1.0, 1.0]  # 1/2 ([3, 0] + [3, 0] + [0, 6]) / 3
    assert session.move(9.0, 9.0, ticket=2).discarded == [2]


# Caches of all devices ------------------------------------------------------------------------------------------------


def test_ace_replaces_the_movement_of_a_device_and_keeps_those_of_others() -> None:
    session = ScriptedSession(Ace(concurrency=2, server_learning_rate=0.5), devices=4)
    first, second = session.first.ordered
    session.move(8.0, 0.0, device=first)  # 1/2 * 1/4 [8, 0]
    session.move(0.0, 8.0, device=second)  # + 1/8 ([8, 0] + [0, 8])
    assert session.parameters.tolist() == [2.0, 1.0]
    for device in list(session.bases):
        if device == first:
            session.move(0.0, 0.0, device=first)  # + 1/8 ([0, 0] + [0, 8])
            assert session.parameters.tolist() == [2.0, 2.0]


def test_aced_forgets_movements_that_started_too_long_ago() -> None:
    session = ScriptedSession(Aced(concurrency=2, max_age=1, server_learning_rate=1.0), devices=2)
    session.move(4.0, 0.0, device=0)  # alone: [4, 0]
    session.move(0.0, 4.0, device=1)  # base 0, like the first: the mean, [2, 2]
    assert session.parameters.tolist() == [6.0, 2.0]
    session.move(0.0, 0.0, device=1)  # base 2 at version 2: device 0's movement started 2 versions ago
    assert session.parameters.tolist() == [6.0, 2.0]
    assert list(session.state.cache.vectors) == [1]


def test_area_divides_by_all_devices() -> None:
    session = ScriptedSession(Area(buffer=2, concurrency=2), devices=4, present=[0, 1])
    session.upload(4.0, 0.0, device=0)
    session.upload(0.0, 8.0, device=1)
    assert session.parameters.tolist() == [1.0, 2.0]  # ([4, 0] + [0, 8] - 2 w_0) / 4
    session.upload(4.0, 4.0, device=0)
    session.upload(0.0, 0.0, device=1)
    assert session.parameters.tolist() == [1.0, 1.0]  # + ([4, 4] - [4, 0] + [0, 0] - [0, 8]) / 4


def test_fedstale_by_hand_with_uneven_devices_and_estimated_participation() -> None:
    session = ScriptedSession(FedStale(cohort=1, beta=0.5), samples=[10, 30], present=[0])
    session.move(8.0, 0.0, device=0)
    # p = 1/4, q = 1 of 1 round: 1/4 [8, 0]
    assert session.parameters.tolist() == [2.0, 0.0]
    session.come(1)
    session.lose(device=0)
    session.move(0.0, 4.0, device=1)
    # round 2: p = 3/4, q = 1/2: 3/2 [0, 4] + 1/2 * 1/4 [8, 0], of the absent device
    assert session.parameters.tolist() == [3.0, 6.0]
    session.move(0.0, 0.0, device=1)
    # round 3: q = 2/3, p/q = 9/8: 0 + 1/2 (1/4 [8, 0] + (3/4 - 9/8) [0, 4])
    assert session.parameters.tolist() == [4.0, 5.25]


def test_fedvarp_is_the_mean_of_the_cache_plus_the_surprise_of_the_cohort() -> None:
    session = ScriptedSession(FedVarp(cohort=2), devices=4)
    one, other = session.first.ordered
    session.move(4.0, 0.0, device=one)
    session.move(0.0, 4.0, device=other)
    assert session.parameters.tolist() == [2.0, 2.0]  # the mean of the cohort; nothing is cached yet
    assert session.state.total.tolist() == [1.0, 1.0]


# Queues and momentum --------------------------------------------------------------------------------------------------


def test_fedfa_averages_the_last_uploads_whatever_their_staleness() -> None:
    session = ScriptedSession(FedFa(queue=3, concurrency=2), devices=3)
    for number in (3.0, 6.0, 9.0, 12.0):
        session.upload(number, 0.0)
    assert session.parameters.tolist() == [9.0, 0.0]  # (6 + 9 + 12) / 3


def test_fedstaleweight_counts_a_stale_update_more() -> None:
    assert [FedStaleWeight(buffer=4).weight_at(staleness) for staleness in (0, 1, 3)] == [1.0, 5.0, 13.0]


def test_dylu_gives_devices_steps_in_proportion_to_their_speed() -> None:
    """Mean 10 samples, batches of 2, 2 epochs: H = 10 steps."""
    rule = DelayedNesterov(concurrency=3, buffer=2, dylu=True)
    session = ScriptedSession(rule, devices=3, samples=[5, 15, 10], epochs=2, batch_size=2)

    def steps() -> dict[int, tuple[str, int]]:
        return {held.device: (held.order.unit, held.order.slices) for held in session.in_flight.values()}

    assert steps() == dict.fromkeys(range(3), ("step", 10))
    session.move(1.0, 0.0, device=0, seconds=20.0)  # 1/2 step per second, the only one that is known: 10
    session.move(1.0, 0.0, device=1, seconds=8.0)  # 10 / 8: the highest now, 10
    assert steps() == dict.fromkeys(range(3), ("step", 10))
    session.move(1.0, 0.0, device=2, seconds=11.0)  # 8/11 of it: floor(7.27)
    assert steps()[2] == ("step", 7)
    session.move(1.0, 0.0, device=0, seconds=200.0)  # 8/200 of it: floor(0.4), but at least one
    assert steps()[0] == ("step", 1)


def test_the_momentum_of_delayed_nesterov_is_applied_once_per_buffer() -> None:
    session = ScriptedSession(
        DelayedNesterov(buffer=2, concurrency=1, momentum=0.5, server_learning_rate=2.0), devices=1
    )
    positions = []
    for delta in (4.0, 8.0, 0.0, 0.0):
        session.move(delta, 0.0)
        positions.append(float(session.parameters[0]))
    # 2/2 * 4 = 4;  + 8 + momentum 2 * 1/2 * (4 + 8)/2 = 6;  + 0;  m = 1/2 * 6 = 3: + 2 * 1/2 * 3
    assert positions == [4.0, 18.0, 18.0, 21.0]


# Ringleader -----------------------------------------------------------------------------------------------------------


def test_a_round_of_ringleader_by_hand() -> None:
    session = ScriptedSession(Ringleader(server_learning_rate=0.5), devices=3)
    session.move(6.0, 0.0, device=0)
    session.move(0.0, 6.0, device=0)  # phase 1: device 0's mean is [3, 3]
    session.move(3.0, 0.0, device=1)
    assert session.version == 0  # device 2 is missing
    session.move(0.0, 3.0, device=2)
    # d = ([3, 3] + [3, 0] + [0, 3]) / 3 = [2, 2]:  w = 1/2 d.  Device 2 has had its turn.
    assert session.parameters.tolist() == [1.0, 1.0]
    assert session.move(9.0, 9.0, device=2).used == []  # counts in the next round
    session.move(0.0, 0.0, device=0)
    # device 0: ([6, 0] + [0, 6] + 0) / 3 = [2, 2]; d = [5/3, 5/3]
    assert session.parameters == pytest.approx([1 + 5 / 6] * 2)
    last = session.move(3.0, 0.0, device=1)
    # device 1: ([3, 0] + [3, 0]) / 2; d as before.  All have had their turn: the next round waits for devices 0 and 1.
    assert session.parameters == pytest.approx([1 + 5 / 3] * 2) and len(last.used) == 1
    assert session.version == 3
    session.move(0.0, 0.0, device=0)
    session.move(0.0, 0.0, device=1)
    # [9, 9] of device 2 and two zeros: w += 1/2 [3, 3]
    assert session.parameters == pytest.approx([2.5 + 5 / 3] * 2)


def test_ringleader_does_not_wait_for_a_lost_device_in_either_phase() -> None:
    session = ScriptedSession(Ringleader(server_learning_rate=1.0), devices=3)
    session.move(4.0, 0.0, device=0)
    session.move(0.0, 4.0, device=1)
    session.lose(device=2)  # phase 1 was only waiting for it
    assert session.parameters.tolist() == [2.0, 2.0]
    session.move(0.0, 0.0, device=0)
    session.lose(device=1)  # its turn is over, and with it the round
    assert not session.state.stepping and session.version == 2
    session.move(5.0, 5.0, device=0)
    assert session.version == 3  # alone
