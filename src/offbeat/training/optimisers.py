"""The optimisers of a device: a fast SGD, SGD with Polyak's step size, and those of torch.

Each continues from a training state, and a step may move only the last layers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from offbeat.core.errors import InvalidInput, unknown
from offbeat.core.orders import Order
from offbeat.core.parameters import Vector, frozen
from offbeat.models.flat import FlatModel, Tensors, flat_vector
from offbeat.references import describe, resolve
from offbeat.training.training_state import TrainingState

Pull = Callable[[Tensors, Tensors, Sequence[int] | None], Tensors]
"""Adds the gradients of loss terms, given gradients, weights and positions of the parameters (None: all)."""

OPTIMISERS: dict[str, type[torch.optim.Optimizer] | None] = {
    "sgd": None,
    "polyak": None,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}
FUSED = (torch.optim.Adam, torch.optim.AdamW)
"""Optimisers with a fused implementation in torch."""
BOUND, RATES = "polyak bound", "polyak rates"
"""The bound of `Polyak`'s next step size, and the sum of its step sizes in an order."""
POLYAK_FIRST, POLYAK_MOST = 4.0, 0.5
"""The bound of `Polyak`'s first step size over the learning rate, and the largest bound."""
COUNT = "step"
"""The number of steps of a parameter: the one value that torch's optimisers keep per parameter, not per element."""


class Optimiser(Protocol):
    """Updates the weights of a model step by step."""

    def step(self, loss: float, gradients: Tensors, rate: float, positions: Sequence[int] | None = None) -> None:
        """Take one step, given the loss of a batch and its gradients at these positions (None: at all parameters)."""

    def momentum(self) -> Vector | None:
        """The momentum as one flat vector; None if there is none or it is part of `state`."""
        ...

    def state(self) -> Mapping[str, Vector]:
        """The optimiser's state except the momentum, as flat vectors by name."""
        ...


def optimiser_of(order: Order, model: FlatModel, start: TrainingState, pull: Pull | None) -> Optimiser:
    """The order's optimiser, continuing from a training state."""
    if order.optimiser == "sgd":
        return Sgd(order, model, start, pull)
    if order.optimiser == "polyak":
        return Polyak(order, model, start, pull)
    return TorchOptimiser(order, model, start, pull)


def check_optimiser(order: Order) -> None:
    """Raise InvalidInput if the order's optimiser does not exist or cannot take a step with the order's settings."""
    name = order.optimiser
    if ":" not in name and name not in OPTIMISERS:
        raise unknown("optimiser", name, OPTIMISERS)
    if ":" in name:
        kind = resolve(name)
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
            raise InvalidInput(f"local.optimiser = {name!r}: it must be a subclass of torch.optim.Optimizer.")
        trial = nn.Parameter(torch.zeros(2))
        trial.grad = torch.ones(2)
        try:
            made_optimiser(order, [trial]).step()
        except InvalidInput:
            raise
        except Exception as error:
            raise InvalidInput(f"local.optimiser = {name!r} cannot take a step: {describe(error)}.") from error


def made_optimiser(order: Order, parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
    """The order's torch optimiser for these parameters."""
    kind = OPTIMISERS[order.optimiser] if order.optimiser in OPTIMISERS else resolve(order.optimiser)
    assert kind is not None
    settings: dict[str, Any] = {"lr": order.learning_rate, "weight_decay": order.weight_decay}
    if kind is torch.optim.RMSprop:
        settings["momentum"] = order.momentum
    if kind in FUSED:
        settings["fused"] = True
    try:
        return kind(parameters, **settings)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"local.optimiser = {order.optimiser!r} cannot be created: {describe(error)}.") from error


def clipped(gradients: Tensors, norm: float) -> Tensors:
    """The gradients, scaled down to this norm if their joint norm exceeds it."""
    length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return tuple(torch._foreach_mul(gradients, float(torch.clamp(norm / length, max=1.0))))


class Sgd:
    """PyTorch's SGD: v <- momentum v + g,  w <- w - rate v, where g is the gradient of loss and terms + decay w.

    With `clip_norm` the gradient of loss and terms is clipped before the weight decay is added.
    """

    def __init__(self, order: Order, model: FlatModel, start: TrainingState, pull: Pull | None) -> None:
        self._order = order
        self._weights = model.weights
        self._pull = pull
        self._velocity: Tensors = ()
        self._flat: torch.Tensor | None = None
        if order.momentum:
            self._flat = model.zeros()
            if start.momentum is not None:
                self._flat.copy_(torch.from_numpy(start.momentum.copy()))
            flat = self._flat
            self._velocity = tuple(flat[entry.span].view(entry.shape) for entry in model.entries)

    def step(self, loss: float, gradients: Tensors, rate: float, positions: Sequence[int] | None = None) -> None:
        """Take one step with the gradients of the parameters at these positions (None: of all parameters)."""
        order, weights, velocity = self._order, self._weights, self._velocity
        if positions is not None:
            weights = tuple(weights[position] for position in positions)
            velocity = tuple(velocity[position] for position in positions) if velocity else ()
        if order.clip_norm and self._pull is not None:
            gradients = self._pull(gradients, weights, positions)
        if order.clip_norm:
            gradients = clipped(gradients, order.clip_norm)
        if order.weight_decay:
            gradients = torch._foreach_add(gradients, weights, alpha=order.weight_decay)
        if self._pull is not None and not order.clip_norm:
            gradients = self._pull(gradients, weights, positions)
        if order.momentum:
            torch._foreach_mul_(velocity, order.momentum)
            torch._foreach_add_(velocity, gradients)
            gradients = velocity
        torch._foreach_add_(weights, gradients, alpha=-rate)

    def momentum(self) -> Vector | None:
        """The momentum as one flat vector; None without momentum."""
        return None if self._flat is None else flat_vector(self._flat)

    def state(self) -> Mapping[str, Vector]:
        """Nothing: SGD has no state except its momentum."""
        return {}


