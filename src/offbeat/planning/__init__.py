"""Planning rounds with deadlines before anything is trained: probabilities, batch sizes, and ADEL-FL's Problem 2."""

from offbeat.planning.depth import batch_sizes, expected_depth, layer_rates, miss_probabilities
from offbeat.planning.estimate import Estimate, estimate
from offbeat.planning.problem import Constants, Problem
from offbeat.planning.solver import Solution, solve, solve_rounds

__all__ = [
    "Constants",
    "Estimate",
    "Problem",
    "Solution",
    "batch_sizes",
    "estimate",
    "expected_depth",
    "layer_rates",
    "miss_probabilities",
    "solve",
    "solve_rounds",
]
