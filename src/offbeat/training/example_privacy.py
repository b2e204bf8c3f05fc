"""Example-level differential privacy of a local training: a step that depends little on any single example.

Abadi et al., *Deep Learning with Differential Privacy*, CCS 2016 (DP-SGD), without its amplification by sampling:

    g = (sum_i g_i min(1, C / ||g_i||) + N(0, (z C)^2)) / B

over the examples i of a batch, with g_i the gradient of the loss of example i (`torch.func`) and B the batch size of
the order, also for a last batch that is smaller. Every epoch uses each example in exactly one step, so an epoch is one
participation of every example (`trust.accounting`).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from offbeat.core.errors import InvalidInput
from offbeat.models.flat import FlatModel, Tensors
from offbeat.training.tasks import Batch, Task

CHUNK = 32
"""Examples whose gradients are held in memory at a time."""
Noise = Callable[[int], npt.NDArray[np.float32]]
"""Draws a number of standard normal numbers."""


def check_example_privacy(model: torch.nn.Module, pure: bool) -> None:
    """Raise InvalidInput unless each example is known to be treated on its own."""
    if not pure:
        raise InvalidInput(
            'privacy.level = "example": the model or the task may mix examples (batch normalisation, dropout, or a '
            f"class of your own: {type(model).__name__}), use layers that treat each example on its own"
        )


def private_gradients(
    model: FlatModel, task: Task, batch: Batch, *, clip: float, multiplier: float, divisor: int, noise: Noise
) -> Tensors:
    """The private mean gradient of a batch."""
    names = [entry.name for entry in model.entries]

    def loss_of(weights: Tensors, x: Any, y: torch.Tensor) -> torch.Tensor:
        def network(*inputs: Any, **named: Any) -> Any:
            return functional_call(model.module, dict(zip(names, weights, strict=True)), inputs, named)

        return task.loss(network, Batch(x=tree_map(lambda each: each.unsqueeze(0), x), y=y.unsqueeze(0)))[0]

    gradients_of = vmap(grad(loss_of), in_dims=(None, 0, 0))
    total = torch.zeros(model.layout.trained_size, dtype=torch.float64, device=model.torch_device)
    for start in range(0, len(batch.y), CHUNK):
        part = slice(start, start + CHUNK)
        each = gradients_of(model.weights, tree_map(lambda x, part=part: x[part], batch.x), batch.y[part])
        rows = torch.cat([gradient.flatten(1) for gradient in each], dim=1).double()
        total += clipped_sum(rows, clip)
    drawn = torch.from_numpy(noise(len(total))).to(total)
    mean = ((total + multiplier * clip * drawn) / divisor).float()
    return tuple(mean[entry.span].view(entry.shape) for entry in model.entries)


def clipped_sum(rows: torch.Tensor, clip: float) -> torch.Tensor:
    """The sum of the rows, each scaled down to norm `clip`; a row that is not finite counts as zero.

    >>> clipped_sum(torch.tensor([[3.0, 4.0], [0.0, 0.5], [float("nan"), 1.0]]), 1.0)
    tensor([0.6000, 1.3000])
    """
    norms = rows.norm(dim=1, keepdim=True)
    finite = norms.isfinite()
    factors = torch.where(norms > clip, clip / norms, 1.0)
    return torch.where(finite, rows * factors, 0.0).sum(dim=0)
