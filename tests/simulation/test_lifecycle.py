"""What goes wrong with an order, and what the server sees of a device that leaves, fails or returns."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from offbeat.fleet import FailureSettings, Fleet, OnOffAvailable, RatioFleet, Workload
from offbeat.fleet.availability import OnOff
from offbeat.simulation.lifecycle import UNDISTURBED, DeviceLifecycle, EventQueue, Fate

ON_OFF = OnOffAvailable(on_seconds=10.0, off_seconds=5.0)


def lifecycle(
    failures: FailureSettings | None = None, availability: OnOffAvailable | None = None
) -> tuple[DeviceLifecycle, EventQueue]:
    workload = Workload(devices=2, samples=np.full(2, 10), layers=1, flops_per_sample=0.0, seed=0)
    fleet = Fleet.build(workload, RatioFleet(ratio=1.0), None, availability, failures)
    if availability is not None:
        fleet = replace(fleet, availability=OnOff(10.0, 5.0, np.zeros(2)))  # both leave at 10 s
    queue = EventQueue()
    return DeviceLifecycle(fleet, queue), queue


def test_nothing_goes_wrong_in_a_fleet_that_never_fails() -> None:
    life, queue = lifecycle()
    life.follow(2)
    assert life.fate(0, 1, 0.0, 0.0, [1.0]) is UNDISTURBED
    assert queue.entries == []


def test_a_device_leaves_with_its_on_time_and_its_failure_comes_first_if_it_is_earlier() -> None:
    life, _ = lifecycle(FailureSettings(vanish=1.0, rejoin_seconds=7.0), ON_OFF)
    fate = life.fate(0, 1, 1.0, 2.0, [4.0, 4.0])
    assert 2.0 <= fate.vanishes < 10.0
    assert fate.returns == fate.vanishes + 7.0
    late = life.fate(0, 1, 1.0, 9.9, [1e6])
    assert (late.vanishes, late.returns) == (10.0, 10.0)
    assert life.fate(0, None, 1.0, 2.0, [4.0]) == Fate(10.0, 10.0), "without a ticket nothing fails"


def test_a_device_that_never_recovers_never_returns() -> None:
    life, queue = lifecycle(FailureSettings(vanish=1.0, rejoin_seconds=None))
    assert life.fate(0, 1, 0.0, 0.0, [1.0]).returns == inf
    life.lose(0, inf)
    assert queue.entries == [] and life.vanished == {0}


@pytest.mark.parametrize(
    ("fate", "at", "expected"),
    [
        (Fate(), 5.0, ("upload", 5.0)),
        (Fate(vanishes=4.0), 5.0, ("vanished", 34.0)),
        (Fate(vanishes=5.0), 5.0, ("vanished", 35.0)),
        (Fate(vanishes=6.0, upload_lost=True), 5.0, ("upload lost", 35.0)),
    ],
)
def test_the_server_notices_after_the_detection_time(fate: Fate, at: float, expected: tuple[str, float]) -> None:
    life, _ = lifecycle(FailureSettings(detect_seconds=30.0))
    assert life.outcome(fate, "upload", at) == expected


def test_changes_of_a_vanished_device_are_followed_again_when_it_returns() -> None:
    life, queue = lifecycle(availability=ON_OFF)
    life.lose(0, 12.0)
    assert life.changed(0, 10.0) is False
    assert [(entry[0], entry[3]) for entry in queue.entries] == [(12.0, "return")]
    life.returned(0, 12.0)
    assert [(entry[0], entry[3]) for entry in sorted(queue.entries)] == [(12.0, "return"), (15.0, "change")]
    assert life.changed(1, 10.0) is True
