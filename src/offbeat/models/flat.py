"""A torch module as one flat vector: its layout and values, a copy that trains in such a vector, cost and purity."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from offbeat.core.parameters import Layout, Vector, frozen
from offbeat.models.normalisation import GroupNorm


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors of the vector: parameters in the order of registration, then floating-point buffers.

    Integer buffers (the batch counter of batch normalisation) are left out: their average over devices is meaningless.
    """
    buffers = {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()}
    return {**dict(module.named_parameters()), **buffers}


def layout_of(module: nn.Module) -> Layout:
    """The layout of the vector: trained parameters first, then frozen parameters and buffers.

    Each submodule with parameters of its own is a layer, in the order of registration, which should be the order of
    use. A model with other layers lists them in an attribute `layer_groups`, from input to output:
    `[["conv1", "norm1"], ["conv2", "norm2"], ["head"]]`.
    """
    groups = getattr(module, "layer_groups", ())
    shapes = ((name, tuple(tensor.shape), tensor.requires_grad) for name, tensor in tensors_of(module).items())
    return Layout.of(shapes, groups)


def layers_by_tensor(module: nn.Module) -> list[list[str]]:
    """Layer groups with one layer per trained tensor, in the order of the module's layers.

    Tensors that are not trained join the last trained tensor of their submodule, or of the model if it has none.
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
    """The module's outputs: a tuple of inputs is passed as arguments, a mapping as keyword arguments."""
    if isinstance(inputs, tuple):
        return module(*inputs)
    return module(**inputs) if isinstance(inputs, Mapping) else module(inputs)


def flops_per_sample(module: nn.Module, inputs: Any) -> float:
    """Floating-point operations to train on one sample: the forward pass, and twice as many for the backward pass."""
    mode = module.training
    module.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        called(module, inputs)
    module.train(mode)
    first = inputs
    while not isinstance(first, torch.Tensor):
        first = next(iter(first.values() if isinstance(first, Mapping) else first))
    return 3.0 * float(counter.get_total_flops()) / len(first)


Tensors = tuple[torch.Tensor, ...]


def on_processor(torch_device: torch.device) -> bool:
    """Whether numpy can read tensors of this torch device. Data and models of any other are copied there once."""
    return torch_device.type == "cpu"


class FlatModel:
    """A copy of a module whose parameters and buffers are views into one flat vector, so that loading is one copy.

    Some matrix products round differently when their operands are aligned differently (seen with MKL on small shapes).
    The vector is therefore allocated by torch, which aligns to 64 bytes, and not by numpy, which promises less.
    """

    def __init__(self, model: nn.Module, torch_device: torch.device | str = "cpu") -> None:
        self.torch_device = torch.device(torch_device)
        self.module = copy.deepcopy(model).float().train()
        self.layout = layout_of(self.module)
        self._flat = torch.tensor(vector_of(self.module)).to(self.torch_device)
        self.module.to(self.torch_device)
        self._vector: Vector | None = self._flat.numpy() if on_processor(self.torch_device) else None
        """The memory of the flat tensor as a numpy array, if it is on the processor."""
        tensors = tensors_of(self.module)
        for entry in self.layout.entries:
            tensors[entry.name].data = self._flat[entry.span].view(entry.shape)
        self.entries = [entry for entry in self.layout.entries if entry.trained]
        self.parameters = [tensors[entry.name] for entry in self.entries]
        self.weights: Tensors = tuple(parameter.detach() for parameter in self.parameters)
        """The parameters outside autograd: they share the memory of `parameters` and can be updated in place."""
        self.layers = [
            [position for position, entry in enumerate(self.entries) if entry.layer == layer]
            for layer in range(self.layout.trained_layers)
        ]
        """The positions in `parameters` of each layer's parameters, from input to output."""
        self.head = self.layout.head
        self._counters = [(b, b.clone()) for b in self.module.buffers() if not b.is_floating_point()]

    def load(self, parameters: Vector) -> None:
        """Load these values, and reset integer buffers."""
        if self._vector is not None:
            np.copyto(self._vector, parameters)
        else:
            self._flat.copy_(torch.from_numpy(np.array(parameters)))
        for counter, start in self._counters:
            counter.copy_(start)

    def values(self) -> Vector:
        """A copy of the current values."""
        return self._flat.numpy(force=True).copy() if self._vector is None else self._vector.copy()

    def views(self, vector: Vector) -> Tensors:
        """The trained elements of a vector as tensors of the parameters' shapes; views of it on the processor."""
        flat = torch.from_numpy(vector).to(self.torch_device)
        return tuple(flat[entry.span].view(entry.shape) for entry in self.entries)

    def zeros(self) -> torch.Tensor:
        """A vector of zeros over the trained elements."""
        return torch.zeros(self.layout.trained_size, device=self.torch_device)

    def head_module(self) -> nn.Module:
        """The last layer, whose input is the model's representation of a sample."""
        return self.module.get_submodule(self.head[0].name.rpartition(".")[0])


def flat_vector(tensor: torch.Tensor) -> Vector:
    """A copy of a tensor's numbers as a vector."""
    return frozen(tensor.detach().numpy(force=True).copy())


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
"""Modules that treat each sample on its own, without randomness and without state."""


def is_pure(module: nn.Module) -> bool:
    """Whether each sample is treated on its own, without randomness and state, as far as we know.

    The gradient of a full batch may then be summed up in blocks, and cached. Any module that is not in `PURE` (dropout,
    batch normalisation, a user's own class) may do anything.

    >>> is_pure(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), is_pure(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    (True, False)
    """
    return all(type(each) in PURE for each in module.modules())
