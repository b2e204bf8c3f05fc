"""Plans rounds with deadlines before training: probabilities, batch sizes, and ADEL-FL's Problem 2."""

from offbeat.algorithms.deadlines.planner.depth import (
    batch_sizes,
    expected_depth,
    fixed_depth,
    layer_rates,
    miss_probabilities,
)
from offbeat.algorithms.deadlines.planner.problem import Problem, ProblemConstants
from offbeat.algorithms.deadlines.planner.solver import Solution, solve, solve_rounds

__all__ = [
    "Problem",
    "ProblemConstants",
    "Solution",
    "batch_sizes",
    "expected_depth",
    "fixed_depth",
    "layer_rates",
    "miss_probabilities",
    "solve",
    "solve_rounds",
]
