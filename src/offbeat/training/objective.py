"""What a training descends on: the loss of the task and the terms that an order adds to it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from offbeat.core.errors import InvalidInput
from offbeat.training.flat_model import FlatModel, Tensors
from offbeat.training.tasks import Batch, Task
from offbeat.training.terms import LossTerm


class _ModelSeenByTerms:
    """The model as the task's loss calls it: the terms see its outputs, and may change what the loss sees."""

    def __init__(self, model: FlatModel, terms: Sequence[LossTerm]) -> None:
        self._module = model.module
        self._terms = terms
        self.outputs: Any = None

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self.outputs = outputs = self._module(*inputs, **named)
        for term in self._terms:
            outputs = term.outputs(outputs)
        return outputs


class Objective:
    """The loss of one training."""

    def __init__(self, task: Task, model: FlatModel, terms: Sequence[LossTerm] = (), *, half: bool = False) -> None:
        self._task = task
        self._model = model
        self._terms = terms
        self._half = half
        self._pulling = [term for term in terms if type(term).pull is not LossTerm.pull]
        looking = [term for term in terms if type(term).outputs is not LossTerm.outputs]
        self._valued = [term for term in terms if type(term).value is not LossTerm.value]
        self._watched = _ModelSeenByTerms(model, looking) if looking or self._valued else None

    @property
    def pulls(self) -> bool:
        """Whether terms add to gradients in closed form."""
        return bool(self._pulling)

    def pull(self, gradients: Tensors, weights: Tensors, positions: Sequence[int] | None) -> Tensors:
        """The gradients with those of the terms that are known in closed form added."""
        for term in self._pulling:
            gradients = term.pull(gradients, weights, positions)
        return gradients

    def precision(self) -> AbstractContextManager[Any]:
        """Where models are called: products in bfloat16, if that is wanted; parameters stay float32."""
        return torch.autocast(self._model.torch_device.type, dtype=torch.bfloat16) if self._half else nullcontext()

    def loss(self, batch: Batch) -> tuple[torch.Tensor, float, torch.Tensor]:
        """The task's loss, over how much it is a mean, and the loss with all terms."""
        try:
            with self.precision():
                loss, size = self._task.loss(self._watched or self._model.module, batch)
                whole = loss
                for term in self._valued:
                    value = term.value(batch, self._watched.outputs if self._watched is not None else None)
                    whole = whole if value is None else whole + value
        except ValueError as error:
            if len(batch.y) > 1:
                raise
            # Batch normalisation has no variance to divide by.
            raise InvalidInput(
                f"the model cannot train on a batch of one sample: change batch_size ({error})."
            ) from error
        return loss, size, whole

    def gradients(self, batch: Batch) -> tuple[float, float, Tensors]:
        """The task's loss, over how much it is a mean, and the gradient of the loss with all terms."""
        loss, size, whole = self.loss(batch)
        # A parameter that the loss does not reach has a gradient of zero, not None.
        found = torch.autograd.grad(whole, self._model.parameters, allow_unused=True, materialize_grads=True)
        return loss.item(), size, found
