"""The arithmetic of the loss terms of an order (`core.terms`), one class each, and what they remember.

Terms with a closed-form gradient add it to the gradients (`pull`); the others are added to the loss that autograd
differentiates (`value`). A user's own term is a subclass of `LossTerm`, named "module:Class".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order
from offbeat.core.parameters import Layout, Vector, frozen
from offbeat.core.policy import ReadOnlyMemory
from offbeat.core.terms import (
    AbsentClasses,
    Contrastive,
    Distillation,
    LinearQuadratic,
    OwnTerm,
    PastGradients,
    Proximal,
    Setting,
    Term,
)
from offbeat.models import called
from offbeat.models.flat import FlatModel, Tensors
from offbeat.references import describe, resolve
from offbeat.training.tasks import Batch


@dataclass(frozen=True, kw_only=True, eq=False)
class TermContext:
    """What a term can use of the training that it is part of."""

    model: FlatModel
    """The model in training."""
    received: Vector
    """The parameters that came with the order."""
    memory: ReadOnlyMemory
    """The device's memory of earlier orders."""
    targets: Callable[[], Any]
    """The targets of all of the device's samples."""
    frozen_copy: Callable[[str, Vector], FlatModel]
    """Returns a copy of the model with these parameters that is not trained; the first argument names the copy."""


class LossTerm:
    """A term of the loss in one job; the base class adds nothing."""

    context: TermContext

    def begin(self) -> None:
        """Called once, after `context` is set."""

    def end(self) -> None:
        """Called once, after the job."""

    def outputs(self, outputs: Any) -> Any:
        """The outputs that the task's loss sees, from those of the model."""
        return outputs

    def value(self, batch: Batch, outputs: Any) -> torch.Tensor | None:
        """The value to add to the loss of a batch, from the model's outputs; None: nothing."""
        return None

    def pull(self, gradients: Tensors, weights: Tensors, positions: Sequence[int] | None) -> Tensors:
        """The gradients of the parameters at these positions (None: of all) plus those of the term."""
        return gradients

    @classmethod
    def remember(
        cls, term: Any, memory: ReadOnlyMemory, received: Vector, trained: Vector, rates: float
    ) -> Mapping[str, Vector]:
        """What to add to the device's memory after an order; `rates` is the sum of the learning rates of its steps."""
        return {}


def _part(tensors: Tensors, positions: Sequence[int] | None) -> Tensors:
    return tensors if positions is None else tuple(tensors[position] for position in positions)


class ProximalTerm(LossTerm):
    """Adds mu (w - w_received) to the gradient."""

    def __init__(self, term: Proximal) -> None:
        self._mu = term.mu

    def begin(self) -> None:
        self._anchor = self.context.model.views(self.context.received.copy())

    def pull(self, gradients: Tensors, weights: Tensors, positions: Sequence[int] | None) -> Tensors:
        distance = torch._foreach_sub(weights, _part(self._anchor, positions))
        return tuple(torch._foreach_add(gradients, distance, alpha=self._mu))


class LinearQuadraticTerm(LossTerm):
    """Adds -h + alpha (w - w_received) to the gradient; after an order h <- h - alpha (w - w_received), from h = 0.

    Acar et al.: *Federated Learning Based on Dynamic Regularization*, ICLR 2021, algorithm 1.
    """

    key: ClassVar[str] = "linear-quadratic h"

    def __init__(self, term: LinearQuadratic) -> None:
        self._alpha = term.alpha

    def begin(self) -> None:
        model, linear = self.context.model, self.context.memory.get(self.key)
        self._anchor = model.views(self.context.received.copy())
        self._linear = model.views(linear.copy()) if isinstance(linear, np.ndarray) else None

    def pull(self, gradients: Tensors, weights: Tensors, positions: Sequence[int] | None) -> Tensors:
        distance = torch._foreach_sub(weights, _part(self._anchor, positions))
        gradients = tuple(torch._foreach_add(gradients, distance, alpha=self._alpha))
        if self._linear is None:
            return gradients
        return tuple(torch._foreach_sub(gradients, _part(self._linear, positions)))

    @classmethod
    def remember(
        cls, term: LinearQuadratic, memory: ReadOnlyMemory, received: Vector, trained: Vector, rates: float
    ) -> Mapping[str, Vector]:
        """The vector h after this order."""
        before, moved = memory.get(cls.key), np.float32(term.alpha) * (trained - received)
        return {cls.key: frozen(before - moved if isinstance(before, np.ndarray) else -moved)}


