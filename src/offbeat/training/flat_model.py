"""A private copy of a model whose parameters and buffers are views into one flat vector: loading it is one copy.

Some matrix products round differently when their operands lie differently in memory (seen with MKL on small shapes).
The vector is therefore allocated by torch, which aligns to 64 bytes, and not by numpy, which promises less.
"""

import copy

import numpy as np
import torch
from torch import nn

from offbeat.core.parameters import Vector, frozen
from offbeat.models import layout_of, tensors_of, vector_of
from offbeat.training.torch_device import on_processor

Tensors = tuple[torch.Tensor, ...]


class FlatModel:
    """A module, its layout, and its trained tensors, on the processor or another device."""

    def __init__(self, model: nn.Module, torch_device: torch.device | str = "cpu") -> None:
        self.torch_device = torch.device(torch_device)
        self.module = copy.deepcopy(model).float().train()
        self.layout = layout_of(self.module)
        self._flat = torch.tensor(vector_of(self.module)).to(self.torch_device)
        self.module.to(self.torch_device)
        self._vector: Vector | None = self._flat.numpy() if on_processor(self.torch_device) else None
        """The memory of the flat tensor for numpy, where numpy can reach it."""
        tensors = tensors_of(self.module)
        for entry in self.layout.entries:
            tensors[entry.name].data = self._flat[entry.span].view(entry.shape)
        self.entries = [entry for entry in self.layout.entries if entry.trained]
        self.parameters = [tensors[entry.name] for entry in self.entries]
        self.weights: Tensors = tuple(parameter.detach() for parameter in self.parameters)
        """The parameters outside autograd: they share the memory of `parameters` and may be updated in place."""
        self.layers = [
            [position for position, entry in enumerate(self.entries) if entry.layer == layer]
            for layer in range(self.layout.trained_layers)
        ]
        """The positions in `parameters` of each layer's parameters, from the input on."""
        self.head = self.layout.head
        self._counters = [(b, b.clone()) for b in self.module.buffers() if not b.is_floating_point()]

    def load(self, parameters: Vector) -> None:
        """Take these values. Integer buffers start afresh."""
        if self._vector is not None:
            np.copyto(self._vector, parameters)
        else:
            self._flat.copy_(torch.from_numpy(np.array(parameters)))
        for counter, start in self._counters:
            counter.copy_(start)

    def values(self) -> Vector:
        """A copy of the present values."""
        return self._flat.numpy(force=True).copy() if self._vector is None else self._vector.copy()

    def views(self, vector: Vector) -> Tensors:
        """The trained elements of a vector, each part as a tensor of its parameter's shape.

        On the processor they share the vector's memory.
        """
        flat = torch.from_numpy(vector).to(self.torch_device)
        return tuple(flat[entry.span].view(entry.shape) for entry in self.entries)

    def zeros(self) -> torch.Tensor:
        """As many zeros as there are trained elements."""
        return torch.zeros(self.layout.trained_size, device=self.torch_device)

    def head_module(self) -> nn.Module:
        """The last layer: what it is given is the model's representation of a sample."""
        return self.module.get_submodule(self.head[0].name.rpartition(".")[0])


def flat_vector(tensor: torch.Tensor) -> Vector:
    """A tensor's numbers as a vector of their own."""
    return frozen(tensor.detach().numpy(force=True).copy())
