"""The registry of models: their published sizes, seeds, the user's own models, and models that do not fit the data."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.models import MODELS, ModelChoice, build, vector_of, with_vocabulary
from offbeat.references import resolve

MNIST = (1, 28, 28)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("logistic", 784 * 10 + 10),
        ("mlp", (784 * 32 + 32) + (32 * 16 + 16) + (16 * 10 + 10)),
        ("lenet5", 61_706),
        ("cnn", (64 * 4 + 64) + (32 * 64 * 4 + 32) + (32 * 26 * 26 * 10 + 10)),
        ("cnn-small", 21_840),
        ("cnn-over", 663_160),
    ],
)
def test_sizes_on_mnist_are_the_published_ones(name: str, parameters: int) -> None:
    assert vector_of(build(name, MNIST, 10, seed=0)).size == parameters


TEXT = ("textcnn", "transformer", "transformer-lm")


@pytest.mark.parametrize("name", [name for name in MODELS if name not in TEXT])
def test_every_model_of_images_takes_colour_and_any_number_of_classes(name: str) -> None:
    assert build(name, (3, 32, 32), 7, seed=0)(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "shape"), [("textcnn", (2, 7)), ("transformer", (2, 7)), ("transformer-lm", (2, 9, 50))]
)
def test_models_of_texts_take_tokens_and_the_size_of_the_vocabulary(name: str, shape: tuple[int, ...]) -> None:
    tokens = torch.zeros(2, 9, dtype=torch.int64)
    network = build(ModelChoice(name=name, settings={"vocabulary": 50}), (9,), 7, seed=0, example=tokens)
    assert network(tokens).shape == shape


def own_text_model(input_shape: tuple[int, ...], classes: int, vocabulary: int) -> torch.nn.Module:
    return torch.nn.Embedding(vocabulary, classes)


@pytest.mark.parametrize("name", [*TEXT, f"{__name__}:own_text_model"])
def test_the_vocabulary_of_a_model_is_that_of_the_data_unless_it_is_said(name: str) -> None:
    choice = ModelChoice(name=name)
    assert with_vocabulary(choice, lambda: 50).settings == {"vocabulary": 50}
    more = ModelChoice(name=name, settings={"vocabulary": 60})
    assert with_vocabulary(more, lambda: 50) == more
    with pytest.raises(InvalidInput, match=r"model\.vocabulary = 60 is below the 61 tokens"):
        with_vocabulary(more, lambda: 61)
    with pytest.raises(InvalidInput, match=r"vocabulary size is unknown: set model\.vocabulary"):
        with_vocabulary(choice, lambda: 0)


def test_a_model_that_needs_no_vocabulary_does_not_ask_for_it() -> None:
    choice = ModelChoice(name="mlp")
    assert with_vocabulary(choice, lambda: 1 // 0) is choice


def test_models_have_settings_of_their_own() -> None:
    grouped = ModelChoice(name="resnet20", settings={"norm": "group"})
    kinds = {type(module).__name__ for module in build(grouped, (3, 32, 32), 10, seed=0).modules()}
    assert "GroupNorm" in kinds
    assert "BatchNorm2d" not in kinds


def test_a_setting_that_the_model_does_not_have_is_one_sentence() -> None:
    for name, key in (("lenet5", "norm"), ("resnet20", "vocabulary")):
        with pytest.raises(InvalidInput, match=rf"unknown key 'model.{key}'"):
            Experiment.parse({"stop": {"versions": 1}, "model": {"name": name, key: "group"}})
    with pytest.raises(InvalidInput, match=r"model.norm"):
        Experiment.parse({"stop": {"versions": 1}, "model": {"name": "vgg11", "norm": "layer"}})


def test_the_settings_of_a_model_are_written_and_read_again() -> None:
    experiment = Experiment.parse({"stop": {"versions": 1}, "model": {"name": "vgg11", "norm": "group"}})
    again = Experiment.parse(experiment.table())
    assert again.model.choice == ModelChoice(name="vgg11", settings={"norm": "group", "width": 1.0})


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_one_line_of_help(name: str) -> None:
    line = (resolve(MODELS[name]).__doc__ or "").splitlines()[0]
    assert 10 < len(line) < 120
    assert line.endswith(".")


def test_lenet5_has_its_400_features_on_28x28_and_on_32x32() -> None:
    for shape in ((1, 28, 28), (1, 32, 32)):
        first_dense = next(layer for layer in build("lenet5", shape, 10, 0).modules() if isinstance(layer, nn.Linear))
        assert first_dense.in_features == 400


def test_the_seed_decides_the_initial_parameters_and_nothing_else_does() -> None:
    torch.manual_seed(1)
    one = vector_of(build("mlp", MNIST, 10, seed=5))
    torch.manual_seed(2)
    assert np.array_equal(one, vector_of(build("mlp", MNIST, 10, seed=5)))
    assert not np.array_equal(one, vector_of(build("mlp", MNIST, 10, seed=6)))


def test_building_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    build("lenet5", MNIST, 10, seed=0)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("own_models")
    monkeypatch.setitem(sys.modules, "own_models", module)
    return module


def test_a_model_of_ones_own_is_called_with_shape_and_classes(own: ModuleType) -> None:
    own.net = lambda shape, classes: nn.Sequential(nn.Linear(shape[0], classes), nn.Dropout(0.5))  # type: ignore[attr-defined]
    module = build("own_models:net", (4,), 3, seed=0)
    assert module.training
    assert module(torch.zeros(5, 4)).shape == (5, 3)


def test_a_model_of_ones_own_in_double_precision_becomes_float32(own: ModuleType) -> None:
    own.net = lambda shape, classes: nn.Linear(shape[0], classes).double()  # type: ignore[attr-defined]
    assert vector_of(build("own_models:net", (4,), 3, seed=0)).dtype == np.float32


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidInput, match="unknown model 'lenet': did you mean 'lenet5'"):
        build("lenet", MNIST, 10, seed=0)


@pytest.mark.parametrize("shape", [(1, 8, 8), (64,)])
def test_inputs_that_a_model_cannot_take_are_refused_by_name_and_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput) as refusal:
        build("lenet5", shape, 10, seed=0)
    assert "'lenet5'" in str(refusal.value)
    assert str(shape) in str(refusal.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda shape, classes: nn.Linear(shape[0], classes + 1), r"returns \(2, 4\) .* must return \(2, 3\)"),
        (lambda shape, classes: nn.Linear(9, classes), r"does not fit inputs of shape \(4,\)"),
        (lambda shape, classes: "net", "it is a str; it must be an nn.Module with parameters"),
        (lambda shape, classes: nn.LSTM(shape[0], classes), "returns tuple"),
        (3.0, "must be a class or function"),
    ],
)
def test_own_models_that_do_not_fit_are_refused(own: ModuleType, make: object, words: str) -> None:
    own.net = make  # type: ignore[attr-defined]
    with pytest.raises(InvalidInput, match=words):
        build("own_models:net", (4,), 3, seed=0)
