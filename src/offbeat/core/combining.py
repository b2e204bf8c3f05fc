"""How the updates of a buffer or a round become one movement of the model: the exchangeable part of an aggregation.

A policy that makes a version from several updates chooses their weights and calls `mean_movement` or `mean_model`.
Both return the weighted mean, unless the session has a `Combiner`: a robust rule, or one that protects privacy, which
then computes the movement from the same updates and weights. A `Screen` sees each update when it arrives, before the
policy does, and may bound its influence under every algorithm. In a session with a running sum (`core.sums`) the mean
is taken from that.

A policy that uses one update at a time takes its movement from `single_movement`, in which a combiner takes part that
judges updates one by one.

Both are frozen settings plus a state dataclass, like a policy; the state is part of the session's snapshot.
`RunningMedian` is the yardstick for an update that moves too far, for screens and for deployments.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import PolicyError
from offbeat.core.orders import ScaledOutcome, Update
from offbeat.core.parameters import LazyDifference, Vector, by_block, frozen, weighted_mean
from offbeat.core.settings import Settings
from offbeat.core.vectors import Sliceable

if TYPE_CHECKING:
    from offbeat.core.policy import View
    from offbeat.core.sums import RunningSum

Floats = npt.NDArray[np.float64]
Movement = Callable[[slice], Floats]
"""Computes one block of the movement of the model."""


@dataclass
class NoState:
    """The state of a combiner or screen that keeps none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Contributions:
    """What a policy combines: model k moved by D_k = models[k] - references[k] and has the weight weights[k].

    Without a combiner the model would move by sum_k weights[k] D_k / divisor.
    """

    models: Sequence[Sliceable]
    references: Sequence[Vector]
    """The base of each update, or the current version where a policy averages models."""
    weights: Sequence[float]
    divisor: float
    devices: Sequence[int]
    staleness: Sequence[int]
    samples: Sequence[int]
    """The number of samples that each device claims."""

    def __len__(self) -> int:
        return len(self.models)

    @property
    def size(self) -> int:
        """Number of elements of a movement."""
        return len(self.models[0])

    @property
    def mass(self) -> float:
        """The sum of the weights over the divisor: 1 for a mean, less where stale updates count less."""
        return sum(self.weights) / self.divisor

    def one(self, number: int, block: slice) -> Floats:
        """One block of D_k."""
        return np.subtract(self.models[number][block], self.references[number][block], dtype=np.float64)

    def block(self, block: slice) -> Floats:
        """One block of all movements, a row each."""
        rows = np.empty((len(self), block.stop - block.start))
        for number, row in enumerate(rows):
            np.subtract(self.models[number][block], self.references[number][block], out=row, dtype=np.float64)
        return rows


class Combiner(Settings):
    """Combines the movements of a buffer or a round into one; a subclass defines `combine`."""

    singly: ClassVar[bool] = False
    """Whether it can also judge one update without others, so that policies that use one update at a time take it."""

    State: ClassVar[type[Any]] = NoState
    """The dataclass of the state: plain values, arrays, lists and dicts, so that a checkpoint can hold it."""
    Records: ClassVar[tuple[type[Any], ...]] = ()
    """Other dataclasses that the state holds."""

    def init(self, view: "View") -> Any:
        """The state at the start of a run."""
        return self.State()

    def combine(self, contributions: Contributions, state: Any, view: "View") -> Movement:
        """The combined movement, computed block by block; may change `state`.

        Called once for each version that the policy makes from several updates, before the version is committed.
        """
        raise TypeError(f"{type(self).__name__} does not define combine")

    def check(self, devices: int) -> None:
        """Raise InvalidInput if these settings cannot work with this number of devices."""

    def metrics(self, state: Any) -> Mapping[str, float]:
        """The combiner's own metrics."""
        return {}


