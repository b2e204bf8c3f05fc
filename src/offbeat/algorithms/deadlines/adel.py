"""ADEL-FL: deadlines and batch sizes planned together, layer-wise aggregation without bias.

Goren, Lang, Shlezinger, Cohen: *Adaptive Deadline and Batch Layered Synchronized Federated Learning*, 2026,
Algorithm 1.

| paper | here |
|---|---|
| R, T_max | `rounds`, `time_budget` |
| T_t^d, m | `Plan.deadlines`, `Plan.scale`, from Problem 2 (`planner`) |
| S_t^u (B3) | `batches` |
| p_t^l (7) | `missed` |
| eta_t | the experiment's `local.learning_rate` and `schedule` |
| rho_c, rho_s, Gamma | `strong_convexity`, `smoothness`, `heterogeneity` |
| sigma_u^2, G^2, Delta_1 | `gradient_variance`, `gradient_bound`, `initial_distance` |

Before the first round the server solves Problem 2 for the deadlines and m. In round t device u takes a step on
S_t^u = floor(m P_u (T_t - B_u)/T_t) samples and delivers the layers that it has done by T_t - B_u, and for every layer

    w^l <- ( mean over those that delivered it of w_u^l - p_t^l w^l ) / (1 - p_t^l),    or w^l if nobody did.    (5)

The authors' public code differs from the paper, and it is the code that gives the paper's gaps (docs/algorithms/
deadlines.md). In it ADEL-FL, SALF and Drop-Stragglers all count an undelivered layer as a copy of the old one:

    variant = "code"    w^l <- 1/U [ sum over those that delivered it of w_u^l + (U - their number) w^l ]

**Constants.** The paper gives none. Deadlines and m depend on sigma^2 / G^2 and rho_c only. The defaults are round
figures from batches of 32 of MNIST at the first models of our `mlp` (sigma^2 = 25, G^2 = 1.5) and `cnn-small` (14 and
0.76); rho_c is 0.1, as if the loss had that much l2 regularisation, and at least `local.weight_decay`. With
`warmup_rounds` = W >= 2 the server measures sigma^2 and G^2 itself: W rounds of mean length at the first model, whose
gradients are then applied as one step, after which the remaining time is planned anew. With E > 1 only runs that took
all their steps are measured; momentum and l2 regularisation count as part of the gradient.

**Departures.** Problem 2 prints p_t^1 < 2; we read 0.2, where the bound has its pole. (7) is an upper bound, since (B3)
rounds down: `probabilities = "exact"` uses the batches as they are. With E > 1 local steps, which the paper only tries
out, the steps share the time: P_u becomes P_u / E in (B3) and in Problem 2, and in (7) T_t/m becomes E T_t/m. A device
with fewer than S_t^u samples takes all that it has. Devices that are away take no part, and U is the number of those
that do. `rounds = "auto"` minimises the bound (10) over R as well, which the paper names as future work.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from offbeat.algorithms.about import Range, SearchSpace
from offbeat.algorithms.deadlines.planner import (
    Problem,
    ProblemConstants,
    Solution,
    miss_probabilities,
    solve,
    solve_rounds,
)
from offbeat.algorithms.deadlines.planner.depth import Floats, Integers
from offbeat.algorithms.deadlines.rounds import (
    FAMILY,
    DeadlineRounds,
    DeadlineState,
    bias_corrected,
    speed_batches,
    with_absent_as_old,
)
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Action
from offbeat.core.orders import Update
from offbeat.core.parameters import Vector
from offbeat.core.policy import View

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass
class RoundPlan(DeadlineState):
    """The plan of ADEL-FL's rounds, and how far the run has come in it."""

    scale: float = 1.0
    """m, the batch scale of the plan."""
    warm: list[Update] = field(default_factory=list)
    """Deliveries of warm-up rounds, until they are applied together."""


@dataclass(frozen=True, kw_only=True)
class GradientEstimate:
    """sigma^2 and G^2 measured at one model; the theory (A2, A3) bounds them over all models."""

    gradient_variance: float
    """sigma^2, the mean over devices of batch size x the unbiased variance of a batch gradient."""
    gradient_bound: float
    """G^2, the mean squared norm of a batch gradient."""


