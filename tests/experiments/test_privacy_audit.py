"""The audit finds less than is claimed, and more if the noise is halved: it has power."""

from math import log

import pytest

from experiments.privacy_audit import DELTA, Audit, audit, lower_bound


def test_the_audit_stays_below_the_claim_and_notices_half_of_the_noise() -> None:
    honest, halved = Audit(), Audit(noise_factor=0.5)
    assert honest.claimed == halved.claimed == pytest.approx(2.12, abs=0.01)
    assert 0.3 < audit(honest, 200) < honest.claimed
    assert audit(halved, 200) > halved.claimed


def test_the_lower_bound_by_hand() -> None:
    # 10 of 10 right: the 2.5 % bound is 0.025^(1/10) = 0.6915; 0 of 10 wrong: 1 - 0.025^(1/10) = 0.3085
    assert lower_bound(10, 0, 10) == pytest.approx(log((0.025**0.1 - DELTA) / (1 - 0.025**0.1)))
    assert lower_bound(5, 5, 10) == lower_bound(0, 10, 10) == lower_bound(0, 0, 10) == 0.0
