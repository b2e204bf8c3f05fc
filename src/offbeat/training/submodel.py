"""Submodels of reduced width (HeteroFL): the first channels of every layer as a module, and states cut to it.

Diao, Ding, Tarokh: *HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients*,
ICLR 2021. The paper's scaler divides the output of every layer but the last by the width in training, so that
activations are as large as in the whole model.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace
from torch import nn

from offbeat.core.coverage import forward_order, submodel_shapes
from offbeat.core.parameters import Layout, Vector, frozen
from offbeat.models import tensors_of
from offbeat.training.training_state import TrainingJob, TrainingState

Chosen = npt.NDArray[np.bool_]


def narrowed(model: nn.Module, layout: Layout, width: float) -> nn.Module:
    """A copy of the model with only the first channels, and a scaler after every layer but the last."""
    narrow = copy.deepcopy(model)
    tensors = tensors_of(narrow)
    for entry, shape in zip(layout.entries, submodel_shapes(layout, width), strict=True):
        tensors[entry.name].data = tensors[entry.name].data[tuple(slice(part) for part in shape)].clone()
    names = [entry.name.rpartition(".")[0] for entry in forward_order(layout) if len(entry.shape) > 1]
    for name in names[:-1]:
        narrow.get_submodule(name).register_forward_hook(_scaler(width))
    return narrow


def _scaler(width: float) -> Callable[[nn.Module, Any, torch.Tensor], torch.Tensor]:
    return lambda module, inputs, output: output / width if module.training else output


def job_inside(job: TrainingJob, chosen: Chosen, trained: int) -> TrainingJob:
    """The job with all vectors cut to the submodel."""
    return replace(
        job,
        order=replace(job.order, width=1.0),
        state=_state_inside(job.state, chosen, trained),
        anchor=frozen(job.anchor[chosen]),
        memory={name: _inside(value, chosen, trained) for name, value in job.memory.items()},
    )


def _inside(value: Any, chosen: Chosen, trained: int) -> Any:
    """The submodel's part of a vector over all or over the trained elements; any other value unchanged."""
    if not isinstance(value, np.ndarray):
        return value
    if len(value) == len(chosen):
        return frozen(value[chosen])
    return frozen(value[chosen[:trained]]) if len(value) == trained else value


def _state_inside(state: TrainingState, chosen: Chosen, trained: int) -> TrainingState:
    return replace(
        state,
        parameters=frozen(state.parameters[chosen]),
        momentum=None if state.momentum is None else frozen(state.momentum[chosen[:trained]]),
        optimiser={name: _inside(vector, chosen, trained) for name, vector in state.optimiser.items()},
        buffers=None if state.buffers is None else frozen(state.buffers[chosen[trained:]]),
        start=None if state.start is None else _state_inside(state.start, chosen, trained),
    )


def state_outside(state: TrainingState, before: TrainingState, chosen: Chosen, trained: int) -> TrainingState:
    """The state of the whole model after the submodel was trained; the other elements are as before."""
    inside, zeros = chosen[:trained], np.zeros(trained, dtype=np.float32)

    def outside(name: str, vector: Vector) -> Vector:
        """A vector of the optimiser's state. Step counts per parameter have the same length in the submodel."""
        if len(vector) != np.count_nonzero(inside):
            return vector
        return _filled(before.optimiser.get(name, zeros), inside, vector)

    momentum = zeros if before.momentum is None else before.momentum
    buffers = before.parameters[trained:] if before.buffers is None else before.buffers
    return replace(
        state,
        parameters=_filled(before.parameters, chosen, state.parameters),
        momentum=None if state.momentum is None else _filled(momentum, inside, state.momentum),
        optimiser={name: outside(name, vector) for name, vector in state.optimiser.items()},
        buffers=None if state.buffers is None else _filled(buffers, chosen[trained:], state.buffers),
        start=None if state.start is None else state_outside(state.start, before, chosen, trained),
    )


def _filled(vector: Vector, chosen: Chosen, values: Vector) -> Vector:
    filled = vector.copy()
    filled[chosen] = values
    return frozen(filled)