class Polyak(Sgd):
    """SGD whose step size follows from loss and gradient, so that it needs no tuned learning rate.

    Loizou, Vaswani, Laradji, Lacoste-Julien: *Stochastic Polyak Step-size for SGD*, AISTATS 2021; on the devices of a
    federation: Mukherjee, Loizou, Stich: *Locally Adaptive Federated Learning*, TMLR 2024. In step k, with the task's
    loss f_k of a batch and the gradient g_k, which includes that of loss terms with a value, such as MOON's:

        rate_k = min(2 rate_{k-1}, 0.5, 2 f_k / |g_k|^2),    2 rate_{-1} = 4 learning_rate

    This is the papers' step with c = 1/2 and the least possible loss as 0: the step that would bring the batch's loss
    to 0 if it were quadratic. The bounds keep single batches from taking far too long steps. In the papers the first
    grows by 2 per epoch, which is slow for devices with few batches. As it grows by 2 per step here, the second is
    needed: without it, long epochs ended in dead activations.
    """

    def __init__(self, order: Order, model: FlatModel, start: TrainingState, pull: Pull | None) -> None:
        super().__init__(order, model, start, pull)
        self._bound, self._rates = first_bound(order, start), rates_before(start)

    def step(self, loss: float, gradients: Tensors, rate: float, positions: Sequence[int] | None = None) -> None:
        """Take one step with the gradients of the parameters at these positions (None: of all parameters)."""
        if loss < 0.0:
            raise InvalidInput(f"local.optimiser = 'polyak' needs losses of at least 0, and this batch's is {loss:g}.")
        square = float(torch.stack(torch._foreach_norm(gradients)).square().sum())
        rate = min(self._bound, 2.0 * loss / square) if square > 0.0 else self._bound
        self._bound = float(np.float32(min(2.0 * rate, POLYAK_MOST)))
        self._rates = float(np.float32(self._rates + rate))
        super().step(loss, gradients, rate, positions)

    def state(self) -> Mapping[str, Vector]:
        """The bound of the next step, and the sum of the step sizes."""
        return polyak_state(self._bound, self._rates)


def polyak_state(bound: float, rates: float) -> Mapping[str, Vector]:
    """The state of `Polyak` between steps."""
    return {BOUND: frozen(np.array([bound])), RATES: frozen(np.array([rates]))}


def rates_before(start: TrainingState) -> float:
    """The sum of the step sizes that `Polyak` took in this order; 0 for other optimisers."""
    return float(start.optimiser[RATES][0]) if RATES in start.optimiser else 0.0


def first_bound(order: Order, start: TrainingState) -> float:
    """The bound of `Polyak`'s next step."""
    if BOUND in start.optimiser:
        return float(start.optimiser[BOUND][0])
    return min(POLYAK_FIRST * order.learning_rate, POLYAK_MOST)


class TorchOptimiser:
    """A torch optimiser on the model's parameters; its state is loaded and saved as flat vectors."""

    def __init__(self, order: Order, model: FlatModel, start: TrainingState, pull: Pull | None) -> None:
        self._order = order
        self._model = model
        self._pull = pull
        self._optimiser = made_optimiser(order, model.parameters)
        if start.optimiser:
            self._restore(start.optimiser)

    def step(self, loss: float, gradients: Tensors, rate: float, positions: Sequence[int] | None = None) -> None:
        """Take one step with the gradients of the parameters at these positions (None: of all parameters)."""
        parameters, weights = self._model.parameters, self._model.weights
        if positions is not None:
            parameters, weights = (
                [parameters[position] for position in positions],
                tuple(weights[position] for position in positions),
            )
        if self._pull is not None:
            gradients = self._pull(gradients, weights, positions)
        if self._order.clip_norm:
            gradients = clipped(gradients, self._order.clip_norm)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.step()
        for parameter in parameters:
            parameter.grad = None

    def momentum(self) -> Vector | None:
        """None: torch's optimisers keep their momentum in their state."""
        return None

    def state(self) -> Mapping[str, Vector]:
        """Vectors over the trained elements, and the step count of each parameter; zeros before its first step."""
        states = [self._optimiser.state.get(parameter, {}) for parameter in self._model.parameters]
        names = {name: None for state in states for name, value in state.items() if isinstance(value, torch.Tensor)}
        return {name: self._joined(name, states) for name in names}

    def _joined(self, name: str, states: Sequence[Mapping[str, Any]]) -> Vector:
        parameters = self._model.parameters
        kept = [state.get(name) for state in states]
        if name == COUNT:
            return frozen(np.array([0.0 if value is None else float(value) for value in kept], dtype=np.float32))
        whole = [torch.zeros_like(p) if value is None else value for value, p in zip(kept, parameters, strict=True)]
        return flat_vector(torch.cat([value.detach().reshape(-1) for value in whole]))

    def _restore(self, saved: Mapping[str, Vector]) -> None:
        fused = any(group.get("fused") for group in self._optimiser.param_groups)
        for position, (parameter, entry) in enumerate(zip(self._model.parameters, self._model.entries, strict=True)):
            if COUNT in saved and not saved[COUNT][position]:
                continue  # torch creates the state of a parameter in its first step
            for name, vector in saved.items():
                if name == COUNT:
                    part = torch.tensor(float(vector[position]), device=parameter.device if fused else "cpu")
                else:
                    part = torch.tensor(vector[entry.span], device=parameter.device).view(entry.shape)
                self._optimiser.state[parameter][name] = part
