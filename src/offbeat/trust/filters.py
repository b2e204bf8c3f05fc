"""Robust rules for asynchronous training: AsyncFilter's staleness groups, and THROTTLE's discount of repeats.

*AsyncFilter*: Kang, Li: *AsyncFilter: Detecting Poisoning Attacks in Asynchronous Federated Learning*, Middleware 2024.
Our reading of its description: updates are grouped by staleness; each group keeps a moving average a_g of its accepted
movements (weight `memory`); the score of an update is its distance from the average of its group, over the mean
distance in the group; one-dimensional 3-means clusters the scores of a buffer, and the cluster with the highest centre
is left out if it has fewer than half of the updates and its centre is above `suspicious` times the lowest. A group
without an average takes the coordinate median of the buffer instead.

*THROTTLE* (2026), as its text has it for arrivals. A round lasts until every device has appeared. c_j counts the
earlier uploads of device j in the round:

    first upload   w <- w + (eta / n) (v + clip(D - v, radius))        v: last round's mean of first uploads
    repeat         w <- w + (eta / n) clip(D, radius) / q^c

Here n is the policy's divisor over its weights, so that a buffer of one upload under a policy that adds movements is
the arrival rule, as is FedASMU with its weight for eta / n. A round that a lost device keeps open ends after twice as
many uploads as there are devices.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from offbeat.core.combining import Contributions, Floats, Movement, RunningMedian
from offbeat.core.parameters import blockwise
from offbeat.core.policy import View
from offbeat.trust.robust import RobustRule, distances_from, middle, stepped


@dataclass
class StalenessGroups:
    """The moving average of each staleness group."""

    averages: dict[int, Floats] = field(default_factory=dict)
    rejected: int = 0


class AsyncFilter(RobustRule):
    """Leaves out updates that are far from the average of their staleness group (Kang and Li 2024; our reading)."""

    State = StalenessGroups
    paper = "Kang and Li, Middleware 2024"
    least = 3
    provenance = "our reading"

    groups: Annotated[int, Field(ge=1)] = 5
    """Staleness groups: 0, 1, ...; the last has all larger values."""
    memory: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of the old average in the new one."""
    suspicious: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.0
    """How many times the lowest cluster's score the highest must have to be left out."""

    def combine(self, contributions: Contributions, state: StalenessGroups, view: View) -> Movement:
        members: dict[int, list[int]] = {}
        for number, staleness in enumerate(contributions.staleness):
            members.setdefault(min(staleness, self.groups - 1), []).append(number)
        median = _median(contributions) if members.keys() - state.averages.keys() else np.zeros(0)
        scores = np.zeros(len(contributions))
        for group, numbers in members.items():
            average = state.averages.get(group, median)
            lengths = np.array(distances_from(average, contributions))
            scores[numbers] = lengths[numbers] / (lengths.mean() or 1.0)
        left_out = outlying(scores, self.suspicious)
        kept = [number for number in range(len(contributions)) if number not in left_out]
        state.rejected += len(left_out)
        for group, numbers in members.items():
            accepted = [number for number in numbers if number in kept]
            if accepted:
                mean = _mean(contributions, accepted)
                before = state.averages.get(group)
                state.averages[group] = mean if before is None else self.memory * before + (1 - self.memory) * mean
        weights = [contributions.weights[number] for number in kept]
        scale = contributions.mass / (sum(weights) or 1.0)

        def combined(block: slice) -> Floats:
            total = np.zeros(block.stop - block.start)
            for number, weight in zip(kept, weights, strict=True):
                total += (scale * weight) * contributions.one(number, block)
            return total

        return combined

    def metrics(self, state: StalenessGroups) -> Mapping[str, float]:
        return {"filtered_updates": float(state.rejected)}


