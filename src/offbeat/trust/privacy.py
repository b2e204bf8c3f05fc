"""Differential privacy of FedAvg and FedBuff: the `[privacy]` table and the combiner that adds the noise.

McMahan, Ramage, Talwar, Zhang: *Learning Differentially Private Recurrent Language Models*, ICLR 2018 (DP-FedAvg); the
same rule on a buffer is DP-FedBuff, as in the authors' framework FLSim.

| symbol | here |
|---|---|
| z | `noise_multiplier` |
| C | `clip`, or the clip of the moment |
| m | `most_updates` |
| K | the algorithm's `buffer` or `cohort`: fixed, however many updates arrived |

    w <- w + eta_g / K (sum_k s_k D_k min(1, C / ||D_k||) + sigma n_t),     s_k <= 1

D_k is the movement of update k from its base; one with an element that is not finite counts as zero. s_k is FedBuff's
staleness weight, and 1 in FedAvg: numbers of samples would let one device weigh more than its share of the proof.
`trust.noise` has sigma and n_t, `trust.accounting` the privacy loss. The participation of devices is limited by the
session (`core.participation`).

`clip = "adaptive"` (Andrew, Thakkar, McMahan, Ramaswamy, NeurIPS 2021, Algorithm 1) follows a quantile gamma of the
norms. The number of updates with ||D_k|| <= C gets noise of its own, which is paid for by more noise on the sum:

    b = 1/2 + (sum_k (1[||D_k|| <= C] - 1/2) + N(0, sigma_b^2)) / K,    C <- C exp(-eta_C (b - gamma))
    sigma = (z^-2 - (2 sigma_b)^-2)^(-1/2) C                            both together cost as much as z alone
"""

from dataclasses import dataclass, field
from math import exp, isfinite, sqrt
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from offbeat.algorithms.fedavg import FedAvg
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.core.combining import Combiner, Contributions, Movement
from offbeat.core.errors import InvalidInput
from offbeat.core.orders import LocalWork
from offbeat.core.parameters import BLOCK, blockwise, by_block, distance
from offbeat.core.participation import ParticipationLimits
from offbeat.core.policy import Policy, View
from offbeat.core.settings import Settings
from offbeat.trust.accounting import Accountant, epsilon_of
from offbeat.trust.noise import Block, Mechanism, NoiseState, SeededNoise, Source, SystemNoise, next_noise, sensitivity

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
Level = Literal["device", "example"]
TINY = 1e-20
"""Below this, numbers or their squares may lose digits in float32."""
SUM, COUNT = "privacy", "privacy count"
"""The roles of the noise streams: of the sum, and of the number of updates below the clip."""


_INPUTS = {"level", "noise_multiplier", "clip", "delta", "most_updates", "mechanism", "accountant"}
PROOF = {
    ("gaussian", False): _INPUTS,
    ("gaussian", True): _INPUTS | {"quantile", "first_clip", "clip_rate", "count_noise"},
    ("tree", False): _INPUTS | {"tree"},
    ("banded", False): _INPUTS | {"band"},
}
"""The settings that the claimed epsilon follows from, by mechanism and whether the clip is adaptive."""


