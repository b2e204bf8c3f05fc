"""ADEL-FL's Problem 2: the bound on the distance to the optimum as a function of deadlines T_t and batch scale m.

| paper | here |
|---|---|
| U, L, R | `devices`, `layers`, `rounds` |
| P_u, B_u | `speeds`, `communication` |
| eta_t | `rates` |
| T_max | `budget` |
| rho_c, rho_s, Gamma, sigma_u^2, G^2, Delta_1 | `ProblemConstants` |

    bound = Delta_1 prod_t (1 - eta_t rho_c)  +  sum_t a_t h(T_t, m)             (10)
    a_t   = eta_t^2 prod_{tau > t} (1 - eta_tau rho_c)
    h     = B + C                                                                (11)
    B     = 1/U^2 sum_u sigma_u^2 / (m P_u (T - B_u)/T - 1)  +  6 rho_s Gamma
    C     = 4 G^2 U/(U-1) sum_l (1 + q_l) / (1 - 5 q_l),     q_l = Q(L + 1 - l, T/m)^U

**For fixed m, h is convex and decreasing in T** wherever q_1 < 0.2 and every m P_u (T - B_u)/T > 1. B: 1/(y - 1) is
convex and falls, and y is concave and grows. C: (1+q)/(1-5q) is convex and grows, so q must be convex. With g the
density of the Gamma distribution of shape s and P = 1 - Q, q'' >= 0 if (U-1) g/Q >= (s-1)/x - 1. From the series of P,
g >= P s/x (1 - x/(s+1)), which makes (U-1) P/Q >= 1 enough; and q < 0.2 means P/Q > 5^(1/U) - 1, which is at least
1/(U-1) for all U >= 2. So the deadlines for a given m are the solution of a separable convex problem.

**Feasible** means q_1 < 0.2, that is T/m > x* with Q(L, x*)^U = 0.2, and T > B_u m P_u / (m P_u - 1) for all u. The
first bound grows with m, the second falls; they meet at the shortest possible round, max_u (x*/P_u + B_u).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from offbeat.algorithms.deadlines.planner.depth import Floats

MOST_MISSED = 0.2
"""Upper bound of p_t^1, the pole of (1 + q)/(1 - 5 q); the paper's Problem 2 prints 2."""