class Screen(Settings):
    """Bounds the influence of each update when it arrives, before the policy sees it."""

    State: ClassVar[type[Any]] = NoState
    """The dataclass of the state: plain values, arrays, lists and dicts, so that a checkpoint can hold it."""
    Records: ClassVar[tuple[type[Any], ...]] = ()
    """Other dataclasses that the state holds."""

    def init(self, view: "View") -> Any:
        """The state at the start of a run."""
        return self.State()

    def capped(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The sample counts of all devices as the policy shall see them."""
        return samples

    @property
    def measures(self) -> bool:
        """Whether `admit` needs the norm of each movement."""
        return False

    def admit(self, update: Update, norm: float, state: Any, view: "View") -> Update:
        """The update as the policy shall see it; may change `state`. `norm`: of its movement, 0 unless `measures`."""
        return update

    def resolved(self, tickets: Sequence[int], used: bool, state: Any) -> None:
        """Updates were used in a version, or discarded; may change `state`."""

    def metrics(self, state: Any) -> Mapping[str, float]:
        """The screen's own metrics."""
        return {}

    def columns(self, state: Any, devices: int) -> Mapping[str, Sequence[float]]:
        """Columns of `devices.csv`: a number for each device."""
        return {}


def contributions_of(
    updates: Sequence[Update], references: Sequence[Vector], weights: Sequence[float], divisor: float, view: "View"
) -> Contributions:
    """The movements of these updates from their references."""
    return Contributions(
        models=[update.parameters for update in updates],
        references=references,
        weights=weights,
        divisor=divisor,
        devices=[update.device for update in updates],
        staleness=[view.version - update.base for update in updates],
        samples=[update.samples for update in updates],
    )


def mean_movement(
    updates: Sequence[Update], references: Sequence[Vector], weights: Sequence[float], divisor: float, view: "View"
) -> Movement:
    """sum_k weight_k (w_k - reference_k) / divisor, block by block, or what the session's combiner makes of it."""
    if view.sums is not None:
        return _movement_of_sum(view.sums, updates, references, weights, divisor, view)
    if view.combiner is not None:
        return view.combine(contributions_of(updates, references, weights, divisor, view))
    terms = [_term(weight, update, base) for weight, update, base in zip(weights, updates, references, strict=True)]

    def movement_of(block: slice) -> Floats:
        total = np.zeros(block.stop - block.start, dtype=np.float64)
        for weight, model, base in terms:
            total += weight * (model[block] - base[block])
        total *= 1.0 / divisor
        return total

    return movement_of


def _term(weight: float, update: Update, reference: Vector) -> tuple[float, Vector, Vector]:
    """The weight, the model and its reference. A factor on the movement from the base goes into the weight, so that no
    scaled model has to be made."""
    outcome = update.outcome
    if isinstance(outcome, ScaledOutcome) and reference is update.base_parameters:
        return weight * outcome.factor, outcome.whole().parameters, reference
    return weight, update.parameters, reference


def _movement_of_sum(
    sums: "RunningSum",
    updates: Sequence[Update],
    references: Sequence[Vector],
    weights: Sequence[float],
    divisor: float,
    view: "View",
) -> Movement:
    """`mean_movement` from the running sum, which has the movements of the updates from their own bases."""
    for update, reference in zip(updates, references, strict=True):
        own = reference is update.base_parameters or (reference is view.parameters and update.base == view.version)
        if not own:
            raise PolicyError(
                f"the sum has the movement of ticket {update.ticket} from its base, version {update.base}, and no other"
            )
    total, scale = sums.take(updates, weights), 1.0 / divisor
    return lambda block: total[block] * scale


def mean_model(updates: Sequence[Update], weights: Sequence[float], view: "View") -> Vector:
    """The weighted mean of the models, or the current version plus what the combiner makes of their movements from it.

    Models are compared with the current version also where they started from an older one.
    """
    now = view.parameters
    if view.combiner is None and view.sums is None:
        return weighted_mean([update.parameters for update in updates], weights)
    movement = mean_movement(updates, [now] * len(updates), weights, sum(weights), view)
    return by_block(len(now), lambda block: now[block] + movement(block))


def mean_delta(updates: Sequence[Update], weights: Sequence[float], view: "View") -> Vector:
    """The weighted mean of the movements from their own bases, or what the combiner makes of it, in float32."""
    if view.combiner is None and view.sums is None:
        return weighted_mean([LazyDifference(update.parameters, update.base_parameters) for update in updates], weights)
    references = [update.base_parameters for update in updates]
    movement = mean_movement(updates, references, weights, sum(weights), view)
    return by_block(len(view.parameters), movement)


def single_movement(update: Update, view: "View") -> Vector:
    """The movement from the current version to the model of one update, or what the combiner makes of it."""
    now = view.parameters
    if view.combiner is None:
        return update.parameters - now
    movement = view.combine(contributions_of([update], [now], [1.0], 1.0, view))
    return frozen(by_block(len(now), movement))


def mean_of_cache(
    models: Collection[Sliceable], devices: Collection[int], weights: Sequence[float], view: "View"
) -> Vector:
    """`mean_model` for models that a policy keeps from version to version; they count as fresh."""
    if view.combiner is None:
        return weighted_mean(list(models), weights)
    cached = Contributions(
        models=list(models),
        references=[view.parameters] * len(models),
        weights=weights,
        divisor=sum(weights),
        devices=list(devices),
        staleness=[0] * len(models),
        samples=[view.samples(device) for device in devices],
    )
    return model_of(cached, view)


def model_of(contributions: Contributions, view: "View") -> Vector:
    """The current version plus the combined movement."""
    now, movement = view.parameters, view.combine(contributions)
    return by_block(len(now), lambda block: now[block] + movement(block))


# Norms ----------------------------------------------------------------------------------------------------------------


FEWEST_DEVICES = 3
"""Devices that must have reported before there is a median: with three, one of them cannot set it."""


class RunningMedian:
    """The median over devices of the norm that each has reported last. A device has one vote, however often it reports.

    As long as fewer than half of the devices lie, the median is between two honest norms. Refused updates vote too: if
    the norms of most devices grow, so does the median.

    >>> norms = RunningMedian()
    >>> for device, norm in enumerate([1.0, 2.0, 3.0, 1e30]):
    ...     norms.note(device, norm)
    >>> norms.note(3, 1e31)
    >>> norms.median
    2.0
    """

    __slots__ = ("_ordered", "last")

    def __init__(self, last: Mapping[int, float] | None = None) -> None:
        self.last: dict[int, float] = dict(last or {})
        """The last norm of each device: all that a snapshot needs."""
        self._ordered = sorted(self.last.values())

    def note(self, device: int, norm: float) -> None:
        """Note the norm of an update of this device."""
        if (before := self.last.get(device)) is not None:
            del self._ordered[bisect_left(self._ordered, before)]
        self.last[device] = norm
        insort(self._ordered, norm)

    @property
    def median(self) -> float | None:
        """The lower median; None before `FEWEST_DEVICES` have reported, and if it is 0, which measures nothing."""
        if len(self._ordered) < FEWEST_DEVICES:
            return None
        return self._ordered[(len(self._ordered) - 1) // 2] or None