def outlying(scores: Floats, suspicious: float) -> set[int]:
    """The numbers of the scores in the highest of three clusters, if it is a minority and far above the lowest.

    >>> sorted(outlying(np.array([1.0, 1.1, 0.9, 5.0, 1.2]), 2.0)), outlying(np.array([1.0, 1.1, 1.2]), 2.0)
    ([3], set())
    """
    ordered = np.sort(scores)
    if len(scores) < 3:
        return set()
    centres = np.array([ordered[0], ordered[len(ordered) // 2], ordered[-1]])
    for _ in range(20):
        nearest = np.abs(scores[:, None] - centres).argmin(axis=1)
        moved = np.array([scores[nearest == k].mean() if (nearest == k).any() else centres[k] for k in range(3)])
        if np.array_equal(moved, centres):
            break
        centres = moved
    highest = set(np.flatnonzero(nearest == int(centres.argmax())).tolist())
    far = centres.max() > suspicious * centres.min()
    return highest if far and 2 * len(highest) < len(scores) else set()


def _median(contributions: Contributions) -> Floats:
    found = np.empty(contributions.size)

    def compute(block: slice) -> None:
        found[block] = middle(contributions.block(block))

    blockwise(contributions.size, compute)
    return found


def _mean(contributions: Contributions, numbers: list[int]) -> Floats:
    shares = [1.0 / len(numbers) if number in numbers else 0.0 for number in range(len(contributions))]
    return stepped(np.zeros(contributions.size), shares, contributions)


@dataclass
class Round:
    """The devices that have appeared in the round and how often, and the means of first uploads."""

    uploads: dict[int, int] = field(default_factory=dict)
    total: Floats | None = None
    """Sum of the clipped first uploads of this round."""
    centre: Floats | None = None
    """v, the mean of the first uploads of the last round; None: zero."""
    radius: float = 0.0
    norms: dict[int, float] = field(default_factory=dict)
    """The norm of each device's last upload."""

    def __post_init__(self) -> None:
        self.median_norm = RunningMedian(self.norms)
        self.norms = self.median_norm.last


class Throttle(RobustRule):
    """First uploads of a round clipped around the last round's mean, repeats discounted (THROTTLE, 2026).

    >>> from offbeat.algorithms import FedBuff
    >>> from offbeat.testing import ScriptedSession
    >>> rule = Throttle(radius=5.0, discount=2.0)
    >>> session = ScriptedSession(FedBuff(buffer=1, concurrency=1), devices=2, present=[0], combiner=rule)
    >>> _ = session.move(3.0, 4.0)  # first of device 0
    >>> _ = session.move(30.0, 40.0)  # its second: clipped to [3, 4], then over 2
    >>> session.parameters.tolist()
    [4.5, 6.0]
    """

    State = Round
    singly = True
    paper = "THROTTLE, 2026"
    provenance = "our reading"

    discount: Annotated[float, Field(ge=1, le=100)] = 1.3
    """q, by which each repeat of a device within a round counts less; 1.1 to 1.5 in the paper."""
    radius: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["auto"] = "auto"
    """Norm to which movements are clipped; "auto": the median, over devices, of the norms that they reported last."""

    def combine(self, contributions: Contributions, state: Round, view: View) -> Movement:
        size, number = contributions.size, len(contributions)
        centre = np.zeros(size) if state.centre is None else state.centre
        own, apart = distances_from(np.zeros(size), contributions), distances_from(centre, contributions)
        for device, norm in zip(contributions.devices, own, strict=True):
            state.median_norm.note(device, norm)
        auto = state.median_norm.median or float(np.median(own))
        state.radius = auto if self.radius == "auto" else self.radius
        shares, around = [0.0] * number, 0.0
        first = [0.0] * number
        for each, device in enumerate(contributions.devices):
            earlier = state.uploads.get(device, 0)
            state.uploads[device] = earlier + 1
            weight = contributions.weights[each] / contributions.divisor
            length = own[each] if earlier else apart[each]
            share = min(1.0, state.radius / length) if length else 1.0
            shares[each] = weight * share / self.discount**earlier
            if not earlier:
                around += weight * (1.0 - share)
                first[each] = share
        firsts = stepped(np.zeros(size), first, contributions)
        firsts += sum(each > 0 for each in first) * centre - sum(first) * centre
        state.total = firsts if state.total is None else state.total + firsts
        if len(state.uploads) >= view.devices or sum(state.uploads.values()) >= 2 * view.devices:
            state.centre, state.total, state.uploads = state.total / len(state.uploads), None, {}

        def combined(block: slice) -> Floats:
            total = around * centre[block]
            for each, share in enumerate(shares):
                total += share * contributions.one(each, block)
            return total

        return combined

    def metrics(self, state: Round) -> Mapping[str, float]:
        return {"clip_radius": state.radius}
