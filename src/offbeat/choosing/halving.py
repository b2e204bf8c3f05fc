"""Successive halving over virtual time: all begin, and at each of some times only the best part goes on."""

from collections.abc import Sequence

from offbeat.core.errors import InvalidInput

REDUCTION = 3
"""Successive halving lets one run out of this many go on at each step."""
STEPS = (1, 3, 9)
"""When it is decided who goes on, in ninths of the run; the last is its end."""


def best_part(scores: Sequence[float], reduction: int = REDUCTION) -> float:
    """The score up to which (lower is better) runs go on: one of `reduction`, and at least one.

    >>> best_part([5.0, 1.0, 4.0, 2.0, 3.0, 6.0]), best_part([5.0, 4.0])
    (2.0, 4.0)
    """
    if not scores:
        raise InvalidInput("there is nothing of which a part could go on")
    return sorted(scores)[max(1, len(scores) // reduction) - 1]
