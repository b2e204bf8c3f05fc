"""epsilon by hand, against Opacus, and its order."""

from math import exp, inf, log, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.trust.accounting import epsilon_of, gaussian_delta, gaussian_epsilon, rho_of

DELTA = 1e-5
multipliers = st.floats(0.2, 20.0)
counts = st.integers(1, 500)


def test_zcdp_is_rho_plus_twice_the_root() -> None:
    # z = 2, p = 4: rho = 4 / 8 = 0.5; ln(1e5) = 11.512925; 0.5 + 2 sqrt(5.7564627) = 0.5 + 2 * 2.3992629
    assert rho_of(4, 2.0) == 0.5
    assert epsilon_of(4, 2.0, DELTA) == pytest.approx(5.2985259, abs=1e-6)
    assert epsilon_of(4, 2.0, DELTA) == 0.5 + 2 * sqrt(0.5 * log(1e5))


def test_the_exact_delta_at_epsilon_0_is_the_total_variation_distance() -> None:
    # Phi(1/2) - Phi(-1/2) = 0.6914625 - 0.3085375: the distance between N(0, 1) and N(1, 1)
    assert gaussian_delta(0.0, 1.0) == pytest.approx(0.3829249, abs=1e-6)
    assert gaussian_epsilon(1.0, 0.5) == 0.0  # a delta above it costs no epsilon


def test_the_exact_epsilon_solves_its_equation() -> None:
    epsilon = epsilon_of(4, 2.0, DELTA, "exact")
    assert gaussian_delta(epsilon, 1.0) == pytest.approx(DELTA, rel=1e-6)
    assert gaussian_delta(epsilon, 1.0) <= DELTA


def test_no_participation_costs_nothing_and_no_noise_everything() -> None:
    assert epsilon_of(0, 1.0, DELTA) == 0.0
    assert epsilon_of(1, 0.0, DELTA) == inf


@pytest.mark.parametrize(("multiplier", "count"), [(0.5, 1), (1.0, 1), (1.0, 10), (2.0, 4), (4.0, 50)])
def test_opacus_lies_between_the_exact_value_and_ours(multiplier: float, count: int) -> None:
    accountants = pytest.importorskip("opacus.accountants")
    accountant = accountants.RDPAccountant()
    for _ in range(count):
        accountant.step(noise_multiplier=multiplier, sample_rate=1.0)
    theirs = accountant.get_epsilon(DELTA)
    assert epsilon_of(count, multiplier, DELTA, "exact") <= theirs <= epsilon_of(count, multiplier, DELTA)


@given(multipliers, counts, st.sampled_from(["zcdp", "exact"]))
def test_epsilon_grows_with_participations_and_falls_with_noise(multiplier: float, count: int, by: str) -> None:
    here = epsilon_of(count, multiplier, DELTA, by)  # type: ignore[arg-type]
    assert epsilon_of(count + 1, multiplier, DELTA, by) >= here  # type: ignore[arg-type]
    assert epsilon_of(count, multiplier * 1.1, DELTA, by) <= here  # type: ignore[arg-type]
    assert 0.0 < here < inf


@given(multipliers, counts)
def test_the_exact_value_is_never_above_the_bound(multiplier: float, count: int) -> None:
    assert epsilon_of(count, multiplier, DELTA, "exact") <= epsilon_of(count, multiplier, DELTA)


def test_composition_is_that_of_one_gaussian_with_less_noise() -> None:
    # Four releases at z = 2 move the output as far as one at z = 1.
    assert epsilon_of(4, 2.0, DELTA, "exact") == pytest.approx(epsilon_of(1, 1.0, DELTA, "exact"))
    assert epsilon_of(4, 2.0, DELTA) == epsilon_of(1, 1.0, DELTA)
    assert exp(epsilon_of(1, 1.0, DELTA)) > 1
