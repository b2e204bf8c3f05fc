"""A projection head for any model: MOON contrasts what comes out of it, and every algorithm may be given one."""

from collections.abc import Sequence

from torch import nn


def with_projection(module: nn.Module, outputs: int) -> nn.Module:
    """The module with two dense layers before its last one, ReLU between them, the second with so many outputs.

    Li, He, Song: *Model-Contrastive Federated Learning*, CVPR 2021, section 3.2: a two-layer perceptron of 256 outputs.
    Its first layer has as many outputs as inputs, as in the authors' code, and nothing stands between its outputs and
    the last layer.

    >>> [each.out_features for each in with_projection(nn.Linear(8, 3), 5).children() if isinstance(each, nn.Linear)]
    [8, 5, 3]
    """
    dense = [(name, each) for name, each in module.named_modules() if isinstance(each, nn.Linear)]
    if not dense:
        raise ValueError("model.projection needs a dense layer at the end, and it has none")
    name, last = dense[-1]
    inputs = last.in_features
    head = [
        nn.Linear(inputs, inputs),
        nn.ReLU(),
        nn.Linear(inputs, outputs),
        nn.Linear(outputs, last.out_features, bias=last.bias is not None),
    ]
    if isinstance(module, nn.Sequential) and module[-1] is last:
        return nn.Sequential(*list(module)[:-1], *head)  # flat, as the models are that can be trained stacked
    if last is module:
        return nn.Sequential(*head)
    parent, _, own = name.rpartition(".")
    setattr(module.get_submodule(parent), own, nn.Sequential(*head))
    if groups := getattr(module, "layer_groups", None):
        module.layer_groups = _with_the_new(groups, name)  # type: ignore[assignment]  # nn.Module declares tensors only
    return module


def _with_the_new(groups: Sequence[Sequence[str]], head: str) -> list[list[str]]:
    """Layer groups in which the first of the new layers has the place of the former head, and the others follow it."""
    found: list[list[str]] = []
    for group in groups:
        found.append([f"{head}.0" if part == head else part for part in group])
        if head in group:
            found += [[f"{head}.2"], [f"{head}.3"]]
    return found
