"""Problem 2: the bound by hand, its derivatives by finite differences, and what is feasible."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaincc
from trust_region import solve_by_trust_region

from offbeat.algorithms.deadlines.planner import Problem, ProblemConstants, batch_sizes, solve, solve_rounds, solver
from offbeat.core.errors import InvalidInput

CONSTANTS = ProblemConstants(
    strong_convexity=0.1,
    smoothness=2.0,
    heterogeneity=0.5,
    gradient_variance=3.0,
    gradient_bound=0.5,
    initial_distance=4.0,
)


def problem_of(
    seed: int, *, rounds: int, devices: int, layers: int, room: float, inverse: bool = True, near: bool = False
) -> Problem:
    """A random problem with `room` times the least feasible budget."""
    random = np.random.default_rng(seed)
    constants = ProblemConstants(
        strong_convexity=float(random.uniform(0, 0.5)),
        smoothness=1.0,
        heterogeneity=0.1,
        gradient_variance=float(10 ** random.uniform(-1, 2)),
        gradient_bound=float(10 ** random.uniform(-1, 1)),
        initial_distance=1.0,
    )
    parts: dict[str, Any] = {
        "speeds": random.uniform(20, 200, devices),
        "communication": np.zeros(devices) if near else random.uniform(0, 2, devices),
        "layers": layers,
        "rates": 0.8 / (1.0 + np.arange(rounds)) if inverse else np.full(rounds, 0.2),
        "constants": constants,
    }
    least = Problem(budget=1.0, **parts).least_budget
    return Problem(budget=room * least, **parts)


def test_the_bound_by_hand() -> None:
    # U = 2 equal devices, P = 4, B = 1; L = 1; one round of T = 4 with m = 2 and eta = 0.5.
    #   B_1 = 1/4 (3/(2 4 (4-1)/4 - 1) 2) + 6 2 0.5 = 1/4 (3/5 2) + 6 = 6.3
    #   q   = Q(1, 2)^2 = e^-4 = 0.01831564,  C_1 = 4 0.5 2/1 (1.01831564 / (1 - 0.0915782)) = 4 1.1209726 = 4.4838906
    #   bound = (1 - 0.05) 4 + 0.25 (6.3 + 4.4838906) = 3.8 + 2.6959726 = 6.4959726
    problem = Problem(
        speeds=np.array([4.0, 4.0]),
        communication=np.array([1.0, 1.0]),
        layers=1,
        rates=np.array([0.5]),
        budget=4.0,
        constants=CONSTANTS,
    )
    assert problem.bound(np.array([4.0]), 2.0) == pytest.approx(6.4959726, abs=1e-6)


def test_the_bound_with_several_layers_by_hand() -> None:
    # As above with L = 2: x = T/m = 2, Q(1, 2) = e^-2 and Q(2, 2) = e^-2 (1 + 2).
    #   last layer  q = e^-4   = 0.0183156389:  1.0183156389 / (1 - 0.0915781944) = 1.1209726
    #   first layer q = 9 e^-4 = 0.1648407500:  1.1648407500 / (1 - 0.8242037500) = 6.6260839
    #   C_1 = 4 0.5 2/1 (1.1209726 + 6.6260839) = 30.988226
    #   bound = 3.8 + 0.25 (6.3 + 30.988226) = 13.1220565
    problem = Problem(
        speeds=np.array([4.0, 4.0]),
        communication=np.array([1.0, 1.0]),
        layers=2,
        rates=np.array([0.5]),
        budget=4.0,
        constants=CONSTANTS,
    )
    assert problem.bound(np.array([4.0]), 2.0) == pytest.approx(13.1220565, abs=2e-5)


@pytest.mark.parametrize("layers", [1, 3, 6])
def test_c_is_the_published_sum_over_layers(layers: int) -> None:
    # (11) with the noise and the heterogeneity taken out: 4 G^2 U/(U-1) sum_l (1 + q_l)/(1 - 5 q_l).
    silent = replace(CONSTANTS, gradient_variance=0.0, heterogeneity=0.0)
    problem = problem_of(0, rounds=1, devices=3, layers=layers, room=2.0)
    problem = replace(problem, constants=silent)
    deadline, scale = 12.0, 1.0
    q = [gammaincc(layers + 1 - layer, deadline / scale) ** 3 for layer in range(1, layers + 1)]
    published = 4 * 0.5 * 3 / 2 * sum((1 + each) / (1 - 5 * each) for each in q)
    assert problem.terms(np.array([deadline]), scale)[0] == pytest.approx([published])


def test_weights_by_hand() -> None:
    # rates 0.5, 0.2, 0.1; rho_c = 0.1: a_3 = 0.01, a_2 = 0.04 0.99, a_1 = 0.25 0.98 0.99.
    problem = Problem(
        speeds=np.ones(2),
        communication=np.zeros(2),
        layers=1,
        rates=np.array([0.5, 0.2, 0.1]),
        budget=9.0,
        constants=CONSTANTS,
    )
    np.testing.assert_allclose(problem.weights, [0.25 * 0.98 * 0.99, 0.04 * 0.99, 0.01])
    assert problem.contraction == pytest.approx(0.95 * 0.98 * 0.99)


@pytest.mark.parametrize("seed", range(4))
def test_derivatives_agree_with_finite_differences_and_the_cost_is_convex(seed: int) -> None:
    problem = problem_of(seed, rounds=3, devices=2 + 3 * seed, layers=1 + 2 * seed, room=2.0)
    scale = math.sqrt(math.prod(problem.scales))
    deadlines = problem.shortest_deadline(scale) * np.array([1.05, 1.2, 2.0, 4.0])
    value, first, second, by_scale = problem.terms(deadlines, scale)
    step = 1e-5 * deadlines
    up, down = problem.terms(deadlines + step, scale), problem.terms(deadlines - step, scale)
    np.testing.assert_allclose((up[0] - down[0]) / (2 * step), first, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose((up[1] - down[1]) / (2 * step), second, rtol=1e-4, atol=1e-9)
    wide, narrow = problem.terms(deadlines, scale * (1 + 1e-6))[0], problem.terms(deadlines, scale * (1 - 1e-6))[0]
    np.testing.assert_allclose((wide - narrow) / (2e-6 * scale), by_scale, rtol=1e-4, atol=1e-8)
    assert (first < 0).all() and (second > 0).all() and (value > 0).all()


def test_the_least_budget_by_hand() -> None:
    # U = 2, L = 1: Q(1, x)^2 = e^-2x = 0.2 at x* = ln(5)/2 = 0.8047190.
    # Shortest round: max(0.8047190/4 + 1, 0.8047190/2 + 0.5) = max(1.2011797, 0.9023595); two rounds: 2.4023595.
    parts: dict[str, Any] = {
        "speeds": np.array([4.0, 2.0]),
        "communication": np.array([1.0, 0.5]),
        "layers": 1,
        "rates": np.array([0.5, 0.5]),
        "constants": CONSTANTS,
    }
    assert Problem(budget=2.0, **parts).least_budget == pytest.approx(2.4023595, abs=1e-6)
    with pytest.raises(InvalidInput, match=r"^a time budget of 2\.4 s is too short for 2 rounds: .* exceed 2\.40236 s"):
        solve(Problem(budget=2.4, **parts))
    assert solve(Problem(budget=2.41, **parts)).deadlines.sum() == pytest.approx(2.41)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rounds=st.integers(1, 40),
    devices=st.integers(2, 40),
    layers=st.integers(1, 14),
    room=st.floats(1.001, 50),
    inverse=st.booleans(),
    near=st.booleans(),
)
def test_every_solution_is_feasible_and_better_than_equal_rounds(
    seed: int, rounds: int, devices: int, layers: int, room: float, inverse: bool, near: bool
) -> None:
    problem = problem_of(seed, rounds=rounds, devices=devices, layers=layers, room=room, inverse=inverse, near=near)
    solution = solve(problem)
    T, m = solution.deadlines, solution.scale
    assert len(T) == rounds
    assert T.sum() <= problem.budget * (1 + 1e-12)
    assert T.sum() >= problem.budget * (1 - 1e-6)  # time is never left over
    assert (np.diff(T) <= 0).all()
    assert (problem.communication.max() < T).all()
    assert (gammaincc(layers, T / m) ** devices < 0.2).all()
    for deadline in T[[0, -1]]:
        assert (m * problem.speeds * (deadline - problem.communication) / deadline >= 1).all()
        assert (batch_sizes(m, deadline, problem.speeds, problem.communication) >= 1).all()
    low, high = problem.scales
    equal = np.full(rounds, problem.budget / rounds)
    for share in (0.2, 0.4, 0.6, 0.8):
        assert solution.bound <= problem.bound(equal, low ** (1 - share) * high**share) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_the_fast_solver_is_never_worse_than_the_trust_region(seed: int) -> None:
    random = np.random.default_rng(1000 + seed)
    problem = problem_of(
        seed,
        rounds=int(random.integers(1, 9)),
        devices=int(random.integers(2, 30)),
        layers=int(random.integers(1, 8)),
        room=float(random.uniform(1.05, 5)),
        inverse=bool(seed % 3),
        near=bool(seed % 2),
    )
    fast, slow = solve(problem), solve_by_trust_region(problem, iterations=600)
    fixed = problem.contraction * problem.constants.initial_distance
    assert fast.bound - fixed <= (slow.bound - fixed) * 1.001
    assert fast.bound - fixed >= (slow.bound - fixed) * 0.9  # and they solve the same problem


@pytest.mark.parametrize(("variance", "room"), [(1e-9, 1.001), (1e-12, 1.001), (1e15, 500.0)])
def test_the_best_m_is_found_even_at_the_edge_of_what_is_feasible(
    variance: float, room: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(1, rounds=6, devices=6, layers=4, room=room)
    problem = replace(problem, constants=replace(problem.constants, gradient_variance=variance, gradient_bound=1.0))
    low, high = np.log(problem.scales)
    solution = solve(problem)
    place = (math.log(solution.scale) - low) / (high - low)
    assert min(place, 1 - place) < 1e-4, "nearer to the edge than the scan looks"
    # No other m has a lower bound with the deadlines that are best for it: here those of a finer and finer grid.
    weights, counts = np.unique(problem.weights, return_counts=True)
    pooled = solver._PooledProblem(problem, weights[::-1], counts[::-1].astype(np.float64))
    shares = np.geomspace(1e-9, 0.5, 60)
    others = [pooled.cost(low + share * (high - low))[0] for share in [*shares, *(1 - shares)]]
    assert problem.cost(solution.deadlines, solution.scale) <= min(others) * (1 + 1e-9)
    # If nothing is found the solver says so: it never answers with a point of its grid.
    monkeypatch.setattr(solver, "EDGES", solver.EDGES[:1])
    with pytest.raises(InvalidInput, match=r"found no optimal batch scale m between [\d.e-]+ and [\d.e-]+"):
        solve(problem)


def test_a_constant_learning_rate_makes_equal_rounds() -> None:
    # Later rounds weigh more then, but may not last longer: all are pooled.
    solution = solve(problem_of(3, rounds=20, devices=10, layers=4, room=3.0, inverse=False))
    np.testing.assert_allclose(solution.deadlines, solution.deadlines[0], rtol=1e-9)


def test_the_number_of_rounds_can_be_free() -> None:
    def problem(rounds: int) -> Problem:
        return Problem(
            speeds=np.linspace(20.0, 100.0, 8),
            communication=np.full(8, 0.2),
            layers=3,
            rates=np.full(rounds, 0.3),
            budget=10.0,
            constants=replace(CONSTANTS, initial_distance=100.0),
        )

    best = solve_rounds(problem)
    most = math.ceil(10.0 / problem(1).shortest_round) - 1
    every = {rounds: solve(problem(rounds)).bound for rounds in range(1, most + 1)}
    assert best.bound == min(every.values())
    assert 1 < len(best.deadlines) < most


def test_a_bound_that_makes_no_sense_is_refused() -> None:
    parts: dict[str, Any] = {
        "speeds": np.ones(2),
        "communication": np.zeros(2),
        "layers": 1,
        "budget": 99.0,
        "constants": CONSTANTS,
    }
    with pytest.raises(InvalidInput, match="product with the learning rate is"):
        solve(Problem(rates=np.array([20.0]), **parts))
    with pytest.raises(InvalidInput, match="at least 2 devices, not 1"):
        solve(Problem(rates=np.array([0.1]), **(parts | {"speeds": np.ones(1), "communication": np.zeros(1)})))
