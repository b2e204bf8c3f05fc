"""The models by name, and how one is built: initialised from the seed alone, and checked against the data."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from offbeat.core.errors import InvalidInput, unknown
from offbeat.core.references import describe, resolve
from offbeat.core.streams import stream
from offbeat.models.flat import called
from offbeat.models.networks import cnn, cnn_over, cnn_small, lenet5, logistic, mlp

MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "lenet5": lenet5,
    "cnn": cnn,
    "cnn-small": cnn_small,
    "cnn-over": cnn_over,
}


def build(name: str, input_shape: Any, classes: int, seed: int, example: Any = None) -> nn.Module:
    """The named model, or the user's own `"module:function"`, called as `function(input_shape, classes)`.

    The initial parameters depend on the seed and on nothing else; torch's global generator is left as it was.
    `example` are two inputs to try the model out with, where they are no plain numbers (tokens, tuples) or outputs are
    no row of one number for each class: whoever gives one checks the outputs.

    >>> sum(p.numel() for p in build("lenet5", (1, 28, 28), 10, seed=0).parameters())
    61706
    """
    function = resolve(name) if ":" in name else MODELS.get(name)
    if function is None:
        raise unknown("model", name, MODELS)
    if not callable(function):
        raise InvalidInput(f"model {name!r} is no function of (input shape, classes) but {type(function).__name__}.")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(stream(seed, "model").integers(2**63)))
        try:
            module = function(input_shape, classes)
            output = _try_out(module, torch.zeros(2, *input_shape) if example is None else example)
        except InvalidInput:
            raise
        except Exception as error:  # whatever a user's function raises
            reason = describe(error).rstrip(".")
            raise InvalidInput(f"model {name!r} does not fit inputs of shape {input_shape}: {reason}.") from error
    if example is None and (not isinstance(output, torch.Tensor) or output.shape != (2, classes)):
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise InvalidInput(
            f"model {name!r} on two inputs of shape {input_shape} gives {shape}, where {(2, classes)} is needed."
        )
    return module


def _try_out(module: Any, inputs: Any) -> Any:
    """What the module makes of two inputs. In evaluation mode, so that running statistics stay as they are."""
    if not isinstance(module, nn.Module) or not any(True for _ in module.parameters()):
        raise ValueError(f"it is no nn.Module with parameters but {type(module).__name__}")
    module.float().eval()
    with torch.no_grad():
        output = called(module, inputs)
    module.train()
    return output
