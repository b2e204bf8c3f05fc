"""The fast exact solver of ADEL-FL's Problem 2: a separable dual for fixed m, a one-dimensional search over m.

For fixed m the cost is sum_t a_t h(T_t) with one convex decreasing h (see `problem`). Without the order T_1 >= T_2
>= ... the optimum has a_t h'(T_t) = -price for a single price, so a round of greater weight lasts longer. The order is
then a constraint on the weights alone: rounds with increasing weights are pooled and share their mean weight (isotonic
regression; the pools do not depend on the price because h is the same for all). A table of h' gives the price, and
Newton's method on all deadlines and the price refines it to machine precision.

The best m is where the derivative of the optimal cost vanishes; by the envelope theorem that is sum_t a_t dh/dm.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

from offbeat.algorithms.deadlines.planner.depth import Floats
from offbeat.algorithms.deadlines.planner.problem import Problem
from offbeat.core.errors import InvalidInput

TABLE = 300
"""Points of the table of h'."""
SCAN = 14
"""Values of m in the coarse scan."""
EDGES = (1e-4, 1e-6, 1e-8, 1e-10)
"""Distances from the edges of the feasible interval of log m that are searched, as shares of its width."""
NEWTON_STEPS = 30
WORTH = 1e-9
"""Where more time has no effect (no communication, T very long), this share of the cost times mean/T is added, so that
the deadlines are unique."""
MOST_ROUNDS = 2000
"""Largest number of rounds that `solve_rounds` considers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """Deadlines T_1 >= ... >= T_R, the batch scale m, and the bound (10) at them."""

    deadlines: Floats
    scale: float
    bound: float


def solve(problem: Problem) -> Solution:
    """Solve Problem 2 for a given number of rounds."""
    check_feasible(problem)
    low, high = np.log(problem.scales)
    weights = scipy.optimize.isotonic_regression(problem.weights, increasing=False).x
    values, counts = np.unique(weights, return_counts=True)
    pooled = _PooledProblem(problem, values[::-1], counts[::-1].astype(np.float64))
    scale = float(np.exp(_best_log_scale(pooled, low, high)))
    deadlines = np.repeat(pooled.deadlines(scale), counts[::-1])
    return Solution(deadlines=deadlines, scale=scale, bound=problem.bound(deadlines, scale))


def _best_log_scale(pooled: "_PooledProblem", low: float, high: float) -> float:
    """The log m at which the derivative of the minimal cost by m changes its sign.

    A coarse scan brackets it. If the bracket fails, because the root lies closer to the edge of the feasible interval,
    wider brackets are tried.
    """
    scan = np.linspace(low, high, SCAN + 2)[1:-1]
    best = int(np.argmin([pooled.cost(log_scale, polished=False)[0] for log_scale in scan]))
    width = high - low
    before = scan[best - 1] if best else low + EDGES[0] * width
    behind = scan[best + 1] if best + 1 < len(scan) else high - EDGES[0] * width
    for left, right in [(before, behind), *((low + edge * width, high - edge * width) for edge in EDGES)]:
        if pooled.cost(left)[1] < 0.0 < pooled.cost(right)[1]:
            return float(scipy.optimize.brentq(lambda each: pooled.cost(each)[1], left, right, xtol=1e-10))
    raise InvalidInput(
        f"found no optimal batch scale m between {np.exp(low):.6g} and {np.exp(high):.6g}: the bound hardly depends "
        "on it, or algorithm.gradient_variance and algorithm.gradient_bound differ too much in size"
    )


def solve_rounds(problem_of: Callable[[int], Problem]) -> Solution:
    """Solve Problem 2 for the best number of rounds too (the paper's future work).

    `problem_of(R)` is the problem with R rounds. The bound first falls and then rises with R: a coarse scan brackets
    the minimum, and a ternary search finds it.
    """
    first = problem_of(1)
    check_feasible(first)
    most = int(min(MOST_ROUNDS, np.ceil(first.budget / first.shortest_round) - 1))
    solved: dict[int, Solution] = {}

    def bound(rounds: int) -> float:
        if rounds not in solved:
            solved[rounds] = solve(problem_of(rounds))
        return solved[rounds].bound

    scan = np.unique(np.geomspace(1, most, 12).round().astype(int)).tolist()
    best = min(range(len(scan)), key=lambda place: bound(scan[place]))
    left, right = scan[max(best - 1, 0)], scan[min(best + 1, len(scan) - 1)]
    while right - left > 2:
        third = (right - left) // 3
        if bound(left + third) <= bound(right - third):
            right -= third
        else:
            left += third
    return solved[min(range(left, right + 1), key=bound)]


def check_feasible(problem: Problem) -> None:
    """Raise InvalidInput if the budget is too short or the bound does not apply."""
    if problem.devices < 2:
        raise InvalidInput(f"ADEL-FL needs at least 2 devices, not {problem.devices}: its bound divides by U - 1")
    steep = float(problem.rates.max()) * problem.constants.strong_convexity
    if steep >= 1.0:
        raise InvalidInput(
            f"algorithm.strong_convexity or local.weight_decay = {problem.constants.strong_convexity:g}: its product "
            f"with the learning rate is {steep:.3g}, must be below 1"
        )
    if problem.budget <= problem.least_budget:
        raise InvalidInput(
            f"a time budget of {problem.budget:.6g} s is too short for {problem.rounds} rounds: stop.time and "
            f"algorithm.time_budget must exceed {problem.least_budget:.6g} s"
        )


class _PooledProblem:
    """A problem whose rounds are pooled by weight, largest first."""

    def __init__(self, problem: Problem, weights: Floats, counts: Floats) -> None:
        self.problem = problem
        self.weights = weights
        self.counts = counts

    def cost(self, log_scale: float, polished: bool = True) -> tuple[float, float]:
        """The minimal cost for this m, and its derivative in m."""
        scale = float(np.exp(log_scale))
        value, _, _, by_scale = self.problem.terms(self.deadlines(scale, polished), scale)
        total = self.weights * self.counts
        return float(total @ value), float(total @ by_scale)

    def deadlines(self, scale: float, polished: bool = True) -> Floats:
        """The optimal deadline of each pool for this m, from the table or refined by Newton's method."""
        problem = self.problem
        mean = problem.budget / problem.rounds
        shortest = problem.shortest_deadline(scale)
        room = problem.rounds * (mean - shortest)
        worth = WORTH * mean * float(problem.terms(np.array([mean]), scale)[0][0])

        def slope(deadlines: Floats) -> tuple[Floats, Floats]:
            """The negative first derivative of h and its second one, at these deadlines."""
            _, first, second, _ = problem.terms(deadlines, scale)
            return worth / deadlines**2 - first, 2.0 * worth / deadlines**3 + second

        # From as close to the poles of h as floats resolve, up to all the spare time in one round.
        least = min(max(1e-9 * room, 1e-10 * shortest), 0.5 * room / problem.rounds)
        table = shortest + np.geomspace(least, 1.001 * room, TABLE)
        cheapness = -np.log(slope(table)[0])  # grows with the deadline
        cheapness = np.maximum.accumulate(cheapness)
        weights = np.log(self.weights)

        def at_price(log_price: float) -> Floats:
            return np.interp(weights - log_price, cheapness, table)

        def excess(log_price: float) -> float:
            return float(self.counts @ at_price(log_price)) - problem.budget

        log_price = scipy.optimize.brentq(excess, weights[-1] - cheapness[-1] - 1.0, weights[0] - cheapness[0] + 1.0)
        deadlines = at_price(log_price)
        for _ in range(NEWTON_STEPS if polished else 0):
            steepness, bend = slope(deadlines)
            step = steepness / bend  # -1 / (d log(-h') / dT)
            residual = np.log(steepness) + weights - log_price
            missing = problem.budget - float(self.counts @ deadlines)
            change = (float(self.counts @ (step * residual)) - missing) / float(self.counts @ step)
            moved = step * (residual - change)
            log_price += change
            # h' is far from linear near its pole: go at most 90 % of the way towards it.
            moved = np.maximum(moved, -0.9 * (deadlines - shortest))
            deadlines = deadlines + moved
            if float(np.max(np.abs(moved) / deadlines)) < 1e-10:
                break
        deadlines = np.minimum.accumulate(deadlines)
        return deadlines * min(1.0, problem.budget / float(self.counts @ deadlines))