class PastGradientsTerm(LossTerm):
    """Adds h - v to the gradient; after an order h <- beta h + (1 - beta) v, and v becomes the order's mean gradient.

    The mean gradient is the model's movement divided by the sum of learning rates, minus h - v: exact for plain SGD.
    """

    last: ClassVar[str] = "past-gradients v"
    earlier: ClassVar[str] = "past-gradients h"

    def __init__(self, term: PastGradients) -> None:
        self._term = term

    def begin(self) -> None:
        correction = self._correction(self.context.memory)
        self._added = None if correction is None else self.context.model.views(correction)

    @classmethod
    def _correction(cls, memory: ReadOnlyMemory) -> Vector | None:
        """h - v; None before a device's second order."""
        last, earlier = memory.get(cls.last), memory.get(cls.earlier)
        return earlier - last if isinstance(last, np.ndarray) and isinstance(earlier, np.ndarray) else None

    def pull(self, gradients: Tensors, weights: Tensors, positions: Sequence[int] | None) -> Tensors:
        if self._added is None:
            return gradients
        return tuple(torch._foreach_add(gradients, _part(self._added, positions)))

    @classmethod
    def remember(
        cls, term: PastGradients, memory: ReadOnlyMemory, received: Vector, trained: Vector, rates: float
    ) -> Mapping[str, Vector]:
        """The mean gradient of this order, and the moving average of the earlier ones."""
        correction = cls._correction(memory)
        rate = np.float32(rates)  # 0 if it underflows: nothing moved, and nothing was measured
        mean = (received - trained) / rate if rate else np.zeros_like(received)
        if correction is None:
            return {cls.last: frozen(mean), cls.earlier: frozen(np.zeros_like(mean))}
        last, earlier = memory[cls.last], memory[cls.earlier]
        assert isinstance(last, np.ndarray) and isinstance(earlier, np.ndarray)
        beta = np.float32(term.beta)
        return {cls.last: frozen(mean - correction), cls.earlier: frozen(beta * earlier + (1 - beta) * last)}


