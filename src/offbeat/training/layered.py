"""A backward pass that stops between layers: what is beyond the reached layer is never computed.

Autograd walks from the loss to the input and hands a parameter its gradient as soon as it is complete. A hook on every
parameter counts the layers that are complete, from the last on, asks after each whether to go on, and if not ends the
walk by an exception. This works for any module whose layers (see `models.flat.layout_of`) are in the order in which
they are used, and costs no more than a plain backward pass that goes as far.
"""

from collections.abc import Callable, Sequence

import torch

Tensors = tuple[torch.Tensor, ...]
Proceed = Callable[[int], bool]
"""Whether to go on after so many complete layers: by a plan in a simulation, by a clock on a real device."""


class _Enough(Exception):
    """The walk has come as far as it should."""


def backward(loss: torch.Tensor, layers: Sequence[Sequence[torch.Tensor]], proceed: Proceed) -> list[Tensors]:
    """The gradients of the last layers, the last one first, as many as `proceed` lets it come.

    `layers` are the parameters of each layer, from input to output. A parameter that the loss does not reach has a
    gradient of zero, which is known only when the walk is over: it holds up its layer and those before it until then.
    """
    parameters = [parameter for layer in layers for parameter in layer]
    missing = [len(layer) for layer in layers]
    gradients: dict[int, torch.Tensor] = {}
    delivered = 0

    def deliver() -> bool:
        """One layer more is complete; whether to go on."""
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
            pass  # what has no gradient by now has none
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
