"""The device half of FedASMU and FedSSMU: request the fresh model during training and merge it (sec. 4.3).

Before epoch l* the device requests the newest model w_g and waits for it, or (not in the paper) continues to train and
merges it between two steps when it arrives. If it is newer than the base w_o:

    phi   = gamma / sqrt(g) (1 - upsilon / sqrt(g - o + 1)),  at least 0
    beta  = mu phi / (1 + mu phi)                                                        (10)
    w     <- (1 - beta) w + beta w_g                                                     (9)
    theta <- theta - eta <grad F(w merged), w_g - w before> d beta / d theta             (11)  theta: gamma, upsilon
    R     = F(w before) - F(w merged)                                                    on one batch of its data

In FedSSMU sqrt(g) is sqrt(r) of the round r, and g - o is the number of merges in the round so far. The server still
counts staleness from o. The paper does not say what happens where phi is clipped to 0: here there is no merge and no
adaptation. gamma and upsilon stay within 0..MOST; a step that is not finite is skipped.

gamma, upsilon, the slot of the last merge and the Q table are kept in the device's memory between trainings.
"""

from collections.abc import Mapping
from math import isfinite, sqrt
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import asdict

from offbeat.algorithms.fedasmu.slots import learned, moved, next_move, no_table
from offbeat.core.orders import Order, Plain, Progress
from offbeat.core.parameters import Vector, dot
from offbeat.core.policy import Ask, DeviceRule, Fresh, Memory, Probe, ReadOnlyMemory, Step, Train, Upload

MOST = 1e4
"""Upper bound of control parameters, so that alpha and beta stay below 1 in float32 and nothing overflows."""


class MergeSettings(Struct, frozen=True, kw_only=True):
    """How a device requests and merges: the `arguments` of an order."""

    slot: int
    """The slot l* until the device's first merge, and afterwards if it is fixed."""
    fixed: bool
    """Whether the slot is a setting instead of learned."""
    draw: float
    """A random number in [0, 1) from the server that selects the exploration: devices draw nothing."""
    epsilon: float
    q_rate: float
    q_discount: float
    mu: float
    gamma: float
    upsilon: float
    """Initial values of gamma and upsilon."""
    gamma_rate: float
    upsilon_rate: float
    round: int
    """The round r in FedSSMU; 0 in FedASMU."""
    waits: bool = True
    """Whether the device waits for the fresh model."""

    @classmethod
    def of(cls, order: Order) -> "MergeSettings":
        """Read them from an order's arguments."""
        return cls(**order.arguments)  # type: ignore[arg-type]  # made by `asdict` of one of these


class MergeMemory(Struct, frozen=True, kw_only=True, eq=False):
    """The device's memory of its last merge."""

    gamma: float
    upsilon: float
    slot: int
    table: Vector
    merges: int
    beta: float
    reward: float

    @classmethod
    def of(cls, memory: ReadOnlyMemory) -> "MergeMemory | None":
        """Read it from a device's memory; None if the device has never merged."""
        return cls(**memory) if memory else None  # type: ignore[arg-type]  # made by `asdict` of one of these