class ContrastiveTerm(LossTerm):
    """Adds -mu log(exp(s_r / t) / (exp(s_r / t) + exp(s_p / t))) to the loss, the mean over the batch.

    s_r and s_p are the cosine similarities between the representation of the model in training and those of the
    received model and of the device's previous model. The representation is the input of the last layer. In a device's
    first order there is no previous model, and the term is 0. Li, He, Song: *Model-Contrastive Federated Learning*,
    CVPR 2021, eq. (3).
    """

    key: ClassVar[str] = "contrastive last model"

    def __init__(self, term: Contrastive) -> None:
        self._term = term

    def begin(self) -> None:
        last = self.context.memory.get(self.key)
        self._hook = None
        if not isinstance(last, np.ndarray):
            return
        self._seen: list[torch.Tensor] = []
        self._models = [
            self.context.frozen_copy("received", self.context.received),
            self.context.frozen_copy("last", last),
        ]
        self._hook = self.context.model.head_module().register_forward_pre_hook(self._see)

    def _see(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._seen[:] = [inputs[0]]

    def end(self) -> None:
        if self._hook is not None:
            self._hook.remove()

    def value(self, batch: Batch, outputs: Any) -> torch.Tensor | None:
        if self._hook is None:
            return None
        own = self._seen[0].flatten(1)
        near, far = (functional.cosine_similarity(own, _representation(model, batch)) for model in self._models)
        logits = torch.stack([near, far], dim=1) / self._term.temperature
        first = torch.zeros(len(own), dtype=torch.int64, device=own.device)
        return self._term.mu * functional.cross_entropy(logits, first)

    @classmethod
    def remember(
        cls, term: Contrastive, memory: ReadOnlyMemory, received: Vector, trained: Vector, rates: float
    ) -> Mapping[str, Vector]:
        """The trained model, which is the next order's previous model."""
        return {cls.key: trained}


def _representation(model: FlatModel, batch: Batch) -> torch.Tensor:
    """The input of the last layer of a model that is not trained."""
    seen: list[torch.Tensor] = []
    hook = model.head_module().register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    try:
        with torch.no_grad():
            called(model.module, batch.x)
    finally:
        hook.remove()
    return seen[-1].flatten(1)


class DistillationTerm(LossTerm):
    """Adds weight T^2 KL(softmax(received / T) || softmax(local / T)) to the loss, the mean over the batch.

    Hinton, Vinyals, Dean: *Distilling the Knowledge in a Neural Network*, 2015.
    """

    def __init__(self, term: Distillation) -> None:
        self._term = term

    def begin(self) -> None:
        self._teacher = self.context.frozen_copy("received", self.context.received)

    def value(self, batch: Batch, outputs: Any) -> torch.Tensor | None:
        heat, classes = self._term.temperature, outputs.shape[-1]
        with torch.no_grad():
            wanted = functional.log_softmax(called(self._teacher.module, batch.x).view(-1, classes) / heat, dim=1)
        given = functional.log_softmax(outputs.view(-1, classes) / heat, dim=1)
        divergence = functional.kl_div(given, wanted, reduction="batchmean", log_target=True)
        return self._term.weight * heat**2 * divergence


class AbsentClassesTerm(LossTerm):
    """Sets the logits of classes without samples on the device to 0; their rows of the last layer stay unchanged."""

    def __init__(self, term: AbsentClasses) -> None:
        self.absent: npt.NDArray[np.bool_] = np.zeros(0, dtype=bool)

    def begin(self) -> None:
        model = self.context.model
        self.absent = absent_classes(model, self.context.targets())
        self._mask = torch.from_numpy(self.absent).to(model.torch_device)

    def outputs(self, outputs: Any) -> Any:
        return outputs.masked_fill(self._mask, 0.0)


def absent_classes(model: FlatModel, targets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which classes do not occur in these targets."""
    absent = np.ones(model.head[0].shape[0], dtype=bool)
    absent[np.unique(targets)] = False
    return absent


KINDS: dict[type[Term], Callable[[Any], LossTerm]] = {
    Proximal: ProximalTerm,
    LinearQuadratic: LinearQuadraticTerm,
    PastGradients: PastGradientsTerm,
    Contrastive: ContrastiveTerm,
    Distillation: DistillationTerm,
    AbsentClasses: AbsentClassesTerm,
}


def term_of(term: Term) -> LossTerm:
    """The `LossTerm` of a term of an order."""
    return _own(term.name)(**term.settings) if isinstance(term, OwnTerm) else KINDS[type(term)](term)


def check_own_term(name: str, settings: Mapping[str, Setting]) -> None:
    """Raise InvalidInput if a user's own term cannot be created."""
    try:
        made = _own(name)(**settings)
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(f"local.terms: {name!r} cannot be created: {describe(error)}.") from error
    if not isinstance(made, LossTerm):
        raise InvalidInput(f"local.terms: {name!r} must be a subclass of offbeat.training.terms.LossTerm.")


def _own(name: str) -> Any:
    kind = resolve(name)
    if not callable(kind):
        raise InvalidInput(f"local.terms: {name!r} is a {type(kind).__name__}; it must be a class.")
    return kind


def remembered(
    order: Order, memory: ReadOnlyMemory, received: Vector, trained: Vector, rates: float
) -> dict[str, Vector]:
    """What the order's terms add to the device's memory after the order."""
    found: dict[str, Vector] = {}
    for term in order.terms:
        kind: Any = _own(term.name) if isinstance(term, OwnTerm) else KINDS[type(term)]
        found |= kind.remember(term, memory, received, trained, rates)
    return found


def with_rows_of(before: Vector, absent: npt.NDArray[np.bool_], after: Vector, layout: Layout) -> Vector:
    """The vector after training, with the rows of the last layer for absent classes as before."""
    parameters = after.copy()
    for entry in layout.head:
        rows = parameters[entry.span].reshape(entry.shape)
        rows[absent] = before[entry.span].reshape(entry.shape)[absent]
    return frozen(parameters)
