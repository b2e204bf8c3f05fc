"""Accounting of differential privacy: epsilon from the noise multiplier z and the number of participations.

Adjacency is zero-out (Kairouz et al., *Practical and Private (Deep) Learning without Sampling or Shuffling*, ICML
2021): two runs are neighbours if all contributions of one device are replaced by zeros while everything else, including
when and how often it reports, stays the same. One participation changes what is released by at most 1/z standard
deviations of its noise, under every mechanism of `trust.noise`. After p participations of one device

    zcdp    rho = p / (2 z^2),  epsilon = rho + 2 sqrt(rho ln(1/delta))              (Bun and Steinke, TCC 2016)
    exact   delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu),  mu = sqrt(p) / z
                                                                      (Balle and Wang, ICML 2018, Theorem 8)

Both hold for adaptive releases, and for a number of participations that is bounded by p but not known in advance
(Feldman and Zrnic, NeurIPS 2021; Koskela, Tobaben and Honkela, ICLR 2023). Nothing is gained from sampling: devices
that happen to be fast, or cohorts of fixed size, are no Poisson samples.
"""

from math import erfc, exp, inf, log, sqrt
from typing import Literal

Accountant = Literal["zcdp", "exact"]
"""How epsilon is computed from participations."""


def rho_of(participations: int, noise_multiplier: float) -> float:
    """The zero-concentrated privacy loss p / (2 z^2).

    >>> rho_of(4, 2.0)
    0.5
    """
    return participations / (2.0 * noise_multiplier**2)


def epsilon_of(participations: int, noise_multiplier: float, delta: float, accountant: Accountant = "zcdp") -> float:
    """Epsilon at this delta after this number of participations of one device; infinite without noise.

    >>> round(epsilon_of(4, 2.0, 1e-5), 3), round(epsilon_of(4, 2.0, 1e-5, "exact"), 3)
    (5.299, 4.377)
    """
    if not participations:
        return 0.0
    if not noise_multiplier:
        return inf
    if accountant == "exact":
        return gaussian_epsilon(sqrt(participations) / noise_multiplier, delta)
    rho = rho_of(participations, noise_multiplier)
    return rho + 2.0 * sqrt(rho * log(1.0 / delta))


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The smallest delta of a Gaussian mechanism whose output moves by mu standard deviations."""
    return _phi(mu / 2 - epsilon / mu) - exp(epsilon) * _phi(-mu / 2 - epsilon / mu)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon of a Gaussian mechanism whose output moves by mu standard deviations, by bisection.

    The upper end of the last interval is returned, so that it is never below the true value.
    """
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    rho = mu**2 / 2
    low, high = 0.0, rho + 2.0 * sqrt(rho * log(1.0 / delta))
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta_exceeds(middle, mu, delta) else (low, middle)
    return high


def _delta_exceeds(epsilon: float, mu: float, delta: float) -> bool:
    # Phi(-x) underflows long before e^epsilon overflows, unless epsilon is far beyond any use.
    return epsilon < 700 and gaussian_delta(epsilon, mu) > delta


def _phi(x: float) -> float:
    return erfc(-x / sqrt(2.0)) / 2
