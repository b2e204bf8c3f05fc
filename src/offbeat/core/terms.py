"""The terms that an order adds to the loss, as plain data; `training.terms` computes them."""

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct, convert, field, structs

from offbeat.core.errors import InvalidInput, unknown

Setting = bool | int | float | str


class Proximal(Struct, frozen=True, kw_only=True, gc=False, tag="proximal"):
    """The proximal term of FedProx: mu/2 ||w - w_received||^2."""

    remembers: ClassVar[bool] = False
    mu: float


class LinearQuadratic(Struct, frozen=True, kw_only=True, gc=False, tag="linear-quadratic"):
    """The terms of FedDyn: -<h, w> + alpha/2 ||w - w_received||^2, and h <- h - alpha (w - w_received) afterwards."""

    remembers: ClassVar[bool] = True
    alpha: float


class PastGradients(Struct, frozen=True, kw_only=True, gc=False, tag="past-gradients"):
    """The term of ASO-Fed: <h - v, w>, with v the previous mean gradient and h a moving average of earlier ones."""

    remembers: ClassVar[bool] = True
    beta: float


class Contrastive(Struct, frozen=True, kw_only=True, gc=False, tag="contrastive"):
    """The model-contrastive loss of MOON, from the received model and the device's previous local model."""

    remembers: ClassVar[bool] = True
    mu: float = 1.0
    temperature: float = 0.5


class Distillation(Struct, frozen=True, kw_only=True, gc=False, tag="distillation"):
    """Distillation of the received model's outputs: weight T^2 KL(softmax(received / T) || softmax(local / T))."""

    remembers: ClassVar[bool] = False
    weight: float = 1.0
    temperature: float = 2.0


class AbsentClasses(Struct, frozen=True, kw_only=True, gc=False, tag="absent-classes"):
    """Logits of classes that the device does not hold count as 0; their rows of the last layer do not change."""

    remembers: ClassVar[bool] = False


class OwnTerm(Struct, frozen=True, kw_only=True, gc=False, tag="own"):
    """A term of the user: "module:Class", called with the settings."""

    remembers: ClassVar[bool] = True
    name: str
    settings: Mapping[str, Setting] = field(default_factory=dict)


Term = Proximal | LinearQuadratic | PastGradients | Contrastive | Distillation | AbsentClasses | OwnTerm
TERMS: tuple[type[Term], ...] = (
    Proximal,
    LinearQuadratic,
    PastGradients,
    Contrastive,
    Distillation,
    AbsentClasses,
    OwnTerm,
)
NAMED = {str(term.__struct_config__.tag): term for term in TERMS if term is not OwnTerm}


def term_of_table(index: int, table: Mapping[str, Any]) -> Term:
    """Convert entry `index` of `local.terms` to a term; raises InvalidInput if the table is wrong."""
    where, name = f"local.terms[{index}]", table.get("name")
    if not isinstance(name, str):
        raise InvalidInput(f'{where}.name is missing: one of {", ".join(NAMED)}, or your own as "module:Class"')
    settings = {key: value for key, value in table.items() if key != "name"}
    if ":" in name:
        return OwnTerm(name=name, settings=settings)
    if name not in NAMED:
        raise unknown("loss term", name, NAMED)
    strange = settings.keys() - set(NAMED[name].__struct_fields__)
    if strange:
        known = ", ".join(NAMED[name].__struct_fields__) or "none"
        raise InvalidInput(f"unknown key '{where}.{min(strange)}': the term {name!r} has {known}")
    for each in structs.fields(NAMED[name]):
        if each.required and each.name not in settings:
            raise InvalidInput(f"{where}.{each.name} is missing: the term {name!r} needs it")
    for key, value in settings.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InvalidInput(f"{where}.{key} = {value!r}: must be a number")
        least = 1e-6 if key == "temperature" else 0.0
        if not least <= value <= 1e6:
            raise InvalidInput(f"{where}.{key} = {value}: must be from {least:g} to 1e6")
    return convert({"type": name} | settings, NAMED[name])
