"""What is added to the loss of a local training, as data in the order; `training.terms` computes it."""

from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct, field

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
    """The term of ASO-Fed: <h - v, w>, with v the mean gradient of last time and h a moving average of earlier ones."""

    remembers: ClassVar[bool] = True
    beta: float


class Contrastive(Struct, frozen=True, kw_only=True, gc=False, tag="contrastive"):
    """The model-contrastive loss of MOON, from the received model and the device's model of last time."""

    remembers: ClassVar[bool] = True
    mu: float = 1.0
    temperature: float = 0.5


class Distillation(Struct, frozen=True, kw_only=True, gc=False, tag="distillation"):
    """Distillation of the received model's outputs: weight T^2 KL(softmax(received / T) || softmax(local / T))."""

    remembers: ClassVar[bool] = False
    weight: float = 1.0
    temperature: float = 2.0


class AbsentClasses(Struct, frozen=True, kw_only=True, gc=False, tag="absent-classes"):
    """Logits of classes that the device does not hold count as 0; their rows of the last layer stay as they were."""

    remembers: ClassVar[bool] = False


class OwnTerm(Struct, frozen=True, kw_only=True, gc=False, tag="own"):
    """A term of the user's: "module:Class", called with the settings."""

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
