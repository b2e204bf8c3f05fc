"""Builds models by name: initialised from the seed alone, and checked against the data."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from offbeat.core.errors import InvalidInput, unknown
from offbeat.core.streams import stream
from offbeat.models.catalogue import MODELS, ModelChoice
from offbeat.models.flat import called, layers_by_tensor
from offbeat.models.projection import with_projection
from offbeat.references import describe, resolve


def build(model: str | ModelChoice, input_shape: Any, classes: int, seed: int, example: Any = None) -> nn.Module:
    """The named model, or a user's own `"module:thing"`: a class or function of (input_shape, classes) or ().

    The initial parameters depend on the seed alone; torch's global generator is not changed. The model is tried on two
    inputs: zeros, for which it must return one number per class, or `example`, if inputs are not plain numbers or
    outputs have another shape; the caller then checks the outputs.

    >>> sum(p.numel() for p in build("lenet5", (1, 28, 28), 10, seed=0).parameters())
    61706
    """
    choice = ModelChoice(name=model) if isinstance(model, str) else model
    name, settings = choice.name, choice.settings
    if ":" not in name and name not in MODELS:
        raise unknown("model", name, MODELS)
    function = resolve(MODELS.get(name, name))
    if not callable(function):
        raise InvalidInput(
            f"model {name!r} is a {type(function).__name__}; it must be a class or function of (input shape, classes)."
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(stream(seed, "model").integers(2**63)))
        try:
            arguments = (input_shape, classes) if _wants_shape(function, settings) else ()
            module: nn.Module = function(*arguments, **settings)
            if choice.projection is not None:
                module = with_projection(module, choice.projection)
            output = _try_out(module, torch.zeros(2, *input_shape) if example is None else example)
        except InvalidInput:
            raise
        except Exception as error:  # a user's function may raise anything
            reason = describe(error).rstrip(".")
            raise InvalidInput(f"model {name!r} does not fit inputs of shape {input_shape}: {reason}.") from error
    if example is None and (not isinstance(output, torch.Tensor) or output.shape != (2, classes)):
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise InvalidInput(
            f"model {name!r} returns {shape} for two inputs of shape {input_shape}; it must return {(2, classes)}."
        )
    if choice.layers == "tensors":
        module.layer_groups = layers_by_tensor(module)  # type: ignore[assignment]  # nn.Module declares tensors only
    return module


def with_vocabulary(choice: ModelChoice, tokens: Callable[[], int]) -> ModelChoice:
    """The choice with the data's vocabulary size as its `vocabulary`, if the model needs one and has none.

    Raises InvalidInput if the given one is too small for the data.
    """
    given = choice.settings.get("vocabulary")
    if given is None and not _needs(resolve(MODELS.get(choice.name, choice.name)), "vocabulary"):
        return choice
    found = tokens()
    if given is None and not found:
        raise InvalidInput(
            f"model {choice.name!r} needs tokens, but the data's vocabulary size is unknown: set model.vocabulary."
        )
    if isinstance(given, int) and given < found:
        raise InvalidInput(
            f"model.vocabulary = {given} is below the {found} tokens of the data: omit it, or set at least {found}."
        )
    return choice if given is not None else replace(choice, settings={**choice.settings, "vocabulary": found})


def _needs(function: Any, name: str) -> bool:
    """Whether it has a required argument of this name."""
    try:
        parameter = inspect.signature(function).parameters.get(name)
    except (TypeError, ValueError):  # some compiled functions have no signature
        return False
    return parameter is not None and parameter.default is parameter.empty


def _wants_shape(function: Any, settings: Mapping[str, Any]) -> bool:
    """Whether to call it with (input shape, classes): if it requires arguments or has one named `classes`."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some compiled functions have no signature
        return True
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = any(
        each.kind in positional and each.default is each.empty and each.name not in settings
        for each in parameters.values()
    )
    return needed or "classes" in parameters or any(each.kind == each.VAR_POSITIONAL for each in parameters.values())


def _try_out(module: Any, inputs: Any) -> Any:
    """The module's outputs for two inputs, in evaluation mode, so that running statistics do not change."""
    if not isinstance(module, nn.Module) or not any(True for _ in module.parameters()):
        raise ValueError(f"it is a {type(module).__name__}; it must be an nn.Module with parameters")
    module.float().eval()
    with torch.no_grad():
        output = called(module, inputs)
    module.train()
    return output
