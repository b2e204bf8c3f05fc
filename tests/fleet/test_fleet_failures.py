"""Failures: their odds, their independence of call order, and the meaning of never coming back."""

import math

import numpy as np
import pytest

from offbeat.core.errors import InvalidInput
from offbeat.fleet import Failures, FailureSettings, OrderFailure, Workload

WORKLOAD = Workload(devices=4, samples=np.ones(4, dtype=np.int64), layers=1, flops_per_sample=0.0, seed=3)


def drawn_failures(failures: Failures, count: int) -> list[OrderFailure]:
    drawn = [failures.failure(ticket % 4, ticket) for ticket in range(count)]
    return [failure for failure in drawn if failure is not None]


def test_a_fleet_that_never_fails_has_no_failures() -> None:
    failures = FailureSettings().build(WORKLOAD)
    assert failures.failure(0, 0) is None
    assert (failures.rejoin_seconds, failures.detect_seconds) == (60.0, 30.0)


def test_failures_have_their_probabilities_and_strike_at_any_moment() -> None:
    drawn = drawn_failures(FailureSettings(vanish=0.3, lost_upload=0.1).build(WORKLOAD), 5000)
    moments = [failure.vanish_after for failure in drawn if failure.vanish_after is not None]
    assert len(drawn) == 5000
    assert len(moments) / 5000 == pytest.approx(0.3, abs=0.02)
    assert np.mean([failure.upload_lost for failure in drawn]) == pytest.approx(0.1, abs=0.015)
    assert 0 <= min(moments) < max(moments) < 1
    assert np.mean(moments) == pytest.approx(0.5, abs=0.03)


def test_certainty_is_certain() -> None:
    assert all(
        failure.vanish_after is not None for failure in drawn_failures(FailureSettings(vanish=1).build(WORKLOAD), 50)
    )
    assert all(failure.upload_lost for failure in drawn_failures(FailureSettings(lost_upload=1).build(WORKLOAD), 50))
    assert not any(failure.upload_lost for failure in drawn_failures(FailureSettings(vanish=1).build(WORKLOAD), 50))


def test_a_failure_depends_on_nothing_but_seed_device_and_ticket() -> None:
    settings = FailureSettings(vanish=0.5, lost_upload=0.5)
    first, again = settings.build(WORKLOAD), settings.build(WORKLOAD)
    forward = [first.failure(1, ticket) for ticket in range(30)]
    backward = [again.failure(1, ticket) for ticket in reversed(range(30))]
    assert forward == backward[::-1]
    assert forward != [first.failure(2, ticket) for ticket in range(30)]


@pytest.mark.parametrize("never", [None, math.inf])
def test_a_device_that_never_rejoins_can_be_written_in_python_and_in_toml(never: float | None) -> None:
    settings = FailureSettings(rejoin_seconds=never)
    assert settings.build(WORKLOAD).rejoin_seconds is None
    assert settings.model_dump(exclude_none=True)["rejoin_seconds"] == math.inf, "survives a format without null"


@pytest.mark.parametrize(
    "bad", [{"vanish": 1.5}, {"lost_upload": -0.1}, {"rejoin_seconds": -1.0}, {"detect_seconds": math.inf}]
)
def test_bad_failure_settings_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        FailureSettings.model_validate(bad)
