"""The weight of an upload in FedASMU and FedSSMU, and the adaptation of its control parameters: Eq. (2) to (5).

An upload from device i with base o at version t has staleness s = t - o + 1 and the weight

    xi    = lambda / (sqrt(t) s^sigma) + iota
    alpha = mu xi / (1 + mu xi)                                                   (2)

The control parameters lambda, sigma and iota belong to the device. Before each use they take one gradient step on the
effect that the aggregation which *made* w_o had on the device's loss. Primed values belong to that aggregation,
w_o = w_{o-1} + alpha' u, also lambda' and sigma' if another device's upload made it:

    g     = (w_o - w_i) / (eta_i steps)
    theta <- theta - eta_theta <g, u> mu / (1 + mu xi')^2 d xi' / d theta         (3)
    d xi' / d lambda = 1 / (sqrt(t') s'^sigma')                                   (4)
    d xi' / d sigma  = -lambda' ln(s') / (sqrt(t') s'^sigma'), d xi' / d iota = 1 (5)

eta_i is the learning rate of the order. Devices that take other steps (polyak, Adam) scale g, and with it eta_theta.

**Corrections.** The paper prints g with the opposite sign, which would climb the loss, and ln(sigma) for lambda ln(s')
in (5); `printed` keeps that form, with epochs for steps. sqrt(t) is sqrt(max(t, 1)). lambda and iota stay at or above
0, sigma within 0..10, and a step that is not finite is skipped. Version 0 was made by no aggregation: no step.
"""

from dataclasses import dataclass
from math import isfinite, log, nan, sqrt

from offbeat.algorithms.fedasmu.device import MOST
from offbeat.core.orders import Update
from offbeat.core.parameters import Vector, dot

Control = tuple[float, float, float]
"""The control parameters lambda, sigma and iota."""
SIGMA_MOST = 10.0


@dataclass
class Aggregation:
    """How a version was made: the primed values of Eq. (3)."""

    movement: Vector
    """u, from the previous version to the local model."""
    control: Control
    """lambda', sigma' and iota' of the device whose upload made the version."""
    xi: float
    turn: int
    """The version t at which it was made; in FedSSMU the round r."""
    staleness: int


def upload_weight(control: Control, turn: int, staleness: int, mu: float) -> tuple[float, float]:
    """xi and alpha, Eq. (2); `turn` is t, or r in FedSSMU.

    >>> upload_weight((2.0, 0.5, 0.5), turn=4, staleness=4, mu=1.0)  # 2 / (2 * 2) + 1/2 = 1;  1 / (1 + 1)
    (1.0, 0.5)
    """
    lambda_, sigma, iota = control
    xi = lambda_ / (sqrt(max(turn, 1)) * staleness**sigma) + iota
    return xi, mu * xi / (1 + mu * xi)


def control_slopes(update: Update, made: Aggregation, rate: float, mu: float, *, printed: bool = False) -> Control:
    """The derivatives of the device's loss at its base by lambda, sigma and iota: Eq. (4) and (5).

    `rate` is eta_i, the mean learning rate over the steps of the device's order. A schedule over time or steps changes
    it after the base was made.

    All other values are those of the aggregation that made the base. Mixing its xi' with the uploading device's own
    lambda and sigma would not be the gradient of anything.

    g is the movement over eta_i times steps, the mean gradient of plain SGD. With momentum b it is up to 1 / (1 - b)
    times as long. Weight decay, the proximal term and a merged fresh model are part of the movement, and so of g.
    """
    lambda_, sigma, _ = made.control
    decay = 1 / (sqrt(max(made.turn, 1)) * made.staleness**sigma)
    along = dot(update.delta, made.movement) / rate if rate else nan
    if printed:
        by_alpha = along / update.progress.slices if update.progress.slices else nan
        by_sigma = -log(sigma) * decay if sigma else nan
    else:
        by_alpha = -along / update.progress.steps if update.progress.steps else nan
        by_sigma = -lambda_ * log(made.staleness) * decay
    by_xi = by_alpha * mu / (1 + mu * made.xi) ** 2
    return by_xi * decay, by_xi * by_sigma, by_xi


def stepped_control(control: Control, rates: Control, slopes: Control) -> Control | None:
    """The control parameters after the step of Eq. (3), within their bounds; None if the step is not finite."""
    lambda_, sigma, iota = (value - rate * slope for value, rate, slope in zip(control, rates, slopes, strict=True))
    if not (isfinite(lambda_) and isfinite(sigma) and isfinite(iota)):
        return None
    return min(max(lambda_, 0.0), MOST), min(max(sigma, 0.0), SIGMA_MOST), min(max(iota, 0.0), MOST)
