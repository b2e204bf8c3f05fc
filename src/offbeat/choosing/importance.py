"""How much each setting of a search mattered."""

from collections.abc import Sequence

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, create_trial

LEAST_TRIALS = 8
"""After fewer trials nothing is said on what mattered."""
BEST = 0.25
"""What mattered is how the settings of this share of the trials differ from those of all."""


def importance_of(trials: Sequence[FrozenTrial]) -> dict[str, float]:
    """How much each setting mattered, as shares of 1, the most important first (PED-ANOVA, which goes by ranks).

    All trials count, also those that were stopped early: one that came further is better than one that did not, and of
    those that came equally far the one with the lower score is. Nothing is said after too few trials.
    """
    ended = sorted((each for each in trials if each.intermediate_values), key=_order)
    if len(ended) < LEAST_TRIALS:
        return {}
    study = optuna.create_study(direction="minimize")
    for rank, each in enumerate(ended):
        study.add_trial(create_trial(params=each.params, distributions=each.distributions, value=float(rank)))
    found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(target_quantile=BEST))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _order(trial: FrozenTrial) -> tuple[int, float]:
    step = max(trial.intermediate_values)
    return -step, trial.intermediate_values[step]