class Privacy(Settings):
    """The `[privacy]` table: differential privacy of devices or of their examples, for fedavg and fedbuff."""

    level: Level = "device"
    """What is protected: all data of a device, by a server that is trusted; or each example of a device, which adds
    the noise to its own training and trusts nobody."""
    noise_multiplier: Positive | None = None
    """z, the noise in units of what one device or example can change; without it a run is not private."""
    clip: Positive | Literal["adaptive"] = 1.0
    """C, the largest norm of an update or of an example's gradient. "adaptive": a quantile of the updates' norms."""
    most_updates: Annotated[int, Field(ge=1)] = 1
    """m, the most updates of a device that are used in the run; with level = "example" the most orders it is given."""
    delta: Share = 1e-5
    """delta of the (epsilon, delta) guarantee; well below 1 / (number of devices)."""
    mechanism: Mechanism = "gaussian"
    """Independent noise for every version, or noise that versions share: "tree" or "banded". At the same epsilon shared
    noise adds up to less over many versions, but a device contributes once per tree or band."""
    accountant: Accountant = "zcdp"
    """epsilon by zero-concentrated differential privacy, or the exact (smaller) value of the Gaussian mechanism."""
    tree: Annotated[int, Field(ge=2)] = 16
    """Versions of a tree, a power of two."""
    band: Annotated[int, Field(ge=2)] = 4
    """Versions of a band."""
    quantile: Share = 0.5
    """gamma, the share of norms below an adaptive clip."""
    first_clip: Positive = 0.1
    """An adaptive clip at the start of the run."""
    clip_rate: Positive = 0.2
    """eta_C, the learning rate of an adaptive clip."""
    count_noise: Positive | None = None
    """sigma_b, the noise on the number of norms below an adaptive clip (default: K / 20, but at least 2 z)."""

    @model_validator(mode="after")
    def _check(self) -> "Privacy":
        if self.tree & (self.tree - 1):
            raise InvalidInput(f"privacy.tree = {self.tree}: must be a power of two")
        if self.clip == "adaptive" and self.mechanism != "gaussian":
            raise InvalidInput(
                f'privacy.clip = "adaptive": with privacy.mechanism = "{self.mechanism}" versions share noise and need '
                "one clip, set a number"
            )
        if self.level == "example" and (self.mechanism != "gaussian" or self.clip == "adaptive"):
            setting = 'clip = "adaptive"' if self.clip == "adaptive" else f'mechanism = "{self.mechanism}"'
            raise InvalidInput(f'privacy.{setting}: level = "example" needs a fixed clip and independent noise')
        if self.noise_multiplier is None and (given := sorted(self.model_fields_set - {"noise_multiplier"})):
            raise InvalidInput(f"privacy.{given[0]} has no effect: set privacy.noise_multiplier too")
        return self

    @property
    def on(self) -> bool:
        """Whether the run is private."""
        return self.noise_multiplier is not None

    @property
    def protected(self) -> Level | None:
        """What the run protects; None if it is not private."""
        return self.level if self.on else None

    def resolved(self) -> dict[str, Any]:
        """All settings with their values; empty if the run is not private."""
        return self.model_dump(exclude_none=True) if self.on else {}

    def check(self, policy: Policy, name: str, budget: float | None = None, epochs: int = 1) -> None:
        """Raise InvalidInput if the algorithm has no private form with its settings, or the budget allows no version.

        `budget` is `stop.epsilon`, `epochs` the epochs of an order.
        """
        if not self.on:
            if budget is not None:
                raise InvalidInput(f"stop.epsilon = {budget:g}: the run is not private, set privacy.noise_multiplier")
            return
        divisor_of(policy, name)
        if budget is not None and self.epsilon(1, epochs) > budget:
            raise InvalidInput(
                f"stop.epsilon = {budget:g}: the first version already costs epsilon = {self.epsilon(1, epochs):.3g} "
                f"(privacy.noise_multiplier = {self.noise_multiplier:g}, privacy.delta = {self.delta:g})"
            )

    def epsilon(self, contributions: int, epochs: int = 1) -> float:
        """Epsilon after this many updates of a device or, for its examples, orders of this many epochs."""
        steps = contributions * epochs if self.level == "example" else contributions
        return epsilon_of(steps, self.noise_multiplier or 0.0, self.delta, self.accountant)

    def limits(self, policy: Policy, budget: float | None = None, epochs: int = 1) -> ParticipationLimits | None:
        """How often devices may contribute; None if the run is not private."""
        if not self.on:
            return None
        example, most = self.level == "example", self.most_updates
        if budget is not None:
            most = next(number for number in range(most, 0, -1) if self.epsilon(number, epochs) <= budget)
        inputs = self.model_dump(include=PROOF[self.mechanism, self.clip == "adaptive"])
        return ParticipationLimits(
            most=most,
            separation=self.band if self.mechanism == "banded" else 1,
            block=self.tree if self.mechanism == "tree" else 1,
            orders=example,
            epsilon=lambda number: self.epsilon(number, epochs),
            reason="participation" if most == self.most_updates else "epsilon",
            inputs=inputs | ({"epochs": epochs} if example else {"divisor": divisor_of(policy, "")}),
        )

    @property
    def order_fields(self) -> dict[str, float]:
        """The fields of every order that make devices protect their examples."""
        if not self.on or self.level == "device":
            return {}
        assert isinstance(self.clip, float) and self.noise_multiplier is not None
        return {"example_clip": self.clip, "example_noise": self.noise_multiplier}

    def combiner(self, policy: Policy, *, secret: bool) -> "PrivateSum | None":
        """The combiner for this algorithm; None if versions are not private.

        `secret` draws the noise from the operating system, not from the seed.
        """
        if not self.on or self.level == "example":
            return None
        assert self.noise_multiplier is not None
        divisor = divisor_of(policy, type(policy).__name__)
        adaptive = self.clip == "adaptive"
        count_noise = None
        if adaptive:
            count_noise = self.count_noise or max(divisor / 20, 2 * self.noise_multiplier)
            if 2 * count_noise <= self.noise_multiplier:
                raise InvalidInput(
                    f"privacy.count_noise = {count_noise:g}: must be more than half of privacy.noise_multiplier = "
                    f"{self.noise_multiplier:g}"
                )
        return PrivateSum(
            noise_multiplier=self.noise_multiplier,
            clip=self.first_clip if self.clip == "adaptive" else self.clip,
            divisor=divisor,
            staleness_weights=isinstance(policy, FedBuff),
            mechanism=self.mechanism,
            tree=self.tree,
            band=self.band,
            quantile=self.quantile,
            clip_rate=self.clip_rate,
            count_noise=count_noise,
            secret=secret,
        )


