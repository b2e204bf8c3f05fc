"""What a training minimises, the task's loss and the terms of an order, and its gradients: whole or layer by layer."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from offbeat.core.errors import InvalidInput
from offbeat.models.flat import FlatModel, Tensors
from offbeat.training.tasks import Batch, Task
from offbeat.training.terms import LossTerm

Proceed = Callable[[int], bool]
"""Whether to continue after this many slices: by a plan in a simulation, by a clock on a real device."""


class _ModelSeenByTerms:
    """Wraps the model for the task's loss, so that terms see its outputs and may change what the loss sees."""

    def __init__(self, model: FlatModel, terms: Sequence[LossTerm]) -> None:
        self._module = model.module
        self._terms = terms
        self.outputs: Any = None
        self.shown: Any = None
        """The outputs as the loss sees them."""

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self.outputs = outputs = self._module(*inputs, **named)
        for term in self._terms:
            outputs = term.outputs(outputs)
        self.shown = outputs
        return outputs


class Objective:
    """The loss of one job: the task's loss plus the terms of the order."""

    def __init__(
        self,
        task: Task,
        model: FlatModel,
        terms: Sequence[LossTerm] = (),
        *,
        half: bool = False,
        squared: bool = False,
    ) -> None:
        """With `squared` it also sums the squared losses of single samples (`take_squared_sum`)."""
        self._task = task
        self._model = model
        self._terms = terms
        self._half = half
        self._pulling = [term for term in terms if type(term).pull is not LossTerm.pull]
        looking = [term for term in terms if type(term).outputs is not LossTerm.outputs]
        self._valued = [term for term in terms if type(term).value is not LossTerm.value]
        self._watched = _ModelSeenByTerms(model, looking) if looking or self._valued or squared else None
        self._squared = squared
        self._squared_sum = 0.0

    @property
    def pulls(self) -> bool:
        """Whether terms add to the gradients in closed form."""
        return bool(self._pulling)

    def pull(self, gradients: Tensors, weights: Tensors, positions: Sequence[int] | None) -> Tensors:
        """The gradients plus those of terms with a closed form."""
        for term in self._pulling:
            gradients = term.pull(gradients, weights, positions)
        return gradients

    def precision(self) -> AbstractContextManager[Any]:
        """The context for calls of the model: autocast to bfloat16 if requested; parameters stay float32."""
        return torch.autocast(self._model.torch_device.type, dtype=torch.bfloat16) if self._half else nullcontext()

    def loss(self, batch: Batch) -> tuple[torch.Tensor, float, torch.Tensor]:
        """The task's loss, the number of samples (or tokens) it averages, and the loss with all terms."""
        try:
            with self.precision():
                loss, size = self._task.loss(self._watched or self._model.module, batch)
                whole = loss
                for term in self._valued:
                    value = term.value(batch, self._watched.outputs if self._watched is not None else None)
                    whole = whole if value is None else whole + value
                if self._squared and self._watched is not None:
                    self._squared_sum += size * self._mean_squared(self._watched.shown, batch)
        except ValueError as error:
            if len(batch.y) > 1:
                raise
            # Batch normalisation needs a variance.
            raise InvalidInput(
                f"the model cannot train on a batch of one sample: change local.batch_size ({error})."
            ) from error
        return loss, size, whole

    def _mean_squared(self, outputs: Any, batch: Batch) -> float:
        with torch.no_grad():
            return float(self._task.sample_losses(outputs, batch.y).double().square().mean())

    def take_squared_sum(self) -> float:
        """The sum of squared losses, each batch weighted by its size, since the last call."""
        taken, self._squared_sum = self._squared_sum, 0.0
        return taken

    def gradients(self, batch: Batch) -> tuple[float, float, Tensors]:
        """The task's loss, the number of samples (or tokens) it averages, and the gradient with all terms."""
        loss, size, whole = self.loss(batch)
        # A parameter that the loss does not reach has a gradient of zero, not None.
        found = torch.autograd.grad(whole, self._model.parameters, allow_unused=True, materialize_grads=True)
        return loss.item(), size, found


class _Enough(Exception):
    """Ends a backward pass early."""


def backward(loss: torch.Tensor, layers: Sequence[Sequence[torch.Tensor]], proceed: Proceed) -> list[Tensors]:
    """Gradients of the last layers, last layer first, for as many layers as `proceed` allows; the rest is not computed.

    `layers` holds the parameters of each layer, from input to output, in the order in which the model uses them. A hook
    on every parameter counts complete layers, asks `proceed` after each, and ends the backward pass with an exception.
    A parameter that the loss does not reach has a gradient of zero, known only when the pass is over: until then its
    layer and those before it are incomplete.
    """
    parameters = [parameter for layer in layers for parameter in layer]
    missing = [len(layer) for layer in layers]
    gradients: dict[int, torch.Tensor] = {}
    delivered = 0

    def deliver() -> bool:
        """Count one more complete layer; returns whether to continue."""
        nonlocal delivered
        delivered += 1
        return proceed(delivered)

    def hook_of(position: int) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            gradients[id(parameter)] = _taken(parameter)
            missing[position] -= 1
            while delivered < len(layers) and not missing[len(layers) - 1 - delivered]:
                if not deliver() and delivered < len(layers):
                    raise _Enough

        return hook

    if not proceed(0):
        return []
    handles = [
        parameter.register_post_accumulate_grad_hook(hook_of(position))  # type: ignore[no-untyped-call]
        for position, layer in enumerate(layers)
        for parameter in layer
    ]
    try:
        torch.autograd.backward(loss, inputs=parameters)
        while delivered < len(layers) and deliver():
            pass  # a parameter without a gradient by now is not reached by the loss
    except _Enough:
        pass
    finally:
        for handle in handles:
            handle.remove()
        for parameter in parameters:
            parameter.grad = None
    return [
        tuple(gradients.get(id(parameter), torch.zeros_like(parameter)) for parameter in layers[-1 - position])
        for position in range(delivered)
    ]


def _taken(parameter: torch.Tensor) -> torch.Tensor:
    gradient = parameter.grad
    assert gradient is not None
    parameter.grad = None
    return gradient
