"""The arithmetic of what an order adds to the loss (`core.terms`): each term a short class, and what it remembers.

Terms whose gradient is known in closed form add it to the gradients (`pull`); the others are part of the loss that
autograd differentiates (`value`). A term of one's own is a subclass of `LossTerm`, named "module:Class".
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
    """What a term sees of the training that it is part of."""

    model: FlatModel
    """The model in training."""
    received: Vector
    """The model that came with the order."""
    memory: ReadOnlyMemory
    """What the device remembers of earlier trainings."""
    targets: Callable[[], Any]
    """The targets of all of the device's samples."""
    frozen_copy: Callable[[str, Vector], FlatModel]
    """A second model with these parameters, which is not trained; the first argument names it."""


class LossTerm:
    """One term in one training. The default adds nothing."""

    context: TermContext

    def begin(self) -> None:
        """Called once, when `context` is there."""

    def end(self) -> None:
        """Called once, when the training (or this stretch of it) is over."""

    def outputs(self, outputs: Any) -> Any:
        """The model's outputs as the task's loss sees them."""
        return outputs

    def value(self, batch: Batch, outputs: Any) -> torch.Tensor | None:
        """What is added to the loss of a batch, from the model's outputs; None: nothing."""
        return None

    def pull(self, gradients: Tensors, weights: Tensors, positions: Sequence[int] | None) -> Tensors:
        """The gradients of these parameters (None: of all) with what the term adds to them."""
        return gradients

    @classmethod
    def remember(
        cls, term: Any, memory: ReadOnlyMemory, received: Vector, trained: Vector, rates: float
    ) -> Mapping[str, Vector]:
        """What the device remembers after a training, beside what it remembers already.

        `rates` are the learning rates of all its steps, summed up.
        """
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
    """Adds -h + alpha (w - w_received) to the gradient; h begins as 0 and loses alpha (w - w_received) each training.

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
        """The vector h after this training."""
        before, moved = memory.get(cls.key), np.float32(term.alpha) * (trained - received)
        return {cls.key: frozen(before - moved if isinstance(before, np.ndarray) else -moved)}


class PastGradientsTerm(LossTerm):
    """h - v comes to the gradient; after a training h <- beta h + (1 - beta) v, and v is the training's mean gradient.

    The mean gradient is how far the model moved, over the learning rates of its steps, less h - v: exact for plain SGD.
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
        """h - v; None before a device's second training."""
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
        """The mean gradient of this training, and the moving average of those before it."""
        correction = cls._correction(memory)
        mean = (received - trained) / np.float32(rates)
        if correction is None:
            return {cls.last: frozen(mean), cls.earlier: frozen(np.zeros_like(mean))}
        last, earlier = memory[cls.last], memory[cls.earlier]
        assert isinstance(last, np.ndarray) and isinstance(earlier, np.ndarray)
        beta = np.float32(term.beta)
        return {cls.last: frozen(mean - correction), cls.earlier: frozen(beta * earlier + (1 - beta) * last)}


class ContrastiveTerm(LossTerm):
    """Adds -mu log(exp(s_r / t) / (exp(s_r / t) + exp(s_p / t))) to the loss, the mean over the batch.

    s_r and s_p are the cosines between the representation of the model in training and those of the received model and
    of the device's model of last time. The representation is what the last layer is given. In a device's first
    training there is no model of last time, and no term. Li, He, Song: *Model-Contrastive Federated Learning*, CVPR
    2021, eq. (3).
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
        """The trained model, which the next training is contrasted with."""
        return {cls.key: trained}


def _representation(model: FlatModel, batch: Batch) -> torch.Tensor:
    """What the last layer of a model that is not trained is given."""
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
    """Logits of classes that the device does not hold count as 0. Their rows of the last layer stay as they were."""

    def __init__(self, term: AbsentClasses) -> None:
        self.absent: npt.NDArray[np.bool_] = np.zeros(0, dtype=bool)

    def begin(self) -> None:
        model = self.context.model
        self.absent = absent_classes(model, self.context.targets())
        self._mask = torch.from_numpy(self.absent).to(model.torch_device)

    def outputs(self, outputs: Any) -> Any:
        return outputs.masked_fill(self._mask, 0.0)


def absent_classes(model: FlatModel, targets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which classes none of these targets is of."""
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
    """The arithmetic of a term."""
    return _own(term.name)(**term.settings) if isinstance(term, OwnTerm) else KINDS[type(term)](term)


def check_own_term(name: str, settings: Mapping[str, Setting]) -> None:
    """Raise InvalidInput if this is no term that can be made."""
    try:
        made = _own(name)(**settings)
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(f"local.terms: {name!r} cannot be made: {describe(error)}.") from error
    if not isinstance(made, LossTerm):
        raise InvalidInput(f"local.terms: {name!r} must be a subclass of offbeat.training.terms.LossTerm.")


def _own(name: str) -> Any:
    kind = resolve(name)
    if not callable(kind):
        raise InvalidInput(f"local.terms: {name!r} is a {type(kind).__name__}: it must be a class.")
    return kind


def remembered(
    order: Order, memory: ReadOnlyMemory, received: Vector, trained: Vector, rates: float
) -> dict[str, Vector]:
    """What the order's terms remember after a training."""
    found: dict[str, Vector] = {}
    for term in order.terms:
        kind: Any = _own(term.name) if isinstance(term, OwnTerm) else KINDS[type(term)]
        found |= kind.remember(term, memory, received, trained, rates)
    return found


def with_rows_of(before: Vector, absent: npt.NDArray[np.bool_], after: Vector, layout: Layout) -> Vector:
    """A vector whose rows of the last layer are, for these classes, as they were before."""
    parameters = after.copy()
    for entry in layout.head:
        rows = parameters[entry.span].reshape(entry.shape)
        rows[absent] = before[entry.span].reshape(entry.shape)[absent]
    return frozen(parameters)
