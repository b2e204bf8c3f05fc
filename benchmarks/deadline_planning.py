"""Speed of the solver of ADEL-FL's Problem 2: on large problems, and beside the trust region on small ones.

python benchmarks/deadline_planning.py
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from trust_region import solve_by_trust_region

from offbeat.algorithms.deadlines.planner import Problem, ProblemConstants, Solution, solve

REPEATS = 5
LARGE = [(100, 30, 4), (500, 100, 13), (2000, 100, 13)]
SMALL = [(5, 10, 3), (10, 20, 5), (20, 30, 8)]


def problem_of(rounds: int, devices: int, layers: int) -> Problem:
    random = np.random.default_rng(0)
    speeds, communication = random.uniform(20, 200, devices), random.uniform(0, 2, devices)
    rates = 0.5 / (1.0 + np.arange(rounds))
    constants = ProblemConstants(
        strong_convexity=0.1,
        smoothness=1.0,
        heterogeneity=0.0,
        gradient_variance=20.0,
        gradient_bound=1.0,
        initial_distance=1.0,
    )
    parts: dict[str, Any] = {
        "speeds": speeds,
        "communication": communication,
        "layers": layers,
        "rates": rates,
        "constants": constants,
    }
    return Problem(budget=2.0 * Problem(budget=1.0, **parts).least_budget, **parts)


def timed(solver: Callable[[Problem], Solution], problem: Problem, repeats: int) -> tuple[float, Solution]:
    """Median CPU time in seconds, and the solution."""
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        solution = solver(problem)
        seconds.append(time.process_time() - began)
    return statistics.median(seconds), solution


def main() -> None:
    print(f"R, U, L: CPU seconds of the solver, median of {REPEATS}")
    for size in LARGE:
        seconds, _ = timed(solve, problem_of(*size), REPEATS)
        print(f"  {size}: {seconds:.3f} s")
    print("R, U, L: solver and trust region, ratio of their costs")
    for size in SMALL:
        problem = problem_of(*size)
        quick, fast = timed(solve, problem, REPEATS)
        slow, other = timed(solve_by_trust_region, problem, 1)
        fixed = problem.contraction * problem.constants.initial_distance
        print(f"  {size}: {quick:.3f} s and {slow:.1f} s, {(fast.bound - fixed) / (other.bound - fixed):.6f}")


if __name__ == "__main__":
    main()