def divisor_of(policy: Policy, name: str) -> int:
    """K, by which an algorithm divides the sum of its updates; InvalidInput if it has no private form."""
    if type(policy) is FedAvg:
        return policy.cohort
    if type(policy) is not FedBuff:
        raise InvalidInput(f"privacy.noise_multiplier: algorithm {name!r} has no private form, use fedavg or fedbuff")
    if policy.variant != "paper" or policy.normaliser != "K":
        setting = (
            f"variant = {policy.variant!r}" if policy.variant != "paper" else f"normaliser = {policy.normaliser!r}"
        )
        raise InvalidInput(
            f"algorithm.{setting}: a private fedbuff divides by a fixed K, set variant = 'paper' and normaliser = 'K'"
        )
    return policy.buffer


def why_not_by_example(local: LocalWork, precision: str) -> str | None:
    """The setting with which devices cannot protect single examples; None if there is none."""
    if local.steps is not None:
        return f"local.steps = {local.steps}"
    if local.terms:
        return "local.terms"
    if local.optimiser == "polyak":  # its step size follows from the loss, which would be released without noise
        return "local.optimiser = 'polyak'"
    return None if precision == "float32" else f"execution.precision = {precision!r}"


@dataclass
class PrivateState:
    """The clip of the moment, and the noise that versions share."""

    clip: float
    noise: NoiseState = field(default_factory=NoiseState)