class MergeReport(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The report of a merge: the `extras` of an upload."""

    slot: Annotated[int, Meta(ge=1)]
    first: bool
    reward: float
    beta: Annotated[float, Meta(ge=0, le=1)]
    gamma: Annotated[float, Meta(ge=0, le=MOST)]
    upsilon: Annotated[float, Meta(ge=0, le=MOST)]


class MergeWeight(NamedTuple):
    """Eq. (10): the merge weight and its derivatives."""

    beta: float
    by_gamma: float
    by_upsilon: float


def merge_weight(mu: float, gamma: float, upsilon: float, turn: int, staleness: int) -> MergeWeight:
    """beta for a fresh model; `turn` is g (or r), `staleness` is g - o + 1.

    >>> merge_weight(mu=1.0, gamma=2.0, upsilon=1.0, turn=4, staleness=4)
    MergeWeight(beta=0.3333333333333333, by_gamma=0.1111111111111111, by_upsilon=-0.2222222222222222)
    """
    freshness = 1.0 - upsilon / sqrt(staleness)
    phi = gamma / sqrt(turn) * freshness
    if phi < 0.0:
        return MergeWeight(0.0, 0.0, 0.0)
    by_phi = mu / (1.0 + mu * phi) ** 2
    return MergeWeight(
        beta=mu * phi / (1.0 + mu * phi),
        by_gamma=by_phi * freshness / sqrt(turn),
        by_upsilon=by_phi * -gamma / (sqrt(turn) * sqrt(staleness)),
    )


class FreshModelRule(DeviceRule):
    """Trains up to the slot, requests the fresh model, merges it, and trains the rest."""

    remembers = True

    def next(self, progress: Progress, fresh_answers: int, order: Order, memory: ReadOnlyMemory) -> Step:
        before = self.slot(order, memory)[1] - 1
        if not fresh_answers and progress.slices < before:
            return Train(before - progress.slices)
        if not fresh_answers and progress.slices == before:
            return Ask(waits=MergeSettings.of(order).waits)
        remaining = order.slices - progress.slices
        return Train(remaining) if remaining else Upload()

    def slot(self, order: Order, memory: ReadOnlyMemory) -> tuple[int, int]:
        """The move from the slot of the last merge, and the resulting slot l*."""
        given, last = MergeSettings.of(order), MergeMemory.of(memory)
        if given.fixed or last is None:
            return 0, min(given.slot, order.slices)
        move = next_move(last.table, last.slot, given.epsilon, given.draw)
        return move, moved(last.slot, move, order.slices)

    def merge(self, local: Vector, fresh: Fresh, base: int, order: Order, memory: Memory, probe: Probe) -> Vector:
        given, last = MergeSettings.of(order), MergeMemory.of(memory)
        gamma, upsilon = (last.gamma, last.upsilon) if last else (given.gamma, given.upsilon)
        weight = merge_weight(given.mu, gamma, upsilon, given.round or fresh.version, fresh.version - base + 1)
        beta = np.float32(weight.beta)
        merged = (1 - beta) * local + beta * fresh.parameters
        loss_before, _ = probe(local)
        loss_after, gradient = probe(merged)
        slope = dot(gradient, fresh.parameters - local)
        reward = loss_before - loss_after
        move, slot = self.slot(order, memory)
        if last is None:
            table = no_table(order.slices)
        elif given.fixed or not isfinite(reward):
            table = last.table
        else:
            table = learned(last.table, last.slot, move, reward, rate=given.q_rate, discount=given.q_discount)
        after = MergeMemory(
            gamma=stepped(gamma, given.gamma_rate * slope * weight.by_gamma),
            upsilon=stepped(upsilon, given.upsilon_rate * slope * weight.by_upsilon),
            slot=slot,
            table=table,
            merges=last.merges + 1 if last else 1,
            beta=weight.beta,
            reward=reward,
        )
        memory.update(asdict(after))
        return merged

    def extras(self, order: Order, before: ReadOnlyMemory, memory: ReadOnlyMemory) -> Mapping[str, Plain]:
        """The report of the merge, if there was one."""
        last, now = MergeMemory.of(before), MergeMemory.of(memory)
        if now is None or (last and last.merges == now.merges):
            return {}
        return asdict(
            MergeReport(
                slot=now.slot,
                first=last is None,
                reward=now.reward,
                beta=now.beta,
                gamma=now.gamma,
                upsilon=now.upsilon,
            )
        )

    def admits(self, extras: Mapping[str, Plain], order: Order) -> bool:
        try:
            return not extras or convert(extras, MergeReport).slot <= order.slices
        except ValidationError:
            return False


def stepped(value: float, step: float) -> float:
    """A control parameter after a gradient step, within its bounds."""
    return min(max(value - step, 0.0), MOST) if isfinite(step) else value
