"""Orders go out to devices and updates come back: plain data, complete when made.

`LocalWork` is the `[local]` table of an experiment, from which orders are made. Everything that is made per order or
per event, here and in `core.messages`, is a msgspec struct: frozen, slotted and keyword-only like a dataclass, but ten
times cheaper to make. Such a struct cannot be part of a reference cycle, so the garbage collector skips it
(`gc=False`): with thousands of orders in flight every collection would visit them all.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from math import cos, pi
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from offbeat.core.errors import InvalidInput, PolicyError, unknown
from offbeat.core.parameters import Layout, Mask, Vector, by_block, frozen
from offbeat.core.settings import Settings
from offbeat.core.terms import AbsentClasses, Proximal, Term, term_of_table

Over = Literal["versions", "updates", "time", "steps"]
Shape = Literal["constant", "exponential", "inverse", "step", "cosine"]
Unit = Literal["epoch", "step", "layer"]


class RateSchedule(Struct, frozen=True, kw_only=True, gc=False):
    """A learning-rate schedule: a factor by version, number of updates, seconds or step."""

    shape: Shape = "constant"
    over: Over = "versions"
    decay: float = 1.0
    every: float = 1
    milestones: tuple[float, ...] = ()
    warmup: float = 0

    @property
    def constant(self) -> bool:
        """Whether the factor is always 1."""
        return not self.warmup and (self.shape == "constant" or (self.shape != "inverse" and self.decay == 1.0))

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
        """The learning rate at a moment; `base` is the initial one."""
        if self.shape == "inverse" and not self.warmup:
            return base / (1.0 + moment / self.every)
        return base * self.factor(moment)


Plain = bool | int | float | str
"""Values that an order's arguments and an update's extras may hold."""


class Order(Struct, frozen=True, kw_only=True, gc=False):
    """What a device is told to do with the version of the model that comes with it."""

    slices: int = 1
    """Number of slices, between which the device may ask for a newer version, be stopped or run out of time."""
    unit: Unit = "epoch"
    """A slice is one pass over the device's data, one optimiser step, or one layer of the backward pass. Steps go
    through the same batches as epochs."""
    batch_size: int | None = 32
    """Samples in a step; None: all of the device's."""
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimiser: str = "sgd"
    """sgd, polyak, adam, adamw, rmsprop, or a torch optimiser of the user as "module:Class"."""
    keep_optimiser_state: bool = False
    """Whether the optimiser continues with its state after the device's previous training."""
    clip_norm: float = 0.0
    """Clip gradients to this norm; 0: no clipping."""
    example_clip: float = 0.0
    """C of example-level privacy: clip the gradient of each example to this norm and add noise; 0: none."""
    example_noise: float = 0.0
    """z of example-level privacy: the standard deviation of that noise in units of C."""
    squared_loss: bool = False
    """Whether the update also reports the mean squared training loss (`Outcome.squared_loss`)."""
    schedule: RateSchedule | None = None
    """Learning-rate schedule over the steps of this training; None: a constant rate."""
    terms: tuple[Term, ...] = ()
    """Terms that are added to the loss."""
    buffers: Literal["average", "local", "ignore"] = "average"
    """Running statistics: averaged with the model, kept on the device, or left unchanged."""
    budget: float | None = None
    """Most seconds of training by the device's clock; what is done by then is uploaded."""
    width: float = 1.0
    """Share of each layer's width that the device trains."""
    partial: bool = True
    """Whether an unfinished run is uploaded when the budget is used up; otherwise its update carries nothing."""
    drops_unfinished: bool = False
    """Whether a stop notice makes the device drop its current slice and upload at once. A device that has completed no
    slice completes its first."""
    rule: str = "plain"
    """The device half of the algorithm, by its name in the registry of device rules."""
    arguments: Mapping[str, Plain] = field(default_factory=dict)
    """Arguments of the rule."""

    @property
    def prox(self) -> float:
        """The sum of mu over the proximal terms."""
        return sum((term.mu for term in self.terms if isinstance(term, Proximal)), 0.0) if self.terms else 0.0

    @property
    def masks_absent_classes(self) -> bool:
        """Whether logits of classes that the device does not hold count as 0."""
        return any(isinstance(term, AbsentClasses) for term in self.terms)

    def summed_rate(self, steps: int) -> float:
        """The sum of the learning rates of the first steps."""
        if self.schedule is None:
            return self.learning_rate * steps
        return sum(self.schedule.rate(self.learning_rate, step) for step in range(steps))

    def mean_rate(self, steps: int) -> float:
        """The mean learning rate of the first steps, of which there is at least one.

        >>> Order(learning_rate=1.0, schedule=RateSchedule(shape="inverse", over="steps")).mean_rate(2)  # 1 and 1/2
        0.75
        """
        return self.learning_rate if self.schedule is None else self.summed_rate(max(steps, 1)) / max(steps, 1)

    @property
    def remembers(self) -> bool:
        """Whether the device's next training depends on this one by more than the model."""
        if self.keep_optimiser_state or self.buffers == "local":
            return True
        return bool(self.terms) and any(term.remembers for term in self.terms)


