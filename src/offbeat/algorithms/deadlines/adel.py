"""ADEL-FL: jointly planned deadlines and batch sizes, unbiased layer-wise aggregation.

Goren, Lang, Shlezinger, Cohen: *Adaptive Deadline and Batch Layered Synchronized Federated Learning*, 2026,
Algorithm 1.

| paper | here |
|---|---|
| R, T_max | `rounds`, `time_budget` |
| T_t^d, m | `RoundPlan.deadlines`, `RoundPlan.scale`, from Problem 2 (`planner`) |
| S_t^u (B3) | `batches` |
| p_t^l (7) | `missed` |
| eta_t | the experiment's `local.learning_rate` and `schedule` |
| rho_c, rho_s, Gamma | `strong_convexity`, `smoothness`, `heterogeneity` |
| sigma_u^2, G^2, Delta_1 | `gradient_variance`, `gradient_bound`, `initial_distance` |

Before the first round the server solves Problem 2 for the deadlines and m. In round t device u takes a step on
S_t^u = floor(m P_u (T_t - B_u)/T_t) samples and uploads the layers it has completed by T_t - B_u. For every layer

    w^l <- ( mean over the devices that delivered it of w_u^l - p_t^l w^l ) / (1 - p_t^l),  or w^l if none did.    (5)

The authors' public code differs from the paper, and the paper's gaps come from the code (docs/algorithms/deadlines.md).
There ADEL-FL, SALF and Drop-Stragglers all count an undelivered layer as a copy of the old one:

    variant = "code"    w^l <- 1/U [ sum over the devices that delivered it of w_u^l + (U - their number) w^l ]

**Constants.** The paper gives none. Deadlines and m depend only on sigma^2 / G^2 and rho_c. The defaults are rounded
from batches of 32 of MNIST at the initial models of our `mlp` (sigma^2 = 25, G^2 = 1.5) and `cnn-small` (14 and 0.76);
rho_c is 0.1, as if the loss had that much l2 regularisation, and at least `local.weight_decay`. With `warmup_rounds` =
W >= 2 the server measures sigma^2 and G^2: W rounds of mean length at the initial model, whose gradients are applied as
one step; then the remaining time is planned again. With E > 1 only runs with all their steps are measured; momentum and
l2 regularisation count as part of the gradient.

**Departures.** Problem 2 prints p_t^1 < 2; we read 0.2, the pole of the bound. (7) is an upper bound, since (B3) rounds
down: `probabilities = "exact"` uses the rounded batches. With E > 1 local steps, which the paper tries without
explaining, the steps share the time: P_u becomes P_u / E in (B3) and Problem 2, and T_t/m becomes E T_t/m in (7). A
device with fewer than S_t^u samples uses all of them. U counts only the devices that take part. `rounds = "auto"` also
minimises the bound (10) over R, the paper's future work.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
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
from offbeat.core.errors import Diverged, InvalidInput
from offbeat.core.messages import Action
from offbeat.core.orders import Update
from offbeat.core.parameters import Vector
from offbeat.core.policy import View

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass
class RoundPlan(DeadlineState):
    """The plan of deadlines and batch scale, and the progress of the run."""

    scale: float = 1.0
    """m, the batch scale of the plan."""
    warm: list[Update] = field(default_factory=list)
    """Updates of the warm-up rounds, until they are applied together."""


@dataclass(frozen=True, kw_only=True)
class GradientEstimate:
    """sigma^2 and G^2 measured at one model; the theory (A2, A3) bounds them over all models."""

    gradient_variance: float
    """sigma^2, the mean over devices of batch size x the unbiased variance of a batch gradient."""
    gradient_bound: float
    """G^2, the mean squared norm of a batch gradient."""


MOST_MEASURED = 1e30
"""Larger measurements cannot come from training, and no plan can be made from them."""


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
    """Jointly optimised deadlines and batch sizes, unbiased partial backward passes (Goren et al. 2026).

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
    """The published rule (5), or the authors' code, where an undelivered layer counts as a copy of the old one."""
    rounds: Annotated[int, Field(ge=1)] | Literal["auto"] = 100
    """R, or "auto" for the number that minimises the bound."""
    strong_convexity: NotNegative = 0.1
    """rho_c; local.weight_decay is used if larger. Its product with the learning rate must be below 1."""
    smoothness: NotNegative = 1.0
    """rho_s; only affects the number of rounds if that is "auto"."""
    heterogeneity: NotNegative = 0.0
    """Gamma (6), the distance between the devices' optima; only affects the number of rounds if that is "auto"."""
    gradient_variance: Positive = 20.0
    """sigma^2, the variance of the gradient of one sample, on all devices."""
    gradient_bound: Positive = 1.0
    """G^2, the squared norm of the gradient of a batch."""
    initial_distance: Positive = 1000.0
    """Delta_1, the squared distance of the initial model from the optimum; only used if rounds is "auto". The bound is
    loose: if Delta_1 is below its noise term, a single round is optimal."""
    warmup_rounds: Annotated[int, Field(ge=0)] = 0
    """Rounds that measure gradient_variance and gradient_bound; 0 uses the settings."""
    probabilities: Literal["published", "exact"] = "published"
    """p in (5): the bound (7), or computed from the rounded batch sizes."""

    about = replace(
        FAMILY,
        name="adel",
        paper="Goren et al., 2026",
        provenance="published",
        search=SearchSpace(FAMILY.search, gradient_variance=Range(2.0, 200.0, log=True)),
        local_differences=lambda policy, local: [*FAMILY.local_differences(policy, local), "batch sizes by speed"],
    )

    @property
    def measures_gradients(self) -> bool:
        return bool(self.warmup_rounds)

    @model_validator(mode="after")
    def _two_gradients_at_least(self) -> "Adel":
        if self.warmup_rounds == 1 or (self.rounds != "auto" and self.warmup_rounds >= self.rounds):
            raise ValueError(f"warmup_rounds = {self.warmup_rounds}: must be 0, or from 2 to rounds - 1")
        return self

    def check(self, devices: int) -> None:
        if devices < 2:
            raise InvalidInput(f"data.devices = {devices}: algorithm 'adel' needs at least 2")

    def init(self, view: View) -> RoundPlan:
        solution = self.solution(view)
        if not self.warmup_rounds:
            return RoundPlan(deadlines=solution.deadlines.tolist(), scale=solution.scale)
        rounds = len(solution.deadlines)
        if rounds <= self.warmup_rounds:
            raise InvalidInput(
                f"algorithm.warmup_rounds = {self.warmup_rounds}: must be below the planned number of rounds, {rounds}"
            )
        return RoundPlan(deadlines=[self.seconds(view) / rounds] * rounds, scale=solution.scale)

    def solution(
        self, view: View, measured: GradientEstimate | None = None, done: int = 0, rounds: int = 0
    ) -> Solution:
        """Solve Problem 2 for the time that remains after `done` of `rounds` equal rounds."""
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
                f"local.schedule_over = {view.local.schedule_over!r}: the algorithm plans its rounds in advance, "
                'which needs "versions"'
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
        """p_t^l of the current round."""
        deadline = state.deadlines[state.number]
        if self.probabilities == "exact":
            rates = self.rates(deadline, state, view)[state.ordered]
        else:
            rates = np.full(len(state.ordered), self.local_steps * deadline / state.scale)
        return miss_probabilities(rates, view.layout.trained_layers)

    def aggregate(self, updates: Sequence[Update], state: RoundPlan, view: View) -> Vector:
        rounds = self.warmup_rounds if state.number < self.warmup_rounds else 1  # the warm-up counts as one round
        if self.variant == "code":
            return with_absent_as_old(updates, rounds * len(state.ordered), view)
        return bias_corrected(updates, self.missed(state, view) ** rounds, view)

    # Warm-up ------------------------------------------------------------------------------------------------------

    def end(self, state: RoundPlan, view: View) -> Iterator[Action]:
        """Keep the updates of the warm-up; at its end aggregate them as one round and plan the remaining rounds."""
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
        """sigma^2 and G^2 as sums over layers, each from the devices that delivered it; None if there are too few."""
        variance = bound = 0.0
        sizes = self.batches(state.deadlines[0], state, view)  # equal rounds, so equal batches
        batches = {update.device: self.local_steps * int(sizes[update.device]) for update in updates}
        whole = self.local_steps * view.layout.trained_layers
        if self.local_steps > 1:  # a mean over fewer steps would be scaled wrongly
            updates = [update for update in updates if update.progress.slices == whole]
        for layer in range(view.layout.trained_layers):
            mask = view.layout.mask([layer]).chosen
            gradients: dict[int, list[Vector]] = {}
            for update in updates:
                if update.mask is None or update.mask.chosen[mask].all():
                    rate = self.local_steps * view.local.rate(update.base)
                    with np.errstate(over="ignore"):  # becomes infinity, which is refused below
                        gradient = update.delta[mask] / np.float32(-rate)
                    gradients.setdefault(update.device, []).append(gradient)
            with np.errstate(over="ignore", invalid="ignore"):
                found = estimate(gradients, batches)
            if found is not None:
                variance += found.gradient_variance
                bound += found.gradient_bound
        if not (isfinite(variance) and isfinite(bound)) or max(variance, bound) > MOST_MEASURED:
            raise Diverged(
                f"the gradients of the warm-up have variance {variance:.3g} and squared norm {bound:.3g}: an update "
                "is far too large, or the learning rate too high"
            )
        return GradientEstimate(gradient_variance=variance, gradient_bound=bound) if variance and bound else None
