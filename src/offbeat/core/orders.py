"""How the learning rate changes, over versions, updates, time or the steps of one training.

What crosses between server and device: orders go out, updates come back. Plain data, complete when made.

Records that are made for every single thing that happens, here and in `events`, `actions` and `effects`, are msgspec
structs: frozen, slotted and keyword-only like dataclasses, and ten times cheaper to make. Plain data cannot be part of
a cycle, so the garbage collector is not told about it (`gc=False`): with thousands of orders in flight it would look at
the same records again and again.
"""

from collections.abc import Callable, Mapping
from math import cos, pi
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from offbeat.core.parameters import Layout, Mask, Vector
from offbeat.core.terms import AbsentClasses, Proximal, Term

Over = Literal["versions", "updates", "time", "steps"]
Shape = Literal["constant", "exponential", "inverse", "step", "cosine"]


class RateSchedule(Struct, frozen=True, kw_only=True, gc=False):
    """By which factor the learning rate is multiplied at a moment: a version, a count of updates, seconds, a step."""

    shape: Shape = "constant"
    over: Over = "versions"
    decay: float = 1.0
    every: float = 1
    milestones: tuple[float, ...] = ()
    warmup: float = 0

    def factor(self, moment: float) -> float:
        """
        "exponential": `decay` once for every `every`. "inverse": 1 / (1 + moment / `every`). "step": `decay` once for
        every milestone reached. "cosine": from 1 to `decay` along half a cosine of length `every`, then `decay`.
        In the first `warmup` moments the factor rises linearly, as (moment + 1) / `warmup`.

        >>> RateSchedule(shape="step", decay=0.5, milestones=(10, 20)).factor(25)
        0.25
        """
        factor = self._decayed(moment)
        return factor * (moment + 1) / self.warmup if moment + 1 < self.warmup else factor

    def _decayed(self, moment: float) -> float:
        match self.shape:
            case "exponential":
                return float(self.decay ** (moment // self.every))
            case "inverse":
                return 1.0 / (1.0 + moment / self.every)
            case "step":
                return float(self.decay ** sum(moment >= milestone for milestone in self.milestones))
            case "cosine":
                share = min(1.0, moment / self.every)
                return self.decay + (1.0 - self.decay) * (1.0 + cos(pi * share)) / 2.0
        return 1.0

    def rate(self, base: float, moment: float) -> float:
        """The learning rate at a moment, where it is `base` at first."""
        if self.shape == "inverse" and not self.warmup:
            return base / (1.0 + moment / self.every)
        return base * self.factor(moment)


Plain = bool | int | float | str
"""The values that an order's arguments and an update's extras may hold: they cross the wire as they are."""


class Order(Struct, frozen=True, kw_only=True, gc=False):
    """What a device is asked to do, from the version of the model that comes with it."""

    slices: int = 1
    """Slices of work, between which the device may ask, be stopped or run out of time."""
    unit: Literal["epoch", "layer"] = "epoch"
    """A slice is one pass over the device's data, or one layer of the backward pass."""
    batch_size: int | None = 32
    """None: the whole of the device's data in one step."""
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimiser: str = "sgd"
    """sgd, adam, adamw, rmsprop, or the user's own as "module:Class"."""
    keep_optimiser_state: bool = False
    """Whether the optimiser goes on with the state that the device's last training left."""
    clip_norm: float = 0.0
    """Gradients that are longer than this are shortened to it; 0: none is."""
    schedule: RateSchedule | None = None
    """How the learning rate changes from step to step of this training, where it does."""
    terms: tuple[Term, ...] = ()
    """What is added to the loss."""
    buffers: Literal["average", "local", "ignore"] = "average"
    """What becomes of running statistics: they travel with the model, stay on the device, or are left as they were."""
    budget: float | None = None
    """Seconds of the device's own clock for training; what is done by then is uploaded."""
    width: float = 1.0
    """Share of each layer's width that the device trains."""
    partial: bool = True
    """Whether to deliver what is done when the budget is used up; else an unfinished run delivers nothing."""
    drops_unfinished: bool = False
    """Whether a device that is told to stop soon drops the slice it is in, and delivers at once what it had before; one
    without a finished slice finishes its first."""
    rule: str = "plain"
    """The device half of the algorithm, by its name in the registry of device rules."""
    arguments: Mapping[str, Plain] = field(default_factory=dict)
    """What that rule needs to know."""

    @property
    def prox(self) -> float:
        """The sum of mu over the proximal terms."""
        return sum((term.mu for term in self.terms if isinstance(term, Proximal)), 0.0) if self.terms else 0.0

    @property
    def masks_absent_classes(self) -> bool:
        """Whether logits of classes that the device does not hold count as 0."""
        return any(isinstance(term, AbsentClasses) for term in self.terms)

    @property
    def remembers(self) -> bool:
        """Whether the numbers of the device's next training depend on this one beyond the model."""
        if self.keep_optimiser_state or self.buffers == "local":
            return True
        return bool(self.terms) and any(term.remembers for term in self.terms)


class LocalWork(Struct, frozen=True, kw_only=True):
    """The local work that an experiment asks of its devices, from which policies make their orders."""

    epochs: int = 1
    batch_size: int | None = 32
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    learning_rate_decay: float = 1.0
    decay_every: float = 1
    schedule: Shape = "exponential"
    schedule_over: Over = "versions"
    milestones: tuple[float, ...] = ()
    warmup: float = 0
    optimiser: str = "sgd"
    keep_optimiser_state: bool = False
    clip_norm: float = 0.0
    prox: float | None = None
    """mu of the proximal term; None: whatever the algorithm has by itself."""
    terms: tuple[Term, ...] = ()
    buffers: Literal["average", "local", "ignore"] = "average"

    @property
    def rates(self) -> RateSchedule:
        """How the learning rate changes."""
        return RateSchedule(
            shape=self.schedule,
            over=self.schedule_over,
            decay=self.learning_rate_decay,
            every=self.decay_every,
            milestones=self.milestones,
            warmup=self.warmup,
        )

    def rate(self, moment: float) -> float:
        """The learning rate at this moment: a version, or whatever the schedule runs over.

        >>> LocalWork(learning_rate=0.75, schedule="inverse").rate(2)
        0.25
        """
        return self.rates.rate(self.learning_rate, moment)

    def moment(self, *, version: int, updates: int, time: float) -> float:
        """Where a run is on the axis that the schedule runs over; the steps of a training begin with each training."""
        match self.schedule_over:
            case "versions":
                return version
            case "updates":
                return updates
            case "time":
                return time
        return 0

    def order(self, moment: float, terms: tuple[Term, ...] = (), **changes: Any) -> Order:
        """An order at this moment. The algorithm's `terms` come to the experiment's, whose `prox` replaces its own."""
        by_step = self.schedule_over == "steps"
        if self.prox is not None:
            kept = tuple(term for term in terms if not isinstance(term, Proximal))
            terms = ((Proximal(mu=self.prox),) if self.prox else ()) + kept
        plain = Order(
            slices=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate if by_step else self.rate(moment),
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            optimiser=self.optimiser,
            keep_optimiser_state=self.keep_optimiser_state,
            clip_norm=self.clip_norm,
            schedule=self.rates if by_step else None,
            terms=self.terms + terms,
            buffers=self.buffers,
        )
        return replace(plain, **changes) if changes else plain


class Progress(Struct, frozen=True, kw_only=True, gc=False):
    """How far a local run has come."""

    slices: int = 0
    steps: int = 0
    seconds: float = 0.0


class Outcome(Struct, frozen=True, kw_only=True, gc=False):
    """The numbers that a local run produced."""

    parameters: Vector
    loss: float = float("nan")
    """Mean training loss over the samples seen."""
    extras: Mapping[str, Plain] = field(default_factory=dict)


class Update(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """What a device sends back. Its numbers may not exist yet: reading them makes them (`simulation.lazy_training`)."""

    device: int
    ticket: int
    base: int
    """The version that the device started from."""
    base_parameters: Vector
    samples: int
    progress: Progress
    outcome: Callable[[], Outcome]
    mask: Mask | None = None

    @property
    def parameters(self) -> Vector:
        """The trained model; outside the mask it equals the base."""
        return self.outcome().parameters

    @property
    def delta(self) -> Vector:
        """How far the device moved from its own base."""
        return self.outcome().parameters - self.base_parameters

    @property
    def loss(self) -> float:
        """The mean training loss over the samples that the device trained on."""
        return self.outcome().loss

    @property
    def extras(self) -> Mapping[str, Plain]:
        """Figures of the algorithm's own that the device sends along."""
        return self.outcome().extras

    def bytes(self, layout: Layout) -> int:
        """How many bytes the update takes on a link."""
        return layout.bytes if self.mask is None else self.mask.bytes


class KnownOutcome(Struct, frozen=True, eq=False, gc=False):
    """An outcome that exists already: what `Update.outcome` is in a deployment, and after a checkpoint."""

    value: Outcome

    def __call__(self) -> Outcome:
        return self.value
