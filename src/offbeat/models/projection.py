"""A projection head for any model: MOON contrasts its outputs, and every algorithm can train one."""

from collections.abc import Sequence

from torch import nn


def with_projection(module: nn.Module, outputs: int) -> nn.Module:
    """The module with two dense layers before its last one, ReLU between them; the second has `outputs` outputs.

    Li, He, Song: *Model-Contrastive Federated Learning*, CVPR 2021, section 3.2: a two-layer perceptron of 256 outputs.
    Its first layer has as many outputs as inputs, as in the authors' code, and no activation follows the second.

    >>> [each.out_features for each in with_projection(nn.Linear(8, 3), 5).children() if isinstance(each, nn.Linear)]
    [8, 5, 3]
    """
    dense = [(name, each) for name, each in module.named_modules() if isinstance(each, nn.Linear)]
    if not dense:
        raise ValueError("model.projection needs a model with a dense layer")
    name, last = dense[-1]
    inputs = last.in_features
    head = [
        nn.Linear(inputs, inputs),
        nn.ReLU(),
        nn.Linear(inputs, outputs),
        nn.Linear(outputs, last.out_features, bias=last.bias is not None),
    ]
    if isinstance(module, nn.Sequential) and module[-1] is last:
        return nn.Sequential(*list(module)[:-1], *head)  # stays flat, so that it can be trained stacked
    if last is module:
        return nn.Sequential(*head)
    parent, _, own = name.rpartition(".")
    setattr(module.get_submodule(parent), own, nn.Sequential(*head))
    if groups := getattr(module, "layer_groups", None):
        module.layer_groups = _with_new_layers(groups, name)  # type: ignore[assignment]  # nn.Module declares tensors only
    return module


def _with_new_layers(groups: Sequence[Sequence[str]], head: str) -> list[list[str]]:
    """Layer groups in which the new layers replace the former head."""
    found: list[list[str]] = []
    for group in groups:
        found.append([f"{head}.0" if part == head else part for part in group])
        if head in group:
            found += [[f"{head}.2"], [f"{head}.3"]]
    return found
