"""The projection head of MOON's networks: its size by hand, its place, and models that have no room for it."""

import numpy as np
import pytest
import torch
from torch import nn

from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.models import ModelChoice, build, layout_of, vector_of
from offbeat.models.projection import with_projection


def test_the_head_stands_before_the_last_layer_and_the_rest_is_as_without_it() -> None:
    plain = build("mlp", (4,), 3, seed=0)
    module = build(ModelChoice(name="mlp", projection=5), (4,), 3, seed=0)
    shapes = [tuple(each.weight.shape) for each in module.modules() if isinstance(each, nn.Linear)]
    # 4 -> 32 -> 16 as before, then 16 -> 16 -> 5, and the classes
    assert shapes == [(32, 4), (16, 32), (16, 16), (5, 16), (3, 5)]
    kinds = [type(each).__name__ for each in module.children()]
    assert kinds == ["Flatten", "Linear", "ReLU", "Linear", "ReLU", "Linear", "ReLU", "Linear", "Linear"]
    body = (4 * 32 + 32) + (32 * 16 + 16)
    assert np.array_equal(vector_of(plain)[:body], vector_of(module)[:body])
    assert vector_of(module).size == body + (16 * 16 + 16) + (16 * 5 + 5) + (5 * 3 + 3)


@pytest.mark.parametrize(("name", "layers"), [("resnet20", 22), ("transformer", 6)])
def test_the_new_layers_are_layers_of_their_own(name: str, layers: int) -> None:
    # ResNet-20: 19 convolutions and three dense layers. Transformer: the embeddings, two blocks, norm with the first
    # of the dense layers, and the other two.
    text = name == "transformer"
    shape, settings = ((7,), {"vocabulary": 9, "embedding": 8}) if text else ((3, 32, 32), {})
    example = torch.ones(2, 7, dtype=torch.int64) if text else None
    module = build(ModelChoice(name=name, settings=settings, projection=6), shape, 4, seed=0, example=example)
    layout = layout_of(module)
    assert layout.trained_layers == layers
    assert [entry.shape for entry in layout.head] == [(4, 6), (4,)]


def test_a_model_may_be_one_dense_layer_but_must_have_one() -> None:
    assert [type(each).__name__ for each in with_projection(nn.Linear(2, 3, bias=False), 4).children()] == [
        "Linear",
        "ReLU",
        "Linear",
        "Linear",
    ]
    with pytest.raises(ValueError, match="needs a model with a dense layer"):
        with_projection(nn.Conv2d(1, 1, 1), 4)


def test_it_is_a_setting_of_every_model() -> None:
    experiment = Experiment.parse({"stop": {"versions": 1}, "model": {"name": "lenet5", "projection": 256}})
    assert experiment.model.choice == ModelChoice(name="lenet5", projection=256)
    assert Experiment.parse(experiment.table()).model.choice == experiment.model.choice
    assert "projection" not in Experiment.parse({"stop": {"versions": 1}}).table()["model"]
    with pytest.raises(InvalidInput, match=r"model\.projection"):
        Experiment.parse({"stop": {"versions": 1}, "model": {"name": "lenet5", "projection": 0}})
