"""Availability: periods by hand, and changes that alternate and advance in spite of round-off."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.core.errors import InvalidInput
from offbeat.fleet import AlwaysAvailable, OnOffAvailable, Workload
from offbeat.fleet.availability import OnOff


def workload(devices: int, seed: int = 3) -> Workload:
    return Workload(
        devices=devices, samples=np.ones(devices, dtype=np.int64), layers=1, flops_per_sample=0.0, seed=seed
    )


def test_always_means_always() -> None:
    availability = AlwaysAvailable().build(workload(3))
    assert availability.always
    assert availability.present(1e6).tolist() == [True] * 3
    assert availability.available(2, 0.0)
    assert availability.next_change(2, 1e6) == math.inf


def test_a_device_comes_and_goes_at_the_hand_computed_times() -> None:
    # Period 10 = 6 on + 4 off. Phase 0 is on in [0, 6); phase 8 came at -8, went at -2, comes at 2 and goes at 8.
    availability = OnOff(6.0, 4.0, np.array([0.0, 8.0]))
    assert not availability.always
    assert availability.present(0.0).tolist() == [True, False]
    assert availability.present(2.0).tolist() == [True, True]
    assert availability.present(6.0).tolist() == [False, True]
    assert [availability.next_change(0, at) for at in (0.0, 5.9, 6.0, 10.0)] == [6.0, 6.0, 10.0, 16.0]
    assert [availability.next_change(1, at) for at in (0.0, 2.0, 8.0)] == [2.0, 8.0, 12.0]


def test_phases_are_random_so_that_the_share_on_is_even_over_time() -> None:
    availability = OnOffAvailable(on_seconds=600, off_seconds=300).build(workload(5000))
    for at in (0.0, 450.0, 1e5):
        assert availability.present(at).mean() == pytest.approx(2 / 3, abs=0.025)


def test_the_same_seed_gives_the_same_phases() -> None:
    on_off = OnOffAvailable()
    first, again, other = (on_off.build(workload(50, seed)).present(100.0).tolist() for seed in (1, 1, 2))
    assert first == again
    assert first != other


@settings(deadline=None)
@given(
    on=st.floats(0.001, 1e9),
    off=st.floats(0.001, 1e9),
    seed=st.integers(0, 2**32),
    at=st.floats(0, 1e9),
)
def test_stepping_from_change_to_change_alternates_and_always_advances(
    on: float, off: float, seed: int, at: float
) -> None:
    availability = OnOffAvailable(on_seconds=on, off_seconds=off).build(workload(2, seed))
    for device in (0, 1):
        now, there = at, availability.available(device, at)
        for _ in range(40):
            change = availability.next_change(device, now)
            assert change > now
            before = math.nextafter(change, -math.inf)
            assert before <= now or availability.available(device, before) == there, "nothing changes in between"
            now, there = change, not there
            assert availability.available(device, now) == there
            assert bool(availability.present(now)[device]) == there


@pytest.mark.parametrize("bad", [{"name": "sometimes"}, {"on_seconds": 0.0}, {"off_seconds": math.inf}])
def test_bad_availability_settings_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        OnOffAvailable.model_validate(bad)


def test_a_million_phases_are_no_trouble() -> None:
    availability = OnOffAvailable().build(workload(1_000_000))
    assert availability.present(1e4).shape == (1_000_000,)
