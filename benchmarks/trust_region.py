"""ADEL-FL's Problem 2 solved as in the paper, with scipy's trust-region method, to check the fast solver.

It gets exact derivatives and scaled variables (deadlines in mean rounds, m in units of its feasible middle). The
bound has poles at the edge of the feasible region, so steps that leave it are rejected (`keep_feasible`).
"""

import warnings
from contextlib import suppress

import numpy as np
from scipy.optimize import LinearConstraint, NonlinearConstraint, minimize

from offbeat.algorithms.deadlines.planner.depth import Floats
from offbeat.algorithms.deadlines.planner.problem import Problem
from offbeat.algorithms.deadlines.planner.solver import Solution, check_feasible


def solve_by_trust_region(problem: Problem, iterations: int = 2000) -> Solution:
    """Solve Problem 2 from equal deadlines and the middle of the feasible m; slow, may not converge."""
    check_feasible(problem)
    mean, middle = problem.budget / problem.rounds, float(np.sqrt(np.prod(problem.scales)))
    scales = np.append(np.full(problem.rounds, mean), middle)
    unit = problem.cost(np.full(problem.rounds, mean), middle)

    def split(x: Floats) -> tuple[Floats, float]:
        return x[:-1] * mean, float(x[-1]) * middle

    def cost(x: Floats) -> float:
        return problem.cost(*split(x)) / unit

    def gradient(x: Floats) -> Floats:
        _, by_deadline, _, by_scale = problem.terms(*split(x))
        both: Floats = np.append(problem.weights * by_deadline, problem.weights @ by_scale) * scales / unit
        return both

    def least_batch(x: Floats) -> Floats:
        """m P_u (T_R - B_u) / T_R - 1 for the shortest round, the last."""
        deadlines, scale = split(x)
        excess: Floats = scale * problem.speeds * (1.0 - problem.communication / deadlines[-1]) - 1.0
        return excess

    def least_batch_gradient(x: Floats) -> Floats:
        deadlines, scale = split(x)
        last = float(deadlines[-1])
        rows = np.zeros((problem.devices, problem.rounds + 1))
        rows[:, -2] = scale * problem.speeds * problem.communication / last**2
        rows[:, -1] = problem.speeds * (1.0 - problem.communication / last)
        rows *= scales
        return rows

    order = np.zeros((problem.rounds + 1, problem.rounds + 1))
    order[0, :-1] = 1.0 / problem.rounds  # the budget
    order[1:-1, :-1] = (np.eye(problem.rounds) - np.eye(problem.rounds, k=1))[:-1]  # T_t - T_{t+1}
    order[-1, -2], order[-1, -1] = 1.0, -problem.least_ratio * middle / mean  # p^1 < 0.2 in the last round
    lower = np.append(-np.inf, np.zeros(problem.rounds))
    upper = np.append(1.0, np.full(problem.rounds, np.inf))
    # A strictly feasible start: just inside the budget, deadlines decreasing slightly.
    start = np.append(1.0 - 1e-3 * np.linspace(0.1, 1.0, problem.rounds) * _slack(problem, middle), 1.0)
    visited = [start]

    def remember(x: Floats, _: object) -> None:
        visited.append(x.copy())

    # It may leave the feasible region nevertheless and fail there: the last feasible step is then the solution.
    with warnings.catch_warnings(), np.errstate(all="ignore"), suppress(ValueError):
        warnings.simplefilter("ignore")  # "delta_grad == 0" and singular Jacobians: only the result counts
        minimize(
            cost,
            start,
            jac=gradient,
            method="trust-constr",
            callback=remember,
            constraints=[
                LinearConstraint(order, lower, upper, keep_feasible=True),
                NonlinearConstraint(least_batch, 0.0, np.inf, jac=least_batch_gradient, keep_feasible=True),
            ],
            options={"maxiter": iterations, "gtol": 1e-10, "xtol": 1e-12},
        )

    def feasible(x: Floats) -> bool:
        linear = order @ x
        within = (linear >= lower - 1e-9).all() and (linear <= upper + 1e-9).all()
        return bool(within and np.isfinite(x).all() and (least_batch(x) > 0).all())

    deadlines, scale = split(min((x for x in visited if feasible(x)), key=cost))
    return Solution(deadlines=deadlines, scale=scale, bound=problem.bound(deadlines, scale))


def _slack(problem: Problem, scale: float) -> float:
    """The share of a mean round above its minimum."""
    return 1.0 - problem.shortest_deadline(scale) * problem.rounds / problem.budget
