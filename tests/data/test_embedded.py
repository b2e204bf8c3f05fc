"""The embedded sets are real, complete, scaled, and hold out the same fifth of every class whatever the seed."""

import numpy as np
import pytest

from offbeat.data import DATASETS, Dataset
from offbeat.data.embedded import Digits, Mnist5k

SHAPES = {"digits": (1, 8, 8), "mnist5k": (1, 28, 28)}
SAMPLES = {"digits": 1797, "mnist5k": 5000}


@pytest.fixture(scope="module", params=sorted(SHAPES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def dataset(name: str) -> Dataset:
    return DATASETS[name].model_validate({}).load(seed=0)


def test_nothing_is_missing(name: str, dataset: Dataset) -> None:
    assert dataset.input_shape == SHAPES[name]
    assert dataset.classes == 10
    assert len(dataset.train_y) + len(dataset.test_y) == SAMPLES[name]


def test_a_fifth_of_every_class_is_held_out(dataset: Dataset) -> None:
    train, test = np.bincount(dataset.train_y), np.bincount(dataset.test_y)
    np.testing.assert_array_equal(test, (train + test) // 5)


def test_no_held_out_image_is_also_trained_on(dataset: Dataset) -> None:
    trained = {image.tobytes() for image in dataset.train_x}
    assert not any(image.tobytes() in trained for image in dataset.test_x)


def test_the_seed_changes_nothing(name: str, dataset: Dataset) -> None:
    other = DATASETS[name].model_validate({}).load(seed=1)
    np.testing.assert_array_equal(other.test_x, dataset.test_x)
    np.testing.assert_array_equal(other.train_x, dataset.train_x)
    np.testing.assert_array_equal(other.train_y, dataset.train_y)


def test_a_nearest_mean_classifier_finds_the_digits_so_labels_belong_to_images(dataset: Dataset) -> None:
    flat = dataset.train_x.reshape(len(dataset.train_x), -1)
    means = np.stack([flat[dataset.train_y == label].mean(axis=0) for label in range(10)])
    distances = ((dataset.test_x.reshape(len(dataset.test_x), 1, -1) - means) ** 2).sum(axis=2)
    assert (distances.argmin(axis=1) == dataset.test_y).mean() > 0.75


def test_digits_go_from_0_to_1() -> None:
    dataset = Digits().load(seed=0)
    assert (dataset.train_x.min(), dataset.train_x.max()) == (0, 1)


def test_mnist5k_has_500_of_each_class_and_is_standardised() -> None:
    dataset = Mnist5k().load(seed=0)
    assert np.bincount(dataset.train_y).tolist() == [400] * 10
    # 0 -> (0 - 0.1307) / 0.3081 = -0.42421, 255 -> (1 - 0.1307) / 0.3081 = 2.82149
    assert dataset.train_x.min() == pytest.approx(-0.42421, abs=1e-5)
    assert dataset.train_x.max() == pytest.approx(2.82149, abs=1e-5)
    assert dataset.train_x.mean() == pytest.approx(0, abs=0.05)
    assert dataset.train_x.std() == pytest.approx(1, abs=0.05)
