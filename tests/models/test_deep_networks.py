"""The deep networks: their published sizes, their layers, and training them whole, layer by layer and narrow."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from offbeat.core.coverage import submodel
from offbeat.core.orders import Order
from offbeat.models import layout_of, vector_of
from offbeat.models.deep_networks import ResidualBlock, alexnet, resnet18, resnet20, vgg
from offbeat.models.normalisation import GroupNorm, Norm, normalisation
from offbeat.models.text_networks import TextCNN, TextTransformer
from offbeat.training.submodel import narrowed
from offbeat.training.trainer import TorchTrainer
from offbeat.training.training_state import TrainingJob, TrainingState

CIFAR = (3, 32, 32)
Make = Callable[..., nn.Module]
NETWORKS: dict[str, Make] = {"alexnet": alexnet, "vgg11": partial(vgg, depth=11), "resnet20": resnet20}


def parameters(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


QUARTER = sum(9 * a * b + b for a, b in pairwise((3, 16, 32, 64, 64, 128, 128, 128, 128))) + 128 * 10 + 10
"""VGG-11 with a quarter of its channels, without normalisation."""


@pytest.mark.parametrize(
    ("network", "size"),
    [
        (resnet20(CIFAR, 10), 269_722),
        (resnet18(CIFAR, 10), 11_173_962),
        (vgg(CIFAR, 10, 11), 9_231_114),
        (vgg(CIFAR, 10, 13), 9_416_010),
        (vgg(CIFAR, 10, 16), 14_728_266),
        (vgg(CIFAR, 10, 11, norm="none"), 9_231_114 - 2 * (64 + 128 + 2 * 256 + 4 * 512)),
        (vgg(CIFAR, 10, 11, norm="none", width=0.25), QUARTER),
    ],
)
def test_sizes_are_those_in_general_use(network: nn.Module, size: int) -> None:
    assert parameters(network) == size


def test_the_size_of_alexnet_by_hand() -> None:
    convolutions = [(3, 64), (64, 192), (192, 384), (384, 256), (256, 256)]
    dense = [(256 * 2 * 2, 4096), (4096, 4096), (4096, 10)]  # 32 -> 16 by the stride, then pooled three times
    expected = sum(9 * a * b + b for a, b in convolutions) + sum(a * b + b for a, b in dense)
    assert parameters(alexnet(CIFAR, 10)) == expected


def test_the_sizes_of_the_text_networks_by_hand() -> None:
    convolutions = sum(128 * 100 * width + 100 for width in (3, 4, 5))
    assert parameters(TextCNN(5000, 2)) == 5000 * 128 + convolutions + (300 * 2 + 2)
    attention = 3 * (64 * 64 + 64) + (64 * 64 + 64)
    layer = attention + (64 * 256 + 256) + (256 * 64 + 64) + 2 * (64 + 64)
    assert parameters(TextTransformer(5000, 2)) == 5000 * 64 + 512 * 64 + 2 * layer + (64 + 64) + (64 * 2 + 2)


def test_a_residual_network_has_a_layer_for_each_convolution_and_the_head() -> None:
    assert layout_of(resnet20(CIFAR, 10)).trained_layers == 20
    assert layout_of(resnet18(CIFAR, 10)).trained_layers == 18 + 3  # three shortcuts are projected


def test_a_shortcut_without_parameters_takes_every_other_pixel_and_pads_with_channels_of_zeros() -> None:
    block = ResidualBlock(2, 4, 2, projected=False, norm="none")
    for convolution in (block.first, block.second):
        nn.init.zeros_(convolution.weight)
        nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
    image = torch.arange(1.0, 33.0).reshape(1, 2, 4, 4)
    output = block(image)
    assert output.shape == (1, 4, 2, 2)
    assert output[0, 0].tolist() == [[1.0, 3.0], [9.0, 11.0]]
    assert output[0, 1].tolist() == [[17.0, 19.0], [25.0, 27.0]]
    assert not output[0, 2:].any()


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_takes_every_normalisation(name: str, norm: Norm) -> None:
    network = NETWORKS[name](CIFAR, 7, norm=norm)
    kinds = {type(module) for module in network.modules()}
    assert (nn.BatchNorm2d in kinds, GroupNorm in kinds) == (norm == "batch", norm == "group")
    assert network(torch.zeros(2, *CIFAR)).shape == (2, 7)


def test_group_normalisation_has_eight_groups_or_as_many_as_divide_the_channels() -> None:
    groups = [normalisation("group", channels) for channels in (64, 12, 6)]
    assert [each.num_groups for each in groups] == [8, 4, 2]


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("width", [0.5, 0.0625])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_narrow_network_runs_and_its_vector_is_the_masked_one(name: str, width: float, norm: Norm) -> None:
    network = NETWORKS[name](CIFAR, 10, norm=norm)
    layout = layout_of(network)
    narrow = narrowed(network, layout, width)
    assert np.array_equal(vector_of(narrow), vector_of(network)[submodel(layout, width).chosen])
    assert narrow(torch.zeros(2, *CIFAR)).shape == (2, 10)


def test_a_narrow_residual_network_computes_the_first_channels_of_the_whole_one() -> None:
    """With the weights that the narrow one does not have at zero, both must give the same scores."""
    network = resnet18(CIFAR, 10, norm="none").eval()
    layout = layout_of(network)
    chosen, vector = submodel(layout, 0.5).chosen, vector_of(network).copy()
    vector[~chosen] = 0.0
    tensors = dict(network.named_parameters())
    for entry in layout.entries:
        tensors[entry.name].data = torch.from_numpy(vector[entry.span].reshape(entry.shape).copy())
    narrow = narrowed(network, layout, 0.5).eval()
    image = torch.rand(2, *CIFAR, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(narrow(image), network(image), atol=1e-5)


class Whole:
    def samples(self, device: int) -> npt.NDArray[np.int64]:
        return np.arange(8)


@pytest.mark.parametrize("name", [*NETWORKS, "textcnn", "transformer"])
def test_layer_by_layer_is_the_same_training_as_at_once(name: str) -> None:
    rng = np.random.default_rng(0)
    x: npt.NDArray[Any]
    if name in NETWORKS:
        network, x = NETWORKS[name](CIFAR, 10, norm="group"), rng.normal(size=(8, *CIFAR)).astype(np.float32)
    else:
        network = (TextCNN if name == "textcnn" else TextTransformer)(20, 10, embedding=8)
        x = rng.integers(1, 20, (8, 6))
    trainer = TorchTrainer(network, x, rng.integers(0, 10, 8), Whole(), 0)
    start, layers = vector_of(network), layout_of(network).trained_layers
    ends = []
    for order in (Order(batch_size=8), Order(batch_size=8, unit="layer", slices=layers)):
        work = TrainingState(parameters=start)
        job = TrainingJob(device=0, ticket=1, order=order, first=0, last=order.slices, state=work, anchor=start)
        ends.append(trainer.train(job).parameters)
    assert not np.array_equal(ends[0], start)
    assert np.allclose(ends[0], ends[1], atol=1e-6)


@pytest.mark.parametrize("network", [TextCNN(10, 2), TextTransformer(10, 2)])
def test_padding_changes_no_score_of_a_text_network(network: nn.Module) -> None:
    tokens = torch.tensor([[5, 3, 8, 2, 9, 4]])
    padded = torch.cat([tokens, torch.zeros(1, 5, dtype=torch.int64)], dim=1)
    assert torch.allclose(network.eval()(tokens), network(padded), atol=1e-5)


def test_a_causal_transformer_sees_no_later_token() -> None:
    network = TextTransformer(10, 10, causal=True).eval()
    tokens = torch.tensor([[5, 3, 8, 2], [5, 3, 8, 7]])
    scores = network(tokens)
    assert torch.equal(scores[0, :3], scores[1, :3])
    assert not torch.equal(scores[0, 3], scores[1, 3])
