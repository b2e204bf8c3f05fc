"""Robust rules in place of the weighted mean: the combined movement stays near those of the honest devices.

Every update has one vote, whatever weight the policy gave it, so that no device gains influence by claiming samples.
The policy's weights enter as the common factor m = sum of weights / divisor, which is below 1 where stale updates count
less. f is the number of hostile updates that a rule shall withstand: `attackers` times the number of updates, rounded
up.

| rule | combined movement, times m | source |
|---|---|---|
| median | the median of each coordinate | Yin, Chen, Ramchandran, Bartlett, ICML 2018 |
| trimmed mean | for each coordinate the mean without the f largest and the f smallest | the same |
| centred clipping | v <- v + mean_k clip(D_k - v, radius), from the last version's v | Karimireddy et al., ICML 2021 |
| Krum | the D_k with the least sum of squared distances to its n - f - 2 nearest | Blanchard et al., NeurIPS 2017 |
| Multi-Krum | the mean of the n - f movements with the least such sums | the same |
| bucketing | the median or trimmed mean of bucket means, bucket = device mod B | BASGD: Yang, Li, ICML 2021 |

The papers are about gradients of one version. Here movements from different bases are combined as they are (our
reading), as FedBuff's mean does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from offbeat.core.combining import Combiner, Contributions, Floats, Movement
from offbeat.core.parameters import blockwise
from offbeat.core.policy import View


class RobustRule(Combiner):
    """Base of rules that know how many of the updates may be hostile."""

    paper: ClassVar[str] = ""
    provenance: ClassVar[str] = "published"
    """What the rule follows, as for algorithms; the use on movements of different staleness is always our reading."""
    least: ClassVar[int] = 1
    """Fewest updates among which the rule can withstand a hostile one."""

    attackers: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """Largest share of hostile updates in a buffer or round that the rule shall withstand."""

    def hostile(self, number: int) -> int:
        """f, the hostile ones among this number of updates; fewer than half."""
        return min(ceil(round(self.attackers * number, 9)), (number - 1) // 2)


class CoordinateMedian(RobustRule):
    """The median of each coordinate (Yin et al. 2018).

    >>> from offbeat.algorithms import FedBuff
    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedBuff(buffer=3, concurrency=3), combiner=CoordinateMedian())
    >>> _ = session.move(1.0, 5.0), session.move(2.0, 4.0), session.move(900.0, -900.0)
    >>> session.parameters.tolist()
    [2.0, 4.0]
    """

    paper = "Yin et al., ICML 2018"
    least = 3

    def combine(self, contributions: Contributions, state: object, view: View) -> Movement:
        mass = contributions.mass
        return lambda block: mass * middle(contributions.block(block))


class TrimmedMean(RobustRule):
    """For each coordinate the mean without the f largest and f smallest values (Yin et al. 2018).

    >>> from offbeat.algorithms import FedBuff
    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedBuff(buffer=4, concurrency=4), combiner=TrimmedMean(attackers=0.25))
    >>> _ = [session.move(*each) for each in ((1.0, 5.0), (3.0, 4.0), (900.0, -900.0), (2.0, 2.0))]
    >>> session.parameters.tolist()  # (2 + 3) / 2 and (2 + 4) / 2
    [2.5, 3.0]
    """

    paper = "Yin et al., ICML 2018"
    least = 3

    def combine(self, contributions: Contributions, state: object, view: View) -> Movement:
        mass, cut = contributions.mass, self.hostile(len(contributions))
        return lambda block: mass * trimmed_mean(contributions.block(block), cut)


def middle(rows: Floats) -> Floats:
    """The median of each column; sorts the rows in place, a third of the time of `np.median`."""
    return trimmed_mean(rows, (len(rows) - 1) // 2)


def trimmed_mean(rows: Floats, cut: int) -> Floats:
    """The mean of each column without its `cut` largest and smallest values."""
    rows.sort(axis=0)
    kept: Floats = rows[cut : len(rows) - cut].mean(axis=0)
    return kept


@dataclass
class Centre:
    """The movement of the last version, around which the next movements are clipped; None: zero."""

    vector: Floats | None = None
    radius: float = 0.0


class CentredClipping(RobustRule):
    """Movements clipped around the last version's combined movement (Karimireddy et al. 2021).

    >>> from offbeat.algorithms import FedBuff
    >>> from offbeat.testing import ScriptedSession
    >>> rule = CentredClipping(radius=5.0, iterations=1)
    >>> session = ScriptedSession(FedBuff(buffer=2, concurrency=2), combiner=rule)
    >>> _ = session.move(3.0, 4.0), session.move(30.0, 40.0)  # norms 5 and 50: both count as [3, 4]
    >>> session.parameters.tolist()
    [3.0, 4.0]
    """

    State = Centre
    paper = "Karimireddy et al., ICML 2021"

    radius: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["auto"] = "auto"
    """Distance from the centre to which movements are clipped; "auto": the median of their distances."""
    iterations: Annotated[int, Field(ge=1, le=100)] = 3
    """Steps of the centre within a version."""

    def combine(self, contributions: Contributions, state: Centre, view: View) -> Movement:
        size, number = contributions.size, len(contributions)
        centre = np.zeros(size) if state.vector is None else state.vector.copy()
        for _ in range(self.iterations):
            lengths = distances_from(centre, contributions)
            state.radius = float(np.median(lengths)) if self.radius == "auto" else self.radius
            shares = [min(1.0, state.radius / length) / number if length else 0.0 for length in lengths]
            centre = stepped(centre, shares, contributions)
        state.vector, mass = centre, contributions.mass
        return lambda block: mass * centre[block]

    def metrics(self, state: Centre) -> Mapping[str, float]:
        return {"clip_radius": state.radius}


def distances_from(centre: Floats, contributions: Contributions) -> list[float]:
    """The distance ||D_k - centre|| of each movement."""
    squares: dict[int, Floats] = {}

    def add(block: slice) -> None:
        apart = contributions.block(block) - centre[block]
        squares[block.start] = np.einsum("ij,ij->i", apart, apart)

    blockwise(contributions.size, add)
    return np.sqrt(sum(squares[start] for start in sorted(squares))).tolist()  # type: ignore[no-any-return]


def stepped(centre: Floats, shares: list[float], contributions: Contributions) -> Floats:
    """The centre moved to centre + sum_k share_k (D_k - centre)."""
    moved = np.empty_like(centre)

    def step(block: slice) -> None:
        moved[block] = centre[block] * (1.0 - sum(shares))
        for number, share in enumerate(shares):
            moved[block] += share * contributions.one(number, block)

    blockwise(len(centre), step)
    return moved


class Krum(RobustRule):
    """The movement that is nearest to most others (Blanchard et al. 2017).

    >>> from offbeat.algorithms import FedBuff
    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedBuff(buffer=4, concurrency=4), combiner=Krum(attackers=0.25))
    >>> _ = [session.move(*each) for each in ((0.0, 0.0), (1.0, 0.0), (3.0, 0.0), (900.0, 0.0))]
    >>> session.parameters.tolist()  # with one neighbour each, [0, 0] and [1, 0] have the least distance; the first
    [0.0, 0.0]
    """

    paper = "Blanchard et al., NeurIPS 2017"
    least = 3

    def chosen(self, scores: Floats) -> list[int]:
        """The updates that count."""
        return [int(np.argmin(scores))]

    def combine(self, contributions: Contributions, state: object, view: View) -> Movement:
        number = len(contributions)
        scores = krum_scores(contributions, self.hostile(number)) if number > 1 else np.zeros(1)
        chosen = self.chosen(scores)
        share = contributions.mass / len(chosen)

        def mean_of(block: slice) -> Floats:
            total = np.zeros(block.stop - block.start)
            for each in chosen:
                total += share * contributions.one(each, block)
            return total

        return mean_of


class MultiKrum(Krum):
    """The mean of the n - f movements that are nearest to most others (Blanchard et al. 2017)."""

    def chosen(self, scores: Floats) -> list[int]:
        kept = len(scores) - self.hostile(len(scores))
        return sorted(np.argsort(scores, kind="stable")[:kept].tolist())


def krum_scores(contributions: Contributions, hostile: int) -> Floats:
    """For each movement the sum of squared distances to its n - f - 2 nearest others, at least one."""
    number = len(contributions)
    squares = np.zeros((number, number))
    parts: dict[int, Floats] = {}

    def add(block: slice) -> None:
        rows, part = contributions.block(block), np.zeros((number, number))
        for one in range(number - 1):
            apart = rows[one + 1 :] - rows[one]
            part[one, one + 1 :] = np.einsum("ij,ij->i", apart, apart)
        parts[block.start] = part

    blockwise(contributions.size, add)
    for start in sorted(parts):
        squares += parts[start]
    squares += squares.T
    np.fill_diagonal(squares, np.inf)
    nearest = max(1, number - hostile - 2)
    scores: Floats = np.sort(squares, axis=1)[:, :nearest].sum(axis=1)
    return scores


class Bucketing(RobustRule):
    """The median or trimmed mean of bucket means; a device is always in the same bucket (BASGD, Yang and Li 2021).

    >>> from offbeat.algorithms import FedAvg
    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedAvg(cohort=4), combiner=Bucketing(buckets=3))
    >>> for device, number in enumerate((1.0, 2.0, 900.0, 5.0)):  # devices 0 and 3 share a bucket: mean 3
    ...     _ = session.upload(number, 0.0, device=device)
    >>> session.parameters.tolist()  # the median of 3, 2 and 900
    [3.0, 0.0]
    """

    paper = "Yang and Li, ICML 2021"
    least = 3

    buckets: Annotated[int, Field(ge=2)] = 5
    """B, the number of buckets."""
    rule: Literal["median", "trimmed-mean"] = "median"
    """How bucket means are combined."""

    def combine(self, contributions: Contributions, state: object, view: View) -> Movement:
        mass, members = contributions.mass, dict[int, list[int]]()
        for number, device in enumerate(contributions.devices):
            members.setdefault(device % self.buckets, []).append(number)
        groups, cut = [members[bucket] for bucket in sorted(members)], self.hostile(len(members))

        def combined(block: slice) -> Floats:
            rows = contributions.block(block)
            means = np.stack([rows[group].mean(axis=0) for group in groups])
            found: Floats = middle(means) if self.rule == "median" else trimmed_mean(means, cut)
            return mass * found

        return combined
