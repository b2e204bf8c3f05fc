"""The normalisation layers of the larger networks."""

from math import gcd
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

Norm = Literal["batch", "group", "none"]
"""Batch normalisation, group normalisation, or none."""
GROUPS = 8


class GroupNorm(nn.GroupNorm):
    """Group normalisation that also works in a submodel with only the first channels of the layer.

    The number of groups is the greatest common divisor of `groups` and the number of channels, so that groups have
    equal sizes.

    >>> GroupNorm(8, 12)(torch.zeros(1, 12, 2, 2)).shape
    torch.Size([1, 12, 2, 2])
    """

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__(gcd(groups, channels), channels)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalise each group of channels of each sample."""
        groups = gcd(self.num_groups, inputs.shape[1])
        return functional.group_norm(inputs, groups, self.weight, self.bias, self.eps)


def normalisation(norm: Norm, channels: int) -> nn.Module:
    """The layer that normalises this number of channels."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    return GroupNorm(GROUPS, channels) if norm == "group" else nn.Identity()