def estimate(gradients: Mapping[int, Sequence[Vector]], batches: Mapping[int, int]) -> GradientEstimate | None:
    """Estimate both from gradients at one model; None unless a device gave at least two, and they differ.

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


class Adel(DeadlineRounds):
    """Deadlines and batch sizes from one optimisation, partial backward passes without bias (Goren et al. 2026).

    >>> from offbeat.testing import ScriptedSession
    >>> from offbeat.core.parameters import Layout
    >>> layers = Layout.of([("a.weight", (1,), True), ("b.weight", (1,), True)])
    >>> session = ScriptedSession(Adel(rounds=3), layout=layers, devices=2, speeds=[8.0, 8.0], horizon=9.0)
    >>> [round(seconds, 2) for seconds in session.state.deadlines]  # a constant learning rate: equal rounds
    [3.0, 3.0, 3.0]
    >>> {order.order.batch_size for order in session.first.orders} == {int(session.state.scale * 8.0)}  # (B3), B_u = 0
    True
    """

    State = RoundPlan

    variant: Literal["paper", "code"] = "paper"
    """The published rule (5), or that of the authors' code, where devices that did not deliver a layer count as its old
    value."""
    rounds: Annotated[int, Field(ge=1)] | Literal["auto"] = 100
    """R, or "auto" for the number that minimises the bound."""
    strong_convexity: NotNegative = 0.1
    """rho_c; at least local.weight_decay is used. Times the learning rate it must be less than 1."""
    smoothness: NotNegative = 1.0
    """rho_s; multiplies Gamma and changes nothing but the number of rounds, if that is "auto"."""
    heterogeneity: NotNegative = 0.0
    """Gamma, how far the devices' optima are apart (6); see smoothness."""
    gradient_variance: Positive = 20.0
    """sigma^2, of the gradient of one sample; the same for all devices."""
    gradient_bound: Positive = 1.0
    """G^2, of the gradient of a batch."""
    initial_distance: Positive = 1000.0
    """Delta_1, squared distance from the first model to the optimum; matters only if rounds is "auto". The bound is
    loose: with a Delta_1 below its noise it prefers a single round."""
    warmup_rounds: Annotated[int, Field(ge=0)] = 0
    """Rounds for measuring gradient_variance and gradient_bound; 0: take them as they are set."""
    probabilities: Literal["published", "exact"] = "published"
    """p in (5): the bound (7), or with the batch sizes as they came out."""

    about = replace(
        FAMILY,
        name="adel",
        paper="Goren et al., 2026",
        provenance="published",
        search=SearchSpace(FAMILY.search, gradient_variance=Range(2.0, 200.0, log=True)),
        local_differences=lambda policy, local: [*FAMILY.local_differences(policy, local), "batch sizes by speed"],
    )

    @model_validator(mode="after")
    def _two_gradients_at_least(self) -> "Adel":
        if self.warmup_rounds == 1 or (self.rounds != "auto" and self.warmup_rounds >= self.rounds):
            raise ValueError(f"warmup_rounds = {self.warmup_rounds}: must be 0, or from 2 to rounds - 1")
        return self

    def check(self, devices: int) -> None:
        if devices < 2:
            raise InvalidInput("algorithm.name = 'adel': it needs at least 2 devices")

    def init(self, view: View) -> RoundPlan:
        solution = self.solution(view)
        if not self.warmup_rounds:
            return RoundPlan(deadlines=solution.deadlines.tolist(), scale=solution.scale)
        rounds = len(solution.deadlines)
        if rounds <= self.warmup_rounds:
            raise InvalidInput(
                f"algorithm.warmup_rounds = {self.warmup_rounds}: the automatic number of rounds is only {rounds}"
            )
        return RoundPlan(deadlines=[self.seconds(view) / rounds] * rounds, scale=solution.scale)

    def solution(
        self, view: View, measured: GradientEstimate | None = None, done: int = 0, rounds: int = 0
    ) -> Solution:
        """Problem 2 for what remains of the time after `done` of `rounds` equal rounds (none: from the start)."""
        forecast, seconds = self.forecast(view), self.seconds(view)
        constants = ProblemConstants(
            strong_convexity=max(self.strong_convexity, view.local.weight_decay),
            smoothness=self.smoothness,
            heterogeneity=self.heterogeneity,
            gradient_variance=self.gradient_variance if measured is None else measured.gradient_variance,
            gradient_bound=self.gradient_bound if measured is None else measured.gradient_bound,
            initial_distance=self.initial_distance,
        )

        if view.local.schedule_over != "versions":
            raise InvalidInput(
                f"local.schedule_over = {view.local.schedule_over!r}: this algorithm plans its rounds ahead, "
                'and can do so only with learning rates over "versions".'
            )

        def problem_of(remaining: int) -> Problem:
            return Problem(
                speeds=forecast.speeds / self.local_steps,
                communication=forecast.communication,
                layers=view.layout.trained_layers,
                rates=np.array([view.local.rate(version) for version in range(done, done + remaining)]),
                budget=seconds * (1.0 - done / rounds) if done else seconds,
                constants=constants,
            )

        if done:
            return solve(problem_of(rounds - done))
        return solve_rounds(problem_of) if self.rounds == "auto" else solve(problem_of(self.rounds))

    def batches(self, deadline: float, state: RoundPlan, view: View) -> Integers:
        return speed_batches(state.scale, deadline, self.local_steps, self.forecast(view), view)

    def missed(self, state: RoundPlan, view: View) -> Floats:
        """p_t^l of the running round."""
        deadline = state.deadlines[state.number]
        if self.probabilities == "exact":
            rates = self.rates(deadline, state, view)[state.ordered]
        else:
            rates = np.full(len(state.ordered), self.local_steps * deadline / state.scale)
        return miss_probabilities(rates, view.layout.trained_layers)

    def aggregate(self, updates: Sequence[Update], state: RoundPlan, view: View) -> Vector:
        rounds = self.warmup_rounds if state.number < self.warmup_rounds else 1  # the last of them speaks for all
        if self.variant == "code":
            return with_absent_as_old(updates, rounds * len(state.ordered), view)
        return bias_corrected(updates, self.missed(state, view) ** rounds, view)

    # Warm-up ------------------------------------------------------------------------------------------------------

    def end(self, state: RoundPlan, view: View) -> Iterator[Action]:
        """Deliveries of the warm-up are kept; at its end they count as those of one round, and the rest is planned."""
        last = state.number == self.warmup_rounds - 1
        if state.number < self.warmup_rounds:
            state.warm += state.arrived
            state.arrived = state.warm if last else []
        if last:
            state.warm = []
            measured = self.measured(state.arrived, state, view)
            rounds, done = len(state.deadlines), self.warmup_rounds
            solution = self.solution(view, measured, done, rounds)
            yield from super().end(state, view)
            state.deadlines[done:], state.scale = solution.deadlines.tolist(), solution.scale
        else:
            yield from super().end(state, view)

    def measured(self, updates: Sequence[Update], state: RoundPlan, view: View) -> GradientEstimate | None:
        """sigma^2 and G^2 as sums over layers, each from those that delivered it; None if nothing can be said."""
        variance = bound = 0.0
        sizes = self.batches(state.deadlines[0], state, view)  # equal rounds, so equal batches
        batches = {update.device: self.local_steps * int(sizes[update.device]) for update in updates}
        whole = self.local_steps * view.layout.trained_layers
        if self.local_steps > 1:  # a mean over fewer steps than the others have would be scaled wrongly
            updates = [update for update in updates if update.progress.slices == whole]
        for layer in range(view.layout.trained_layers):
            mask = view.layout.mask([layer]).chosen
            gradients: dict[int, list[Vector]] = {}
            for update in updates:
                if update.mask is None or update.mask.chosen[mask].all():
                    rate = self.local_steps * view.local.rate(update.base)
                    gradients.setdefault(update.device, []).append(update.delta[mask] / np.float32(-rate))
            found = estimate(gradients, batches)
            if found is not None:
                variance += found.gradient_variance
                bound += found.gradient_bound
        return GradientEstimate(gradient_variance=variance, gradient_bound=bound) if variance and bound else None
