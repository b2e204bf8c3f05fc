"""Whether a module is known to be pure: each sample on its own, no chance, no state.

The gradient of a full batch may then be summed up in blocks, and one that was computed before need not be again. A
module of a kind that is not listed (dropout, batch normalisation, the user's own classes) may be anything.
"""

from torch import nn

from offbeat.models.normalisation import GroupNorm

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


def is_pure(module: nn.Module) -> bool:
    """Whether every part of the module is of a kind that is listed.

    >>> is_pure(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), is_pure(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    (True, False)
    """
    return all(type(each) in PURE for each in module.modules())
