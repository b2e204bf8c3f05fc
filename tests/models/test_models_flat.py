"""A module as one flat vector."""

import numpy as np
import pytest
import torch
from torch import nn

from offbeat.models import ModelChoice, build, flops_per_sample, layout_of, vector_of
from offbeat.models.flat import layers_by_tensor


def test_buffers_and_frozen_parameters_stand_behind_the_trained_ones_and_counters_are_left_out() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1, bias=False))
    module[0].bias.requires_grad_(False)
    layout = layout_of(module)
    trained = [entry.name for entry in layout.entries if entry.trained]
    assert trained == ["0.weight", "1.weight", "1.bias", "2.weight"]
    assert [entry.name for entry in layout.entries[4:]] == ["0.bias", "1.running_mean", "1.running_var"]
    assert (layout.trained_size, layout.size) == (6 + 3 + 3 + 3, 15 + 9)


def test_layers_are_numbered_from_input_to_output() -> None:
    layout = layout_of(build("mlp", (4,), 2, seed=0))
    assert [entry.layer for entry in layout.entries] == [0, 0, 1, 1, 2, 2]


def by_tensor(name: str) -> ModelChoice:
    return ModelChoice(name=name, layers="tensors")


def test_layers_can_be_counted_by_tensor() -> None:
    for name, modules, tensors in (("mlp", 3, 6), ("cnn-small", 4, 8), ("logistic", 1, 2)):
        plain, split = build(name, (1, 28, 28), 10, 0), build(by_tensor(name), (1, 28, 28), 10, 0)
        assert (layout_of(plain).trained_layers, layout_of(split).trained_layers) == (modules, tensors)
        assert (vector_of(plain) == vector_of(split)).all(), "the vector is the same"
    layout = layout_of(build(by_tensor("mlp"), (4,), 2, 0))
    names = [entry.name for entry in sorted(layout.entries, key=lambda entry: entry.layer)]
    assert names == ["1.weight", "1.bias", "3.weight", "3.bias", "5.weight", "5.bias"]
    assert [entry.name for entry in layout.head] == ["5.weight", "5.bias"]


def test_by_tensor_what_is_not_trained_goes_with_its_submodule_and_groups_keep_their_order() -> None:
    class Backwards(nn.Module):
        """Registered from output to input, with running statistics in the first layer."""

        def __init__(self) -> None:
            super().__init__()
            self.head, self.norm, self.scale = nn.Linear(2, 2), nn.BatchNorm1d(2), nn.BatchNorm1d(2, affine=False)
            self.layer_groups = [["norm", "scale"], ["head"]]

    layers = layers_by_tensor(Backwards())
    statistics = ["norm.running_mean", "norm.running_var"]
    assert layers == [
        ["norm.weight"],
        ["norm.bias", *statistics],
        ["head.weight"],
        ["head.bias", "scale.running_mean", "scale.running_var"],
    ]


def test_the_vector_holds_the_values_in_the_order_of_the_layout() -> None:
    dense = nn.Linear(2, 3)
    module = nn.Sequential(dense, nn.BatchNorm1d(3))
    vector, layout = vector_of(module), layout_of(module)
    assert np.array_equal(vector[layout["0.bias"].span], dense.bias.detach().numpy())
    assert np.array_equal(vector[layout["1.running_var"].span], [1, 1, 1])


def test_the_vector_is_a_copy_that_cannot_be_written_to() -> None:
    module = nn.Linear(2, 1)
    vector = vector_of(module)
    before = vector.copy()
    with torch.no_grad():
        module.weight.zero_()
    assert np.array_equal(vector, before)
    with pytest.raises(ValueError, match="read-only"):
        vector[0] = 1


def test_training_costs_three_times_the_forward_pass() -> None:
    module = build("mlp", (784,), 10, seed=0)
    assert flops_per_sample(module, torch.zeros(1, 784)) == 3 * 2 * (784 * 32 + 32 * 16 + 16 * 10)
    assert module.training
