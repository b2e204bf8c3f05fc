"""The `[local]` table: what a device does with an order."""

from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field, model_validator

from offbeat.core.errors import InvalidInput, unknown
from offbeat.core.orders import LocalWork, Over, Shape
from offbeat.core.settings import Settings
from offbeat.core.terms import TERMS, OwnTerm, Term
from offbeat.experiment.tables import Table

OPTIMISERS = ("sgd", "adam", "adamw", "rmsprop")
Share = Annotated[float, Field(gt=0, le=1)]
Length = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NAMES = {str(term.__struct_config__.tag): term for term in TERMS if term is not OwnTerm}


class LocalTable(Settings):
    """What a device does with an order."""

    epochs: Annotated[int, Field(ge=1, le=100_000)] = 5
    """Passes over the device's data."""
    batch_size: Annotated[int, Field(ge=0)] = 32
    """Samples in a step; 0: all of the device's."""
    learning_rate: Annotated[float, Field(gt=0, le=1e6)] = 0.03
    optimiser: str = "sgd"
    """sgd, adam, adamw, rmsprop, or a torch optimiser of your own as "module:Class"."""
    keep_optimiser_state: bool = False
    """Go on with the state (momentum, moments) that the device's last training left, instead of starting anew."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    clip_norm: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Gradients that are longer than this are shortened to it; 0: none is."""
    learning_rate_decay: Share = 1.0
    """By which factor the schedule makes the learning rate smaller (cosine: its final share)."""
    decay_every: Annotated[int, Field(ge=1)] | Length = 1
    """The pace of the schedule: the rate decays once in so many versions (or what the schedule runs over)."""
    schedule: Shape = "exponential"
    """exponential: times `learning_rate_decay` every `decay_every`; inverse: divided by 1 + version / `decay_every`;
    step: times `learning_rate_decay` at each of `milestones`; cosine: down to it over `decay_every`; constant."""
    schedule_over: Over = "versions"
    """What the schedule runs over: versions, updates used, seconds (time), or the steps of each training."""
    milestones: list[Length] = Field([])
    """Where the schedule "step" takes its steps."""
    warmup: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """The learning rate rises linearly over so many versions (or what the schedule runs over)."""
    prox: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """mu of a proximal term mu/2 ||w - w_start||^2 in the loss, under every algorithm (default: what the algorithm has
    by itself: FedAsync, FedProx and ASO-Fed have one)."""
    terms: list[Table] = Field([])
    """What is added to the loss, a table each: proximal, linear-quadratic, contrastive, distillation, absent-classes,
    or your own as name = "module:Class", with its settings."""

    @model_validator(mode="after")
    def _check(self) -> "LocalTable":
        if ":" not in self.optimiser and self.optimiser not in OPTIMISERS:
            raise unknown("optimiser", self.optimiser, OPTIMISERS)
        if self.momentum and self.optimiser in ("adam", "adamw"):
            raise InvalidInput(
                f"local.momentum = {self.momentum}: {self.optimiser} has moments of its own, leave it out"
            )
        if self.schedule == "step" and not self.milestones:
            raise InvalidInput('local.schedule = "step": say in local.milestones where the steps are')
        _ = self.loss_terms
        return self

    @property
    def first_decay(self) -> float | None:
        """Where on its axis a schedule that goes by steps takes the first one; None if this one does not."""
        if self.learning_rate_decay == 1.0:
            return None
        steps = {"exponential": self.decay_every, "step": min(self.milestones, default=None)}
        return steps.get(self.schedule)

    @property
    def loss_terms(self) -> tuple[Term, ...]:
        """The terms that are added to the loss."""
        return tuple(term_of_table(place, table) for place, table in enumerate(self.terms))

    def build(self, buffers: Literal["average", "local", "ignore"] = "average") -> LocalWork:
        """The local work that these settings describe."""
        changes: dict[str, Any] = {
            "batch_size": self.batch_size or None,
            "terms": self.loss_terms,
            "milestones": tuple(self.milestones),
            "buffers": buffers,
        }
        return LocalWork(**(self.model_dump() | changes))


def term_of_table(place: int, table: Table) -> Term:
    """The term that a table describes; InvalidInput with one sentence about a mistake in it."""
    where, name = f"local.terms[{place}]", table.get("name")
    if not isinstance(name, str):
        raise InvalidInput(f'{where}.name is missing: one of {", ".join(NAMES)}, or your own as "module:Class"')
    settings = {key: value for key, value in table.items() if key != "name"}
    if ":" in name:
        return OwnTerm(name=name, settings=settings)
    if name not in NAMES:
        raise unknown("loss term", name, NAMES)
    strange = settings.keys() - set(NAMES[name].__struct_fields__)
    if strange:
        known = ", ".join(NAMES[name].__struct_fields__) or "none"
        raise InvalidInput(f"unknown key '{where}.{min(strange)}': the term {name!r} has {known}")
    for field in msgspec.structs.fields(NAMES[name]):
        if field.required and field.name not in settings:
            raise InvalidInput(f"{where}.{field.name} is missing: the term {name!r} needs it")
    for key, value in settings.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InvalidInput(f"{where}.{key} = {value!r}: must be a number")
        least = 1e-6 if key == "temperature" else 0.0
        if not least <= value <= 1e6:
            raise InvalidInput(f"{where}.{key} = {value}: must be from {least:g} to 1e6")
    return msgspec.convert({"type": name} | settings, NAMES[name])
