"""What crosses between server and device: orders go out, updates come back. Plain data, complete when born.

Records that are made for every single thing that happens, here and in `events`, `actions` and `effects`, are msgspec
structs: frozen, slotted and keyword-only like dataclasses, and ten times cheaper to make. Plain data cannot be part of
a cycle, so the garbage collector is not told about it (`gc=False`): with thousands of orders in flight it would look at
the same records again and again.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from offbeat.core.parameters import Layout, Mask, Vector

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
    prox: float = 0.0
    """mu of the proximal term mu/2 ||w - w_base||^2."""
    budget: float | None = None
    """Seconds of the device's own clock for training; what is done by then is uploaded."""
    width: float = 1.0
    """Share of each layer's width that the device trains."""
    partial: bool = True
    """Whether to deliver what is done when the budget is used up; else an unfinished run delivers nothing."""
    masked_loss: bool = False
    """Whether the loss sees the logits of classes that the device does not hold as 0."""
    rule: str = "plain"
    """The device half of the algorithm, by its name in the registry of device rules."""
    arguments: Mapping[str, Plain] = field(default_factory=dict)
    """What that rule needs to know."""


class LocalWork(Struct, frozen=True, kw_only=True):
    """The local work that an experiment asks of its devices, from which policies make their orders."""

    epochs: int = 1
    batch_size: int | None = 32
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    learning_rate_decay: float = 1.0
    decay_every: int = 1
    schedule: Literal["exponential", "inverse"] = "exponential"
    prox: float | None = None
    """mu of the proximal term; None: whatever the algorithm has by itself."""

    def rate(self, version: int) -> float:
        """The learning rate at this version.

        "exponential": it shrinks by `learning_rate_decay` every `decay_every` versions; "inverse": it is divided by
        1 + version / `decay_every`.

        >>> LocalWork(learning_rate=0.75, schedule="inverse").rate(2)
        0.25
        """
        if self.schedule == "inverse":
            return self.learning_rate / (1.0 + version / self.decay_every)
        return self.learning_rate * self.learning_rate_decay ** (version // self.decay_every)

    def order(self, version: int, **changes: Any) -> Order:
        """An order at this version."""
        plain = Order(
            slices=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.rate(version),
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            prox=self.prox or 0.0,
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
        return self.outcome().loss

    @property
    def extras(self) -> Mapping[str, Plain]:
        return self.outcome().extras

    def bytes(self, layout: Layout) -> int:
        """What it weighs on the wire."""
        return layout.bytes if self.mask is None else self.mask.bytes


class KnownOutcome(Struct, frozen=True, eq=False, gc=False):
    """An outcome that exists already: what `Update.outcome` is in a deployment, and after a checkpoint."""

    value: Outcome

    def __call__(self) -> Outcome:
        return self.value