class PrivateSum(Combiner):
    """Clips each movement, sums them with weights of at most 1, adds noise and divides by a fixed number."""

    State = PrivateState
    Records = (NoiseState,)

    noise_multiplier: float
    clip: float
    divisor: int
    staleness_weights: bool
    """Whether the policy's weights are used (at most 1 each); otherwise all weights are 1."""
    mechanism: Mechanism = "gaussian"
    tree: int = 16
    band: int = 4
    quantile: float = 0.5
    clip_rate: float = 0.2
    count_noise: float | None = None
    """The noise on the number of norms below an adaptive clip; None if the clip is fixed."""
    secret: bool = True
    """Draw the noise from the operating system's generator, not from the seed of the run."""

    def init(self, view: View) -> PrivateState:
        return PrivateState(clip=self.clip)

    def check(self, devices: int) -> None:
        versions = {"tree": self.tree, "banded": self.band}.get(self.mechanism, 1)
        if self.divisor * versions > devices:
            often = "once per version" if versions == 1 else f"once in {versions} versions"
            raise InvalidInput(
                f"privacy.mechanism = {self.mechanism!r}: a device contributes {often} of {self.divisor} updates, "
                f"which needs {self.divisor * versions} devices, but there are {devices}"
            )

    def source(self, view: View) -> Source:
        """Where the noise is drawn from."""
        return SystemNoise() if self.secret else SeededNoise(view.stream)

    @property
    def multiplier(self) -> float:
        """The ratio sigma / (C sensitivity): z, or more if a noisy count is released too."""
        if self.count_noise is None:
            return self.noise_multiplier
        return float((self.noise_multiplier**-2 - (2 * self.count_noise) ** -2) ** -0.5)

    def combine(self, contributions: Contributions, state: PrivateState, view: View) -> Movement:
        """The private movement. The noise of a version is drawn once, here."""
        version, size, clip, source = view.version + 1, contributions.size, state.clip, self.source(view)
        norms = norms_of(contributions)
        factors = [
            (min(1.0, weight) if self.staleness_weights else 1.0) * clip_factor(norm, clip) / self.divisor
            for norm, weight in zip(norms, contributions.weights, strict=True)
        ]
        used = [number for number, factor in enumerate(factors) if factor]

        def fresh(block: slice) -> Block:
            return source(SUM, version, block.start, size=block.stop - block.start)

        noise = next_noise(self.mechanism, self.tree, self.band, state.noise, version, size, fresh)
        sigma = self.multiplier * clip * sensitivity(self.mechanism, self.tree, self.band) / self.divisor
        if self.count_noise is not None:
            state.clip = self.next_clip(norms, clip, float(source(COUNT, version, 0, size=1)[0]))

        def moved(block: slice) -> Block:
            total = np.float32(sigma) * noise(block)
            each = np.empty_like(total)
            for number in used:
                np.subtract(contributions.models[number][block], contributions.references[number][block], out=each)
                precision = np.float32 if factors[number] > TINY else np.float64  # a tiny float32 has few digits
                np.multiply(each, factors[number], out=each, dtype=precision, casting="same_kind")
                total += each
            return total

        whole = by_block(size, moved, threaded_from=BLOCK)
        return lambda block: whole[block].astype(np.float64)

    def next_clip(self, norms: list[float], clip: float, unit_noise: float) -> float:
        """The adaptive clip of the next version."""
        assert self.count_noise is not None
        below = sum(0.5 if norm <= clip else -0.5 for norm in norms)
        share = 0.5 + (below + self.count_noise * unit_noise) / self.divisor
        return clip * exp(-self.clip_rate * (share - self.quantile))

    def metrics(self, state: PrivateState) -> dict[str, float]:
        return {} if self.count_noise is None else {"privacy_clip": state.clip}


MARGIN = 1e-5
"""More than the relative error of a norm that is summed in float32, and of scaling in float32."""
ROW = 256
"""Squares that are summed in float32; their sums are added in float64. Few enough for one thread of BLAS, whose number
would change the last bits."""


def clip_factor(norm: float, clip: float) -> float:
    """min(1, C / norm), a little less if it clips, so that rounding never leaves more than C; 0 for no finite norm.

    >>> round(clip_factor(5.0, 2.0), 4), clip_factor(0.0, 2.0), clip_factor(float("nan"), 2.0)
    (0.4, 1.0, 0.0)
    """
    if not isfinite(norm):
        return 0.0
    return 1.0 if norm * (1 + MARGIN) <= clip else clip / (norm * (1 + MARGIN))


def norms_of(contributions: Contributions) -> list[float]:
    """The norm of each movement, within `MARGIN`; inf or nan if an element is not finite."""
    squares: dict[int, list[float]] = {}

    def add(block: slice) -> None:
        size = block.stop - block.start
        each = np.zeros(-(-size // ROW) * ROW, dtype=np.float32)
        rows, found = each.reshape(-1, ROW), []
        with np.errstate(invalid="ignore", over="ignore"):
            for model, reference in zip(contributions.models, contributions.references, strict=True):
                np.subtract(model[block], reference[block], out=each[:size])
                found.append(float(np.vecdot(rows, rows).sum(dtype=np.float64)))
        squares[block.start] = found

    blockwise(contributions.size, add, threaded_from=BLOCK)
    totals = [sum(squares[start][number] for start in sorted(squares)) for number in range(len(contributions))]
    return [
        sqrt(total)
        if isfinite(total) and total > TINY
        else distance(model, reference)  # squares may over- or underflow
        for total, model, reference in zip(totals, contributions.models, contributions.references, strict=True)
    ]
