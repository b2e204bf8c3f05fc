"""The bounds on delayed gradients: by hand, against each other, and against simulated delays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.comparison.delayed_gradients.bounds import (
    BoundConstants,
    Delays,
    audg_bound,
    bernoulli_moments,
    degradation,
    psurdg_bound,
    sfl_bound,
    theta,
    turning_delay,
)
from offbeat.core.errors import InvalidInput
from offbeat.core.streams import stream

SIMPLE = BoundConstants(smoothness=2.0, convexity=1.0, gradient=3.0, radius=2.0, heterogeneity=1.0)
HALF = Delays.bernoulli([0.5, 0.5], [0.5, 0.5])
"""Both deliver every other time: E tau = 1, E tau^2 = 3, E tau^3 = 13, E|I| = 1 of N = 2."""
RATE, T = 0.1, 10


def test_the_synchronous_bound_by_hand() -> None:
    # R^2 / (2 eta T) = 4 / 2 = 2;  2 L / (mu T^2) [L R^2 + (mu + L) phi^2] = 4/100 (2 * 4 + 3 * 1) = 0.44
    assert sfl_bound(SIMPLE, RATE, T) == pytest.approx(2.44)


def test_the_bounds_with_delays_by_hand() -> None:
    # cubic = 13/3 + 3/2 * 3 + 13/6 * 1 = 26/6 + 27/6 + 13/6 = 11
    assert HALF.cubic == pytest.approx(11.0)
    assert (HALF.mean, HALF.participants, HALF.absent) == (1.0, 1.0, 1.0)
    # eta^2 G^2 = 0.01 * 9 = 0.09
    # PDD (45) = 2*4/2 * 1 + 3/2 * 2*4 * 1 + 0.09 * 2 * 2/2 * 11 + 0.09 * (2-1)/2 * 1 * 1 = 4 + 12 + 1.98 + 0.045
    assert degradation(SIMPLE, HALF, RATE) == pytest.approx(18.025)
    # (21) = 2.44 + 18.025 + 1 * (4 - 1)/2 * 1 = 21.965
    assert audg_bound(SIMPLE, HALF, RATE, T) == pytest.approx(21.965)
    # (48) = 2.44 + 2 * 0.09/2 * (1 * 1 + 2 * 11) + 2*4/2 * 1 = 2.44 + 2.07 + 4 = 8.51
    assert psurdg_bound(SIMPLE, HALF, RATE, T) == pytest.approx(8.51)
    # Theta = 1 * [0.09 * 1/2 * 1 - (3/2 * 2 * 4 + 3/2 * 1)] = 0.045 - 13.5 = 8.51 - 21.965
    assert theta(SIMPLE, HALF, RATE) == pytest.approx(-13.455)


def test_theta_has_l_minus_mu_where_the_paper_prints_l() -> None:
    printed = 1.0 * (0.09 * 2 / 2 * 1 - 13.5)
    difference = psurdg_bound(SIMPLE, HALF, RATE, T) - audg_bound(SIMPLE, HALF, RATE, T)
    assert theta(SIMPLE, HALF, RATE) == pytest.approx(difference)
    assert printed != pytest.approx(difference)


positive = st.floats(0.01, 10.0)
constants = st.builds(
    lambda L, share, G, R, phi: BoundConstants(
        smoothness=L, convexity=L * share, gradient=G, radius=R, heterogeneity=phi
    ),
    positive,
    st.floats(0.01, 1.0),
    positive,
    positive,
    st.floats(0.0, 10.0),
)
rates, lengths = st.floats(1e-3, 1.0), st.integers(1, 1000)
probabilities = st.lists(st.floats(0.05, 1.0), min_size=1, max_size=6)


def some_delays(success: list[float]) -> Delays:
    weights = np.arange(1.0, len(success) + 1)
    return Delays.bernoulli(success, weights / weights.sum())


@given(constants, st.integers(1, 6), rates, lengths)
def test_without_delays_all_bounds_are_the_synchronous_one(
    c: BoundConstants, clients: int, rate: float, T: int
) -> None:
    never_late = some_delays([1.0] * clients)
    assert audg_bound(c, never_late, rate, T) == psurdg_bound(c, never_late, rate, T) == sfl_bound(c, rate, T)
    assert theta(c, never_late, rate) == degradation(c, never_late, rate) == 0.0


@given(constants, probabilities, rates, lengths)
def test_theta_is_the_difference_of_the_bounds(c: BoundConstants, success: list[float], rate: float, T: int) -> None:
    delays = some_delays(success)
    one, other = psurdg_bound(c, delays, rate, T), audg_bound(c, delays, rate, T)
    assert theta(c, delays, rate) == pytest.approx(one - other, rel=1e-9, abs=1e-9 * (one + other))


@given(constants, probabilities, rates, lengths)
def test_the_degradation_is_what_audg_loses_when_data_are_alike(
    c: BoundConstants, success: list[float], rate: float, T: int
) -> None:
    alike = BoundConstants(**(vars(c) | {"heterogeneity": 0.0}))
    delays = some_delays(success)
    lost = audg_bound(alike, delays, rate, T) - sfl_bound(alike, rate, T)
    assert degradation(alike, delays, rate) == pytest.approx(lost, rel=1e-6, abs=1e-9 * sfl_bound(alike, rate, T))


@given(constants, probabilities, rates)
def test_theta_turns_at_the_turning_delay(c: BoundConstants, success: list[float], rate: float) -> None:
    delays = some_delays(success)
    if delays.absent > 1e-9 and delays.mean != pytest.approx(turning_delay(c, rate)):
        assert (theta(c, delays, rate) > 0) == (delays.mean > turning_delay(c, rate))


@pytest.mark.parametrize(
    ("delay", "printed", "real"), [(1, -3.16, -2.24), (3, -3.55, -1.16), (5, -3.68, 2.76), (9, -3.77, 24.2)]
)
def test_theta_turns_with_the_ages_of_the_gradients_that_psurdg_applies(
    delay: float, printed: float, real: float
) -> None:
    # The example of our notes on the paper: N = 4, L = 1, mu = 0.1, G = R = 1, phi = 0.3, eta = 0.1, others delayed 1.
    constants = BoundConstants(smoothness=1.0, convexity=0.1, gradient=1.0, radius=1.0, heterogeneity=0.3)
    success, weights = [1 / (1 + delay), 0.5, 0.5, 0.5], [0.25] * 4
    delays, ages = Delays.bernoulli(success, weights), Delays.bernoulli(success, weights, reused=True)
    assert theta(constants, delays, 0.1) == pytest.approx(printed, abs=0.005)
    assert theta(constants, delays, 0.1, ages) == pytest.approx(real, abs=0.05 if abs(real) > 10 else 0.005)
    assert ages.first == pytest.approx(2 * delays.first)
    if delay == 1:
        # Delays 1, 3, 13; ages 2, 2 3 + 2 1 = 8, 2 13 + 6 1 3 = 44. Cubic terms 11 and 44/3 + 12 + 13/3 = 31.
        #   (48) - (20): 4 0.01/2 (0.9 2 + 31) + 1/2 2 = 0.656 + 1
        #   (21) - (20): 1/2 + 3/2 2 + 4 0.01/2 11 + 0.01 0.9/2 2 + 2 1.9/2 0.09 = 0.5 + 3 + 0.22 + 0.009 + 0.171
        assert theta(constants, delays, 0.1, ages) == pytest.approx(1.656 - 3.9)


@given(constants, probabilities, rates, lengths)
def test_theta_with_ages_is_the_difference_of_the_bounds(
    c: BoundConstants, success: list[float], rate: float, T: int
) -> None:
    delays, weights = some_delays(success), some_delays(success).weights
    ages = Delays.bernoulli(success, weights, reused=True)
    one, other = psurdg_bound(c, ages, rate, T), audg_bound(c, delays, rate, T)
    assert theta(c, delays, rate, ages) == pytest.approx(one - other, rel=1e-9, abs=1e-9 * (one + other))
    assert theta(c, delays, rate, delays) == pytest.approx(theta(c, delays, rate), rel=1e-6, abs=1e-9 * (one + other))


@pytest.mark.parametrize("success", [0.1, 0.25, 0.5, 0.9])
def test_the_ages_of_reused_gradients_are_those_of_a_simulation(success: float) -> None:
    tries = stream(8, "tries").random(400_000) < success
    seen, applied, begun = [], None, 0
    for number, delivered in enumerate(tries.tolist()):
        if delivered:  # the gradient at the model of iteration `begun` comes, and the client begins anew
            applied, begun = begun, number + 1
        if applied is not None:
            seen.append(float(number - applied))
    ages = Delays.bernoulli([success], [1.0], reused=True)
    for power, moment in enumerate((ages.first, ages.second, ages.third), start=1):
        assert (np.array(seen) ** power).mean() == pytest.approx(float(moment[0]), rel=0.08)


def test_ages_from_orders_by_hand() -> None:
    # Orders of 1 and 3 iterations in turn: the first gradient has age 0 when it comes, and the next one comes three
    # iterations later (0, 1, 2); that one comes with age 2, and the next after one iteration (2). Means of 0, 1, 2, 2.
    ages = Delays.of_orders([[1, 3]], [1.0], reused=True)
    assert (ages.first[0], ages.second[0], ages.third[0]) == (5 / 4, 9 / 4, 17 / 4)
    taken = stream(3, "orders").geometric([[0.5], [0.2]], size=(2, 100_000))
    seen, known = (
        Delays.of_orders(taken, [0.5, 0.5], reused=True),
        Delays.bernoulli([0.5, 0.2], [0.5, 0.5], reused=True),
    )
    for name in ("first", "second", "third"):
        assert getattr(seen, name) == pytest.approx(getattr(known, name), rel=0.05)


@pytest.mark.parametrize("success", [0.1, 0.25, 0.5, 0.9])
def test_the_closed_moments_are_those_of_simulated_delays(success: float) -> None:
    # An age in the manner of (1): zero after a success, one more after a failure.
    tries = stream(7, "tries").random(400_000) < success
    ages, age = [], 0
    for delivered in tries.tolist():
        ages.append(age)
        age = 0 if delivered else age + 1
    seen = np.array(ages, dtype=np.float64)
    for power, moment in enumerate(bernoulli_moments(success), start=1):
        assert (seen**power).mean() == pytest.approx(float(moment), rel=0.08)


def test_moments_from_orders_are_those_of_the_bernoulli_fleet() -> None:
    taken = stream(3, "orders").geometric([[0.5], [0.2]], size=(2, 100_000))
    seen, known = Delays.of_orders(taken, [0.5, 0.5]), Delays.bernoulli([0.5, 0.2], [0.5, 0.5])
    for name in ("first", "second", "third"):
        assert getattr(seen, name) == pytest.approx(getattr(known, name), rel=0.05)
    assert seen.participants == pytest.approx(0.7, rel=0.01)


def test_moments_from_orders_by_hand() -> None:
    # Orders of 1 and 3 iterations: ages 0 and 0, 1, 2: means 3/4, 5/4, 9/4; two deliveries in four iterations.
    delays = Delays.of_orders([[1, 3]], [1.0])
    assert (delays.first[0], delays.second[0], delays.third[0], delays.participants) == (0.75, 1.25, 2.25, 0.5)


def test_without_convexity_the_bounds_are_infinite_and_theta_is_not() -> None:
    flat = BoundConstants(smoothness=2.0, convexity=0.0, gradient=3.0, radius=2.0, heterogeneity=1.0)
    assert sfl_bound(flat, RATE, T) == float("inf")
    # 1 * [0.09 * 2/2 - (12 + 4/2)]
    assert theta(flat, HALF, RATE) == pytest.approx(-13.91)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidInput, match="may not exceed"):
        BoundConstants(smoothness=1.0, convexity=2.0, gradient=1.0, radius=1.0, heterogeneity=0.0)
    with pytest.raises(InvalidInput, match="above 0 and at most 1"):
        bernoulli_moments([0.5, 0.0])
    with pytest.raises(InvalidInput, match="must sum to 1"):
        Delays.bernoulli([0.5, 0.5], [0.5, 0.6])
    with pytest.raises(InvalidInput, match="one value per client"):
        Delays.bernoulli([0.5, 0.5], [1.0])


def test_constants_are_numbers() -> None:
    with pytest.raises(InvalidInput, match="negative or nan"):
        BoundConstants(smoothness=1.0, convexity=0.0, gradient=float("nan"), radius=1.0, heterogeneity=1.0)
