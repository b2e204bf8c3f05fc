"""Networks whose weights, of many clients, are stacked into one tensor per layer: one SGD step for all clients.

Dense chains have a hand-written forward and backward pass of batched matrix products. Chains with convolutions use
autograd: the channels of all clients are side by side, and a grouped convolution keeps them apart.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from offbeat.core.parameters import TensorEntry, Vector
from offbeat.models.normalisation import GroupNorm
from offbeat.training.optimisers import POLYAK_MOST
from offbeat.training.training_state import TrainingJob

Activation = Callable[[torch.Tensor], torch.Tensor]
Derivative = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A function of the gradient after an activation and of its output that returns the gradient before it."""


def _relu_backward(gradient: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten.threshold_backward(gradient, output, 0.0)
    return result


ACTIVATIONS: dict[type[nn.Module], tuple[Activation, Derivative]] = {
    nn.ReLU: (torch.relu, _relu_backward),
    nn.Tanh: (torch.tanh, torch.ops.aten.tanh_backward),
    nn.Sigmoid: (torch.sigmoid, torch.ops.aten.sigmoid_backward),
}
POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
"""Layers that treat each channel on its own, and so need not know its client."""
IMAGE_LAYERS = (nn.Conv2d, nn.GroupNorm, GroupNorm, *POOLS)


@dataclass(frozen=True, slots=True)
class StackedParameter:
    """One tensor of the model for all clients of a stack, shaped (client, rows, columns), and its SGD update.

    Fields that no client of the stack needs are None. `decay` and `prox` are scaled like the gradient: without momentum
    -rate x gradient is added to the weights, with momentum the gradient itself to the velocity. Polyak's rates are
    known only after the gradient, so they are applied in `descend`.
    """

    value: torch.Tensor
    shape: tuple[int, ...]
    """The shape of one client's tensor."""
    rate: torch.Tensor
    velocity: torch.Tensor | None
    decay: torch.Tensor | None
    prox: torch.Tensor | None
    anchor: torch.Tensor | None
    momentum: float

    @classmethod
    def of(cls, jobs: Sequence[TrainingJob], entry: TensorEntry, torch_device: torch.device) -> "StackedParameter":
        """One tensor of all jobs' models, stacked."""

        def stacked(vectors: Iterable[Vector]) -> torch.Tensor:
            rows = torch.empty(len(jobs), entry.size)  # aligned by torch, as `FlatModel` explains
            np.stack([vector[entry.span] for vector in vectors], out=rows.numpy())
            return rows.view(len(jobs), -1, entry.shape[-1]).to(torch_device)

        def per_client(numbers: Iterable[float]) -> torch.Tensor:
            return torch.tensor(list(numbers), device=torch_device).view(-1, 1, 1)

        orders = [job.order for job in jobs]
        momentum = orders[0].momentum
        rate = per_client(order.learning_rate for order in orders)
        scale = 1.0 if momentum or orders[0].optimiser == "polyak" else -rate
        decays, pulls = any(order.weight_decay for order in orders), any(order.prox for order in orders)
        zeros = np.zeros(entry.offset + entry.size, dtype=np.float32)
        velocities = [zeros if job.state.momentum is None else job.state.momentum for job in jobs]
        return cls(
            value=stacked(job.state.parameters for job in jobs),
            shape=entry.shape,
            rate=rate,
            velocity=stacked(velocities) if momentum else None,
            decay=scale * per_client(order.weight_decay for order in orders) if decays else None,
            prox=scale * per_client(order.prox for order in orders) if pulls else None,
            anchor=stacked(job.anchor for job in jobs) if pulls else None,
            momentum=momentum,
        )

    def first(self, clients: int) -> "StackedParameter":
        """The parameter of the first clients, as a view."""

        def cut(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor[:clients]

        return replace(
            self,
            value=self.value[:clients],
            rate=self.rate[:clients],
            velocity=cut(self.velocity),
            decay=cut(self.decay),
            prox=cut(self.prox),
            anchor=cut(self.anchor),
        )

    def side_by_side(self) -> torch.Tensor:
        """The tensors of all clients, concatenated along the first axis."""
        return self.value.reshape(-1, *self.shape[1:])

    def descend(
        self, gradient: torch.Tensor | tuple[torch.Tensor, torch.Tensor], rates: torch.Tensor | None = None
    ) -> None:
        """Take one SGD step; the gradient, scaled as above, is a tensor or the two factors of a matrix product.

        `rates`: the factors (client, 1, 1) of polyak, which the gradient has already.
        """
        pull: list[torch.Tensor] = []
        if self.decay is not None:
            pull.append(self.value * self.decay)
        if self.prox is not None and self.anchor is not None:
            pull.append((self.value - self.anchor) * self.prox)
        target = self.value if self.velocity is None else self.velocity
        if isinstance(gradient, tuple):
            target.baddbmm_(*gradient, beta=1.0 if self.velocity is None else self.momentum)
        else:
            if self.velocity is not None:
                target.mul_(self.momentum)
            target.add_(gradient.view_as(target))
        for term in pull:
            target.add_(term if rates is None else term * rates)
        if self.velocity is not None:
            self.value.addcmul_(self.velocity, self.rate, value=-1.0)


StackedParameters = dict[str, StackedParameter]


class StackedChain(Protocol):
    """A model of many clients."""

    def step(self, parameters: StackedParameters, x: torch.Tensor, y: "StackedTargets") -> None:
        """Take one SGD step on a batch x (client, sample, ...) of each client."""
        ...


@dataclass(frozen=True, slots=True)
class StackedTargets:
    """Values for the samples of one step of a stack, each shaped (client, sample, 1)."""

    labels: torch.Tensor
    scale: torch.Tensor
    """The weight of each sample in its client's gradient, scaled for `StackedParameter`; 0 for padding."""
    likelihood: torch.Tensor
    """Output: the log probability of each label before the step."""
    polyak: "StackedPolyak | None" = None
    """The step sizes of clients with the optimiser `polyak`: `scale` is then the weight itself. None: SGD."""


class StackedPolyak:
    """The Polyak step size (`optimisers.Polyak`) of every client of a stack."""

    def __init__(self, bounds: torch.Tensor, rates: torch.Tensor) -> None:
        self.bounds = bounds
        """The bound of each client's next step."""
        self.rates = rates
        """The sum of each client's step sizes."""

    def step(self, y: StackedTargets, squares: torch.Tensor) -> torch.Tensor:
        """The factors (client, 1, 1) of the active clients' gradients, whose squared norms are given."""
        losses, bounds = -(y.likelihood * y.scale).sum((1, 2)), self.bounds[: len(squares)]
        rates = torch.where(squares > 0.0, torch.minimum(bounds, 2.0 * losses / squares), bounds)
        self.bounds[: len(rates)] = (2.0 * rates).clamp(max=POLYAK_MOST)
        self.rates[: len(rates)] += rates
        return -rates.view(-1, 1, 1)


class DenseChain:
    """A chain of dense layers and activations with a hand-written backward pass.

    The SGD update is part of the matrix product that would compute the gradient.
    """

    def __init__(self, layers: Iterable[tuple[str, nn.Module]]) -> None:
        self._chain = [(name, layer) for name, layer in layers if not isinstance(layer, nn.Flatten | nn.Identity)]
        self._first_dense = next(i for i, (_, layer) in enumerate(self._chain) if isinstance(layer, nn.Linear))

    def step(self, parameters: StackedParameters, x: torch.Tensor, y: StackedTargets) -> None:
        """Take one SGD step on a batch x (client, sample, ...) of each client."""
        outputs = self._forward(parameters, x.flatten(2))
        logarithms = torch.log_softmax(outputs[-1], 2)
        torch.gather(logarithms, 2, y.labels, out=y.likelihood)
        gradient = logarithms.exp_()  # softmax minus one at the label: the derivative of cross-entropy
        gradient.scatter_add_(2, y.labels, torch.full_like(y.likelihood, -1.0))
        self._backward(parameters, outputs, gradient.mul_(y.scale), y)

    def _forward(self, parameters: StackedParameters, x: torch.Tensor) -> list[torch.Tensor]:
        """The input, then the output of each layer of the chain."""
        outputs = [x]
        for name, layer in self._chain:
            dense = isinstance(layer, nn.Linear)
            outputs.append(_dense(parameters, name, outputs[-1]) if dense else ACTIVATIONS[type(layer)][0](outputs[-1]))
        return outputs

    def _backward(
        self, parameters: StackedParameters, outputs: list[torch.Tensor], gradient: torch.Tensor, y: StackedTargets
    ) -> None:
        """Go back through the chain, then update each dense layer."""
        # Each parameter with the factors of its gradient: (client, sample, row) and (client, sample, column).
        factors: list[tuple[StackedParameter, torch.Tensor, torch.Tensor]] = []
        for i in range(len(self._chain) - 1, self._first_dense - 1, -1):
            name, layer = self._chain[i]
            if isinstance(layer, nn.Linear):
                behind = gradient
                weight = parameters[f"{name}.weight"]
                if i > self._first_dense:
                    gradient = torch.bmm(behind, weight.value)
                factors.append((weight, behind, outputs[i]))
                if f"{name}.bias" in parameters:
                    factors.append((parameters[f"{name}.bias"], behind.new_ones(*behind.shape[:2], 1), behind))
            else:
                gradient = ACTIVATIONS[type(layer)][1](gradient, outputs[i + 1])
        rates = None
        if y.polyak is not None:
            # |d^T a|^2 is the sum of (d d^T) * (a a^T), two small matrices of samples by samples.
            squares = [(_gram(left) * _gram(right)).sum((1, 2)) for _, left, right in factors]
            rates = y.polyak.step(y, torch.stack(squares).sum(0))
            factors = [(parameter, left * rates, right) for parameter, left, right in factors]
        for parameter, left, right in factors:
            parameter.descend((left.transpose(1, 2), right), rates)


class ConvolutionalChain:
    """A chain of convolutions, pooling, group normalisation and activations, then one of dense layers."""

    def __init__(self, layers: Iterable[tuple[str, nn.Module]]) -> None:
        self._chain = list(layers)

    def step(self, parameters: StackedParameters, x: torch.Tensor, y: StackedTargets) -> None:
        """Take one SGD step on a batch x (client, sample, ...) of each client."""
        leaves = {name: parameter.value.detach().requires_grad_() for name, parameter in parameters.items()}
        watched = {name: replace(parameter, value=leaves[name]) for name, parameter in parameters.items()}
        likelihood = torch.gather(torch.log_softmax(self._forward(watched, x), 2), 2, y.labels)
        y.likelihood.copy_(likelihood.detach())
        gradients = torch.autograd.grad((likelihood * y.scale).sum().neg(), list(leaves.values()))
        rates = None
        if y.polyak is not None:
            squares = torch.stack([gradient.square().sum((1, 2)) for gradient in gradients]).sum(0)
            rates = y.polyak.step(y, squares)
            gradients = tuple(gradient * rates for gradient in gradients)
        for parameter, gradient in zip(parameters.values(), gradients, strict=True):
            parameter.descend(gradient, rates)

    def _forward(self, parameters: StackedParameters, x: torch.Tensor) -> torch.Tensor:
        """The logits (client, sample, class) of images (client, sample, channel, height, width)."""
        clients, samples = x.shape[:2]
        x = x.transpose(0, 1).flatten(1, 2)  # (sample, client x channel, height, width)
        for name, layer in self._chain:
            if isinstance(layer, nn.Conv2d):
                x = self._convolution(parameters, name, layer, x, clients)
            elif isinstance(layer, nn.GroupNorm):
                weight, bias = (parameters[f"{name}.{part}"].side_by_side() for part in ("weight", "bias"))
                x = functional.group_norm(x, clients * layer.num_groups, weight, bias, layer.eps)
            elif isinstance(layer, nn.Flatten):
                x = x.reshape(samples, clients, -1).transpose(0, 1)
            else:
                x = _dense(parameters, name, x) if isinstance(layer, nn.Linear) else layer(x)
        return x

    def _convolution(
        self, parameters: StackedParameters, name: str, layer: nn.Conv2d, x: torch.Tensor, clients: int
    ) -> torch.Tensor:
        bias = parameters.get(f"{name}.bias")
        return functional.conv2d(
            x,
            parameters[f"{name}.weight"].side_by_side(),
            None if bias is None else bias.side_by_side(),
            layer.stride,
            layer.padding,
            layer.dilation,
            clients * layer.groups,
        )


def _gram(rows: torch.Tensor) -> torch.Tensor:
    """The inner products of the rows of each client."""
    return torch.bmm(rows, rows.transpose(1, 2))


def _dense(parameters: StackedParameters, name: str, x: torch.Tensor) -> torch.Tensor:
    """Apply a dense layer of every client; x is (client, sample, feature)."""
    weight, bias = parameters[f"{name}.weight"].value.transpose(1, 2), parameters.get(f"{name}.bias")
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.value, x, weight)


def is_convolutional(model: nn.Module) -> bool:
    """Whether the model has convolutions, and is stacked through autograd."""
    return any(isinstance(layer, nn.Conv2d) for layer in model.modules())


def stackable(model: nn.Module) -> bool:
    """Whether the model is an nn.Sequential of dense layers and activations, after any image layers, all trained."""
    if type(model) is not nn.Sequential:
        return False
    layers = list(model)
    kinds = [type(layer) for layer in layers]
    trained = [layer for layer in layers if any(True for _ in layer.parameters())]
    if nn.Linear not in kinds:
        return False
    body, head = layers[: kinds.index(nn.Linear)], kinds[kinds.index(nn.Linear) :]
    flat = [position for position, layer in enumerate(body) if isinstance(layer, nn.Flatten)]
    images = [position for position, layer in enumerate(body) if type(layer) in IMAGE_LAYERS]
    return (
        all(kind in ACTIVATIONS or kind in (nn.Linear, nn.Flatten, nn.Identity, *IMAGE_LAYERS) for kind in kinds)
        and all(kind in ACTIVATIONS or kind in (nn.Linear, nn.Identity) for kind in head)
        and (not images or (is_convolutional(model) and len(flat) == 1 and max(images) < flat[0]))
        and all(layer.start_dim == 1 and layer.end_dim == -1 for layer in body if isinstance(layer, nn.Flatten))
        and all(layer.padding_mode == "zeros" for layer in body if isinstance(layer, nn.Conv2d))
        and all(layer.affine for layer in body if isinstance(layer, nn.GroupNorm))
        and not any(layer.return_indices for layer in body if isinstance(layer, nn.MaxPool2d))
        and len(set(trained)) == len(trained)
        and all(parameter.requires_grad for parameter in model.parameters())
        and not any(True for _ in model.buffers())
    )
