"""The bounds of Hao et al. 2025 (arXiv 2503.04052) on SFL, AUDG and PSURDG.

They bound E f(mean of w^2 .. w^(T+1)) - f(w*) after T iterations, for losses that are L-smooth and mu-strongly convex.

| paper | here |
|---|---|
| L, mu, G, R, phi (Assumptions 1 to 5) | `Constants` |
| lambda_i, E tau_i, E tau_i^2, E tau_i^3, E abs(I_t) | `Delays` |
| eta, T | `rate`, `iterations` |

Two misprints are corrected. (48) minus (21) has the factor `L - mu` where the paper's Theta prints `L`: the only terms
in delays that remain are eta^2 G^2 (L - mu)/2 sum lambda_i E tau_i, N times in (48) and E|I| times in (21). And the
sentence after Theta has `L - mu` for the `2L - mu` of Theta itself.

(48) uses the delay of (1), which counts a gradient that has not been delivered yet. PSURDG applies the latest
*delivered* gradient: it was `tau` iterations old on arrival and has been reused since. With the Bernoulli model its
age is negative-binomial(2), with mean 2 (1/phi - 1). `Delays` with `reused = True` have the moments of that age, and
`theta` takes them as `ages`; the terms of third order then do not cancel, and its sign can change.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import InvalidInput

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class BoundConstants:
    """The constants that are assumed of the clients' losses f_i."""

    smoothness: float
    """L, the smoothness of Assumption 2."""
    convexity: float
    """mu, the strong convexity of Assumption 3; with 0 the bounds are infinite, but not Theta."""
    gradient: float
    """G, the largest gradient norm (Assumption 5)."""
    radius: float
    """R, the largest distance of an iterate from the optimum (Assumption 4)."""
    heterogeneity: float
    """phi, the largest distance of a client's optimum from the common one (Assumption 1)."""

    def __post_init__(self) -> None:
        if not all(value >= 0 for value in vars(self).values()) or self.convexity > self.smoothness:  # nan is not
            raise InvalidInput(
                f"{self}: no constant may be negative or nan, and the convexity may not exceed the smoothness"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Delays:
    """The clients' weights and the first three moments of their delays, in iterations."""

    weights: Floats
    first: Floats
    second: Floats
    third: Floats
    participants: float
    """E|I_t|, the mean number of clients that deliver in an iteration."""

    def __post_init__(self) -> None:
        if not len(self.weights) == len(self.first) == len(self.second) == len(self.third):
            raise InvalidInput("weights and moments of delays must have one value per client")
        if abs(float(self.weights.sum()) - 1.0) > 1e-6:
            raise InvalidInput(f"weights sum to {self.weights.sum():.6g}: they must sum to 1")

    @property
    def clients(self) -> int:
        """N, the number of clients."""
        return len(self.weights)

    @property
    def absent(self) -> float:
        """N - E|I_t|, the mean number of clients that deliver nothing in an iteration."""
        return self.clients - self.participants

    @property
    def mean(self) -> float:
        """sum_i lambda_i E tau_i."""
        return float(self.weights @ self.first)

    @property
    def cubic(self) -> float:
        """sum_i lambda_i E[tau_i^3 / 3 + 3 tau_i^2 / 2 + 13 tau_i / 6], the drift term of (21) and (48)."""
        return float(self.weights @ (self.third / 3 + 1.5 * self.second + 13 / 6 * self.first))

    @classmethod
    def bernoulli(cls, success: npt.ArrayLike, weights: npt.ArrayLike, *, reused: bool = False) -> "Delays":
        """Delays of clients that deliver in an iteration with a fixed probability; `reused`: ages of applied gradients.

        >>> Delays.bernoulli([0.5], [1.0]).first.tolist(), Delays.bernoulli([0.5], [1.0], reused=True).first.tolist()
        ([1.0], [2.0])
        """
        phi = np.asarray(success, dtype=np.float64)
        first, second, third = bernoulli_moments(phi)
        if reused:  # the delay at delivery and the iterations since then are independent and identically distributed
            first, second, third = 2 * first, 2 * second + 2 * first**2, 2 * third + 6 * first * second
        shares = np.asarray(weights, dtype=np.float64)
        return cls(weights=shares, first=first, second=second, third=third, participants=float(phi.sum()))

    @classmethod
    def of_orders(cls, iterations: npt.ArrayLike, weights: npt.ArrayLike, *, reused: bool = False) -> "Delays":
        """Delays from the number of iterations that the orders of each client take, [clients, orders].

        An order that takes k iterations has the ages 0 to k - 1 while it is in flight; a moment is the mean over
        iterations, so orders count in proportion to their length. A client delivers 1 / (mean of k) times per
        iteration. With `reused` a gradient is k - 1 iterations old when it is delivered, and is applied until the
        client's next delivery, after the iterations of the next order; the first order follows the last.

        >>> Delays.of_orders([[1, 3]], [1.0]).first.tolist()  # ages 0; 0, 1, 2
        [0.75]
        >>> Delays.of_orders([[1, 3]], [1.0], reused=True).first.tolist()  # from 0 for three iterations; from 2 for one
        [1.25]
        """
        taken = np.asarray(iterations, dtype=np.float64)
        total = taken.sum(axis=1)
        start, length = (taken - 1, np.roll(taken, -1, axis=1)) if reused else (np.zeros_like(taken), taken)
        last = length - 1
        ones, twos, threes = last * length / 2, last * length * (2 * last + 1) / 6, (last * length / 2) ** 2
        sums = (  # of (start + j), its square and its cube, for j from 0 to last
            length * start + ones,
            length * start**2 + 2 * start * ones + twos,
            length * start**3 + 3 * start**2 * ones + 3 * start * twos + threes,
        )
        first, second, third = (each.sum(axis=1) / total for each in sums)
        shares = np.asarray(weights, dtype=np.float64)
        participants = float((taken.shape[1] / total).sum())
        return cls(weights=shares, first=first, second=second, third=third, participants=participants)


def bernoulli_moments(success: npt.ArrayLike) -> tuple[Floats, Floats, Floats]:
    """E tau, E tau^2, E tau^3 of the number of failures before a success of probability phi, with q = 1 - phi:

    q / phi,   q (1 + q) / phi^2,   q (1 + 4 q + q^2) / phi^3.

    >>> [float(moment) for moment in bernoulli_moments(0.5)]
    [1.0, 3.0, 13.0]
    """
    phi = np.asarray(success, dtype=np.float64)
    if not ((phi > 0) & (phi <= 1)).all():
        raise InvalidInput(f"success = {phi.tolist()}: probabilities must be above 0 and at most 1")
    q = 1 - phi
    return q / phi, q * (1 + q) / phi**2, q * (1 + 4 * q + q**2) / phi**3


def sfl_bound(constants: BoundConstants, rate: float, iterations: int) -> float:
    """(20): R^2 / (2 eta T) + 2 L / (mu T^2) [L R^2 + (mu + L) phi^2]."""
    L, mu, R2, phi2 = _squares(constants)
    if mu == 0:
        return float("inf")
    return R2 / (2 * rate * iterations) + 2 * L / (mu * iterations**2) * (L * R2 + (mu + L) * phi2)


def audg_bound(constants: BoundConstants, delays: Delays, rate: float, iterations: int) -> float:
    """(21): (20), the degradation (45), and (N - E|I|) (2 L - mu) / 2 phi^2."""
    L, mu, _, phi2 = _squares(constants)
    heterogeneity = delays.absent * (2 * L - mu) / 2 * phi2
    return sfl_bound(constants, rate, iterations) + degradation(constants, delays, rate) + heterogeneity


def degradation(constants: BoundConstants, delays: Delays, rate: float) -> float:
    """The loss of AUDG by delays alone, (45), PDD.

    L R^2 / 2 sum lambda_i E tau_i + 3/2 L R^2 (N - E|I|) + eta^2 G^2 L N / 2 sum lambda_i E[tau^3/3 + 3 tau^2/2 +
    13 tau/6] + eta^2 G^2 (L - mu) / 2 E|I| sum lambda_i E tau_i
    """
    L, mu, R2, _ = _squares(constants)
    step2 = (rate * constants.gradient) ** 2
    return (
        L * R2 / 2 * delays.mean
        + 1.5 * L * R2 * delays.absent
        + step2 * L * delays.clients / 2 * delays.cubic
        + step2 * (L - mu) / 2 * delays.participants * delays.mean
    )


def psurdg_bound(constants: BoundConstants, delays: Delays, rate: float, iterations: int) -> float:
    """(48): (20) + N eta^2 G^2 / 2 sum lambda_i E[(L - mu) tau + L (tau^3/3 + 3 tau^2/2 + 13 tau/6)] +
    L R^2 / 2 sum lambda_i E tau_i."""
    return sfl_bound(constants, rate, iterations) + _reuse(constants, delays, rate)


def _reuse(constants: BoundConstants, delays: Delays, rate: float) -> float:
    """The loss of PSURDG, (48) - (20)."""
    L, mu, R2, _ = _squares(constants)
    step2 = (rate * constants.gradient) ** 2
    drift = delays.clients * step2 / 2 * ((L - mu) * delays.mean + L * delays.cubic)
    return drift + L * R2 / 2 * delays.mean


def theta(constants: BoundConstants, delays: Delays, rate: float, ages: Delays | None = None) -> float:
    """(48) - (21), corrected: PSURDG has the lower bound if it is negative. `ages` replace the delays in (48).

    (N - E|I|) [eta^2 G^2 (L - mu) / 2 sum lambda_i E tau_i - (3/2 L R^2 + (2 L - mu) / 2 phi^2)]
    """
    L, mu, R2, phi2 = _squares(constants)
    if ages is not None:
        heterogeneity = delays.absent * (2 * L - mu) / 2 * phi2
        return _reuse(constants, ages, rate) - degradation(constants, delays, rate) - heterogeneity
    reused = (rate * constants.gradient) ** 2 * (L - mu) / 2 * delays.mean
    return delays.absent * (reused - (1.5 * L * R2 + (2 * L - mu) / 2 * phi2))


def turning_delay(constants: BoundConstants, rate: float) -> float:
    """The mean delay sum lambda_i E tau_i at which Theta changes sign: above it AUDG has the lower bound."""
    L, mu, R2, phi2 = _squares(constants)
    reused = (rate * constants.gradient) ** 2 * (L - mu)
    return (3 * L * R2 + (2 * L - mu) * phi2) / reused if reused else float("inf")


def _squares(constants: BoundConstants) -> tuple[float, float, float, float]:
    """L, mu, R^2, phi^2."""
    return constants.smoothness, constants.convexity, constants.radius**2, constants.heterogeneity**2
