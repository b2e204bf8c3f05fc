"""Successive halving over virtual time: all begin, and at each of some times only the best part goes on."""

from collections.abc import Sequence

import optuna

from offbeat.core.errors import InvalidInput

REDUCTION = 3
"""One of so many goes on."""
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


class Halving(optuna.pruners.BasePruner):
    """Lets a trial go on if it is in the best part of all that have come to its step.

    Unlike Optuna's own it keeps nothing beside the reported values: a study that was killed while it decided decides
    the same when it is resumed.
    """

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        """Whether the trial ends here."""
        step = trial.last_step
        if step is None:
            return False
        others = study.get_trials(deepcopy=False)
        scores = [each.intermediate_values[step] for each in others if step in each.intermediate_values]
        return trial.intermediate_values[step] > best_part(scores)