OPTIMISERS = ("sgd", "polyak", "adam", "adamw", "rmsprop")
STEP_SIZE = ("learning_rate", "optimiser")
"""The settings of `[local]` that have other defaults with polyak."""
POLYAK_RATE = 0.1
"""The default learning rate with polyak."""
Length = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class LocalWork(Settings):
    """The `[local]` table: the training that an experiment asks of its devices, from which policies make orders."""

    epochs: Annotated[int, Field(ge=1, le=100_000)] = 5
    """Passes over the device's data."""
    steps: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Optimiser steps instead of epochs: the same number on every device, whatever the size of its data."""
    batch_size: Annotated[int, Field(ge=0)] = 32
    """Samples in a step; 0: all of the device's."""
    learning_rate: Annotated[float, Field(gt=0, le=1e6)] = 0.03
    """Learning rate on the devices, before the schedule (default with polyak: 0.1)."""
    optimiser: str = "sgd"
    """sgd; polyak: SGD with a step size from loss and gradient, which needs no tuning (`learning_rate` bounds the first
    step only); adam, adamw, rmsprop, or a torch optimiser of your own as "module:Class". Default: polyak for
    classification without a learning rate, momentum, schedule or clipping; otherwise sgd."""
    keep_optimiser_state: bool = False
    """Continue with the optimiser state (momentum, moments) of the device's previous training instead of a new one."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of sgd and rmsprop."""
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Weight decay of the optimiser (L2; decoupled in adamw)."""
    clip_norm: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Clip gradients to this norm; 0: no clipping."""
    learning_rate_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Decay factor of the schedule (cosine: the final factor)."""
    decay_every: Annotated[int, Field(ge=1)] | Length = 1
    """Decay period of the schedule, in versions or in the unit of `schedule_over`."""
    schedule: Shape = "exponential"
    """exponential: times `learning_rate_decay` every `decay_every`; inverse: divided by 1 + version / `decay_every`;
    step: times `learning_rate_decay` at each of `milestones`; cosine: down to it over `decay_every`; constant."""
    schedule_over: Over = "versions"
    """What the schedule runs over: versions, updates used, seconds (time), or the steps of each training."""
    milestones: list[Length] = Field([])
    """Where the schedule "step" decays the learning rate."""
    warmup: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Length of a linear warm-up of the learning rate, in versions or in the unit of `schedule_over`."""
    prox: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """mu of a proximal term mu/2 ||w - w_start||^2 in the loss, under every algorithm (default: the algorithm's own:
    FedAsync, FedProx and ASO-Fed have one)."""
    terms: list[dict[str, Any]] = Field([])
    """Terms that are added to the loss, a table each: proximal, linear-quadratic, contrastive, distillation,
    absent-classes, or your own as name = "module:Class", with its settings."""

    @model_validator(mode="after")
    def _check(self) -> "LocalWork":
        if self.steps is not None and "epochs" in self.model_fields_set:
            raise InvalidInput(f"local.epochs = {self.epochs} and local.steps = {self.steps}: give one of them")
        if ":" not in self.optimiser and self.optimiser not in OPTIMISERS:
            raise unknown("optimiser", self.optimiser, OPTIMISERS)
        if self.momentum and self.optimiser in ("adam", "adamw"):
            raise InvalidInput(f"local.momentum = {self.momentum}: {self.optimiser} has its own moments; omit it")
        if self.optimiser == "polyak" and self.momentum:
            raise InvalidInput(f"local.momentum = {self.momentum}: polyak takes steps without momentum; omit it")
        if self.optimiser == "polyak" and not self.rates.constant:
            raise InvalidInput("polyak sets the rate of each step itself: omit local.schedule and its settings")
        if self.schedule == "step" and not self.milestones:
            raise InvalidInput('local.schedule = "step": set local.milestones to the points at which the rate drops')
        _ = self.loss_terms
        return self

    @model_serializer(mode="wrap")
    def _without_unused_epochs(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        table: dict[str, Any] = written(self)
        if self.steps is not None:
            table.pop("epochs", None)
        return table

    @property
    def open_step_size(self) -> list[str]:
        """The settings of the step size that were not given."""
        return [name for name in STEP_SIZE if name not in self.model_fields_set]

    def with_step_size(self, falls_to_zero: bool) -> "LocalWork":
        """Choose polyak if the step size is open and the loss can fall to 0; give polyak its default rate.

        >>> LocalWork(epochs=2).with_step_size(True).optimiser, LocalWork(momentum=0.9).with_step_size(True).optimiser
        ('polyak', 'sgd')
        """
        unscheduled = self.rates.constant and not (self.momentum or self.clip_norm)
        chosen: dict[str, Any] = {}
        if falls_to_zero and unscheduled and len(self.open_step_size) == len(STEP_SIZE):
            chosen["optimiser"] = "polyak"
        if "learning_rate" in self.open_step_size and chosen.get("optimiser", self.optimiser) == "polyak":
            chosen["learning_rate"] = POLYAK_RATE
        if not chosen:
            return self
        return LocalWork.model_construct(_fields_set=self.model_fields_set, **(dict(self) | chosen))

    @property
    def unit(self) -> Unit:
        """The unit of `slices`."""
        return "epoch" if self.steps is None else "step"

    @property
    def slices(self) -> int:
        """The epochs or steps of an order."""
        return self.epochs if self.steps is None else self.steps

    @cached_property
    def loss_terms(self) -> tuple[Term, ...]:
        """The terms that are added to the loss."""
        return tuple(term_of_table(index, table) for index, table in enumerate(self.terms))

    @cached_property
    def rates(self) -> RateSchedule:
        """The learning-rate schedule."""
        return RateSchedule(
            shape=self.schedule,
            over=self.schedule_over,
            decay=self.learning_rate_decay,
            every=self.decay_every,
            milestones=tuple(self.milestones),
            warmup=self.warmup,
        )

    @property
    def first_decay(self) -> float | None:
        """Where a schedule that decays in steps decays first; None if this one does not."""
        if self.learning_rate_decay == 1.0:
            return None
        steps = {"exponential": self.decay_every, "step": min(self.milestones, default=None)}
        return steps.get(self.schedule)

    def rate(self, moment: float) -> float:
        """The learning rate at a moment: a version, or a value of what the schedule runs over.

        >>> LocalWork(learning_rate=0.75, schedule="inverse").rate(2)
        0.25
        """
        return self.rates.rate(self.learning_rate, moment)

    def moment(self, *, version: int, updates: int, time: float) -> float:
        """Where a run is on the axis of the schedule; 0 if that is the steps of each training."""
        match self.schedule_over:
            case "versions":
                return version
            case "updates":
                return updates
            case "time":
                return time
        return 0

    @cached_property
    def _first_order(self) -> Order:
        """The order that these settings give before anything is scheduled or changed."""
        shared = {name: getattr(self, name) for name in Order.__struct_fields__ if name in LocalWork.model_fields}
        own = {
            "slices": self.slices,
            "unit": self.unit,
            "batch_size": self.batch_size or None,
            "schedule": self.rates if self.schedule_over == "steps" else None,
            "terms": self.loss_terms,
        }
        return Order(**(shared | own))

    def order(self, moment: float, terms: tuple[Term, ...] = (), **changes: Any) -> Order:
        """An order at this moment with some fields changed.

        `terms` are the algorithm's loss terms. They follow the experiment's, and `prox` replaces their proximal one.
        """
        if self.prox is not None:
            kept = tuple(term for term in terms if not isinstance(term, Proximal))
            terms = ((Proximal(mu=self.prox),) if self.prox else ()) + kept
        fields: dict[str, Any] = {"terms": self.loss_terms + terms}
        if self.schedule_over != "steps":
            fields["learning_rate"] = self.rate(moment)
        return replace(self._first_order, **(fields | changes))


class Progress(Struct, frozen=True, kw_only=True, gc=False):
    """Progress of a local run."""

    slices: int = 0
    steps: int = 0
    seconds: float = 0.0


class Outcome(Struct, frozen=True, kw_only=True, gc=False):
    """The result of a local run."""

    parameters: Vector
    loss: float = float("nan")
    """Mean training loss over the samples trained on."""
    squared_loss: float = float("nan")
    """Mean of the squared training losses of single samples, if the order asks for it."""
    extras: Mapping[str, Plain] = field(default_factory=dict)


class Update(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """What a device uploads for an order. In a simulation its parameters are computed when they are first read."""

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
        """The trained model; it equals the base outside the mask."""
        return self.outcome().parameters

    @property
    def delta(self) -> Vector:
        """The trained model minus its base."""
        return self.outcome().parameters - self.base_parameters

    @property
    def loss(self) -> float:
        """Mean training loss over the samples trained on."""
        return self.outcome().loss

    @property
    def extras(self) -> Mapping[str, Plain]:
        """Values that the device half of the algorithm adds to the update."""
        return self.outcome().extras

    def bytes(self, layout: Layout) -> int:
        """Bytes of the update on a link."""
        return layout.bytes if self.mask is None else self.mask.bytes


class KnownOutcome(Struct, frozen=True, eq=False, gc=False):
    """An outcome that is already computed: `Update.outcome` in a deployment and after a checkpoint."""

    value: Outcome

    def __call__(self) -> Outcome:
        return self.value


class ScaledOutcome(Struct, eq=False, gc=False):
    """An outcome whose movement from its base counts by a factor: the model is scaled when it is first read."""

    whole: Callable[[], Outcome]
    base: Vector
    factor: float
    _made: Outcome | None = None

    def __call__(self) -> Outcome:
        if self._made is None:
            outcome, base, share = self.whole(), self.base, np.float32(self.factor)
            model = outcome.parameters
            made = by_block(len(base), lambda block: base[block] + share * (model[block] - base[block]))
            self._made = replace(outcome, parameters=frozen(made))
        return self._made


class WithheldOutcome(Struct, frozen=True, eq=False, gc=False):
    """The outcome of an update that was added to a sum when it arrived (`core.sums`) and cannot be read again."""

    def __call__(self) -> Outcome:
        raise PolicyError("with trust.sums_only = true a policy cannot read a single update, only their sum")
