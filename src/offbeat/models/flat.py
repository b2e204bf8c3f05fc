"""A module seen as one flat vector: its layout, its values, its cost.

Whether a module is known to be pure: each sample on its own, no chance, no state.

The gradient of a full batch may then be summed up in blocks, and one that was computed before need not be again. A
module of a kind that is not listed (dropout, batch normalisation, the user's own classes) may be anything.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from offbeat.core.parameters import Layout, Vector, frozen
from offbeat.models.normalisation import GroupNorm


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """What makes up the vector: parameters in the order of their registration, then floating-point buffers.

    Integer buffers (batch-norm's count of batches) are left out: their average over devices means nothing.
    """
    buffers = {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()}
    return {**dict(module.named_parameters()), **buffers}


def layout_of(module: nn.Module) -> Layout:
    """Buffers and frozen parameters travel with the model but are not trained: they stand behind the trained ones.

    Each submodule that has parameters of its own is a layer, in the order of registration, which should be the order in
    which the model uses them. A model that needs other layers says so in an attribute `layer_groups`, from input to
    output: `[["conv1", "norm1"], ["conv2", "norm2"], ["head"]]`.
    """
    groups = getattr(module, "layer_groups", ())
    shapes = ((name, tuple(tensor.shape), tensor.requires_grad) for name, tensor in tensors_of(module).items())
    return Layout.of(shapes, groups)


def layers_by_tensor(module: nn.Module) -> list[list[str]]:
    """Layer groups with a layer for every trained tensor, in the order of the layers that the module has.

    What is not trained goes with the last trained tensor of its submodule, or of the model if it has none.
    """
    entries = sorted(layout_of(module).entries, key=lambda entry: entry.layer)
    groups = [[entry.name] for entry in entries if entry.trained]
    for entry in entries:
        if not entry.trained:
            home = entry.name.rpartition(".")[0]
            own = (group for group in reversed(groups) if group[0].rpartition(".")[0] == home)
            next(own, groups[-1]).append(entry.name)
    return groups


def vector_of(module: nn.Module) -> Vector:
    """A copy of the module's values, in the order of its layout."""
    tensors = tensors_of(module)
    entries = layout_of(module).entries
    return frozen(np.concatenate([tensors[entry.name].detach().numpy().ravel() for entry in entries]))


def called(module: Callable[..., Any], inputs: Any) -> Any:
    """What a module makes of inputs: a tuple is handed over as arguments, a mapping as arguments by name."""
    if isinstance(inputs, tuple):
        return module(*inputs)
    return module(**inputs) if isinstance(inputs, Mapping) else module(inputs)


def flops_per_sample(module: nn.Module, inputs: Any) -> float:
    """Floating-point operations to train on one of these input samples: forward, and twice as many backward."""
    mode = module.training
    module.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        called(module, inputs)
    module.train(mode)
    first = inputs
    while not isinstance(first, torch.Tensor):
        first = next(iter(first.values() if isinstance(first, Mapping) else first))
    return 3.0 * float(counter.get_total_flops()) / len(first)


PURE = (
    nn.Sequential,
    nn.Identity,
    nn.Flatten,
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.LayerNorm,
    nn.GroupNorm,
    GroupNorm,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Tanh,
)


def is_pure(module: nn.Module) -> bool:
    """Whether every part of the module is of a kind that is listed.

    >>> is_pure(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), is_pure(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    (True, False)
    """
    return all(type(each) in PURE for each in module.modules())
