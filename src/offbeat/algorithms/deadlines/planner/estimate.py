"""Estimating sigma^2 and G^2 of ADEL-FL's bound from a few gradients of each device at one and the same model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Gradient = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class GradientEstimate:
    """A2 and A3 as they look at one model; both are bounds over all models in the theory."""

    gradient_variance: float
    """sigma^2, the mean over devices of batch size x the unbiased variance of a batch gradient."""
    gradient_bound: float
    """G^2, the mean squared norm of a batch gradient."""


def estimate(gradients: Mapping[int, Sequence[Gradient]], batches: Mapping[int, int]) -> GradientEstimate | None:
    """Estimate from at least two batch gradients of some device; None if no device gave two or none had any length.

    With W gradients g_i of a device on batches of S samples: sigma^2 = S / (W - 1) sum_i ||g_i - mean g||^2.
    """
    variances, lengths = [], []
    for device, own in gradients.items():
        stacked = np.stack(own).astype(np.float64)
        lengths.extend((stacked**2).sum(axis=1).tolist())
        if len(own) > 1:
            spread = float(((stacked - stacked.mean(axis=0)) ** 2).sum())
            variances.append(batches[device] * spread / (len(own) - 1))
    if not variances or not any(variances) or not any(lengths):
        return None
    return GradientEstimate(gradient_variance=float(np.mean(variances)), gradient_bound=float(np.mean(lengths)))
