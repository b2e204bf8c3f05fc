"""Depth under the exponential time model: against formulas, and against a simulation of the model itself."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammaincc

from offbeat.algorithms.deadlines.planner import batch_sizes, expected_depth, layer_rates, miss_probabilities


def test_p_is_the_published_formula_if_all_rates_are_equal() -> None:
    # p^l = Q(L + 1 - l, T/m)^U (7), l from 1; with L = 3, T/m = 2, U = 4.
    published = [gammaincc(3 + 1 - layer, 2.0) ** 4 for layer in (1, 2, 3)]
    np.testing.assert_allclose(miss_probabilities(np.full(4, 2.0), 3), published, rtol=1e-12)
    # The last layer is missed if nobody does even one: e^-2 each, e^-8 for four.
    assert math.isclose(miss_probabilities(np.full(4, 2.0), 3)[-1], math.exp(-8))


def test_p_agrees_with_a_simulation_of_exponential_layers() -> None:
    random = np.random.default_rng(0)
    speeds, communication = np.array([10.0, 20.0, 40.0]), np.array([0.5, 1.0, 0.0])
    batches, deadline, layers, trials = np.array([16, 20, 50]), 2.5, 4, 200_000
    seconds = random.exponential(batches / speeds, (trials, layers, 3)).cumsum(axis=1)
    done = (seconds <= deadline - communication).sum(axis=1)  # layers of each device
    rates = layer_rates(deadline, batches, speeds, communication)
    counted = np.array([(done < layers - layer).all(axis=1).mean() for layer in range(layers)])
    p = miss_probabilities(rates, layers)
    error = np.sqrt(p * (1 - p) / trials)
    assert (np.abs(counted - p) < 4 * error + 1e-9).all()
    depth = expected_depth(rates, layers)
    assert (np.abs(done.mean(axis=0) - depth) < 4 * done.std(axis=0) / math.sqrt(trials)).all()


@given(
    scale=st.floats(0.1, 100),
    deadline=st.floats(1.0, 1000),
    speeds=st.lists(st.floats(0.5, 500), min_size=1, max_size=8),
    shares=st.lists(st.floats(0, 0.9), min_size=8, max_size=8),
)
def test_batch_sizes_are_the_floor_of_b3_and_never_slow_a_device_below_the_plan(
    scale: float, deadline: float, speeds: list[float], shares: list[float]
) -> None:
    P, B = np.array(speeds), deadline * np.array(shares[: len(speeds)])
    exact = scale * P * (deadline - B) / deadline
    sizes = batch_sizes(scale, deadline, P, B)
    assert (sizes >= 1).all()
    enough = exact >= 1
    assert (sizes[enough] <= exact[enough] * (1 + 1e-9)).all()
    assert (sizes[enough] > exact[enough] * (1 - 1e-9) - 1).all()
    # So the rate is at least T/m, and (7) is an upper bound of p.
    assert (layer_rates(deadline, sizes, P, B)[enough] >= deadline / scale * (1 - 1e-9)).all()