@dataclass(frozen=True, kw_only=True)
class ProblemConstants:
    """The bound's assumptions about the loss (A1 to A3). Deadlines depend only on sigma^2 / G^2 and rho_c."""

    strong_convexity: float
    """rho_c, the strong convexity of the loss."""
    smoothness: float
    """rho_s, the smoothness of the loss."""
    heterogeneity: float
    """Gamma, the gap (6) between the optimum of the mean loss and the mean of the devices' optima."""
    gradient_variance: float
    """sigma_u^2: the variance of a batch gradient is at most sigma_u^2 / S."""
    gradient_bound: float
    """G^2, a bound on the mean squared norm of a batch gradient."""
    initial_distance: float
    """Delta_1, the squared distance of the initial model from the optimum. Only affects the number of rounds."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Problem 2 of ADEL-FL: devices, rounds, budget and constants, and the bound as a function of T_t and m."""

    speeds: Floats
    communication: Floats
    layers: int
    rates: Floats
    budget: float
    constants: ProblemConstants

    @property
    def devices(self) -> int:
        """U, the number of devices."""
        return len(self.speeds)

    @property
    def rounds(self) -> int:
        """R, the number of rounds."""
        return len(self.rates)

    @cached_property
    def weights(self) -> Floats:
        """a_t. Kept above 1e-250 of the largest, so that their logarithms exist."""
        shrink = 1.0 - self.rates * self.constants.strong_convexity
        later = np.append(np.cumprod(shrink[:0:-1])[::-1], 1.0)
        weights = self.rates**2 * later
        floored: Floats = np.maximum(weights, 1e-250 * weights.max())
        return floored

    @cached_property
    def contraction(self) -> float:
        """prod_t (1 - eta_t rho_c)."""
        return float(np.prod(1.0 - self.rates * self.constants.strong_convexity))

    # Feasibility --------------------------------------------------------------------------------------------------

    @cached_property
    def least_ratio(self) -> float:
        """x*, the lower bound of T/m: at or below it layer 1 is missed with probability 0.2 or more."""
        return float(scipy.special.gammainccinv(self.layers, MOST_MISSED ** (1.0 / self.devices)))

    @cached_property
    def shortest_round(self) -> float:
        """max_u (x*/P_u + B_u), the lower bound of every round's length for any m."""
        return float(np.max(self.least_ratio / self.speeds + self.communication))

    @property
    def least_budget(self) -> float:
        """The lower bound of T_max."""
        return self.rounds * self.shortest_round

    def shortest_deadline(self, scale: float) -> float:
        """The lower bound of a deadline for this m."""
        work = scale * self.speeds
        return max(scale * self.least_ratio, float(np.max(self.communication * work / (work - 1.0))))

    @cached_property
    def scales(self) -> tuple[float, float]:
        """The open interval of m for which R rounds fit into the budget."""
        mean = self.budget / self.rounds
        least = float(np.max(mean / (self.speeds * (mean - self.communication))))
        return least, mean / self.least_ratio

    # The bound and its derivatives --------------------------------------------------------------------------------

    def bound(self, deadlines: Floats, scale: float) -> float:
        """The right side of (10)."""
        return self.contraction * self.constants.initial_distance + self.cost(deadlines, scale)

    def cost(self, deadlines: Floats, scale: float) -> float:
        """The part of (10) that depends on deadlines and m: sum_t a_t h(T_t, m)."""
        return float(self.weights @ self.terms(deadlines, scale)[0])

    def terms(self, deadlines: Floats, scale: float) -> tuple[Floats, Floats, Floats, Floats]:
        """h, dh/dT, d2h/dT2 and dh/dm at each deadline."""
        constants, devices = self.constants, self.devices
        noise = self._noise(deadlines, scale)
        depth = self._truncation(deadlines / scale)
        factor = 4.0 * constants.gradient_bound * devices / (devices - 1.0)
        x = deadlines / scale
        return (
            noise[0] + 6.0 * constants.smoothness * constants.heterogeneity + factor * depth[0],
            noise[1] + factor * depth[1] / scale,
            noise[2] + factor * depth[2] / scale**2,
            noise[3] - factor * depth[1] * x / scale,
        )

    def _noise(self, deadlines: Floats, scale: float) -> tuple[Floats, Floats, Floats, Floats]:
        """1/U^2 sum_u sigma^2 / y, y = m P_u (1 - B_u/T) - 1, and its derivatives."""
        T, work = deadlines[:, None], scale * self.speeds[None, :]
        share = self.constants.gradient_variance / self.devices**2
        slope = work * self.communication / T**2
        inverse = 1.0 / (work - slope * T - 1.0)
        squared = inverse**2
        return (
            share * inverse.sum(axis=1),
            -share * (slope * squared).sum(axis=1),
            share * (2.0 * squared * slope * (slope * inverse + 1.0 / T)).sum(axis=1),
            -share * (squared * (1.0 / inverse + 1.0)).sum(axis=1) / scale,
        )

    def _truncation(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        """sum_l f(q_l), f(q) = (1 + q)/(1 - 5 q), and its first two derivatives in x = T/m.

        With s = L + 1 - l: Q(s, x) is the sum of the Poisson probabilities of 0 to s - 1, and -dQ/dx = g the last of
        them. With the hazard r = g/Q: q' = -U r q, r' = r ((s-1)/x - 1 + r), q'' = (U^2 r^2 - U r') q.
        """
        done = np.arange(float(self.layers))  # s - 1
        density = np.exp(done * np.log(x)[:, None] - x[:, None] - scipy.special.gammaln(done + 1.0))
        tail = np.minimum(np.cumsum(density, axis=1), 1.0)
        q = tail**self.devices
        hazard = np.divide(density, tail, out=np.zeros_like(tail), where=tail > 0)
        U = self.devices
        first = -U * hazard * q
        second = (U**2 * hazard**2 - U * hazard * (done / x[:, None] - 1.0 + hazard)) * q
        gap = 1.0 - 5.0 * q
        return (
            ((1.0 + q) / gap).sum(axis=1),
            (6.0 / gap**2 * first).sum(axis=1),
            (60.0 / gap**3 * first**2 + 6.0 / gap**2 * second).sum(axis=1),
        )
