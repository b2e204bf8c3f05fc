"""A Dataset is checked at birth: what cannot be trained on is refused in one sentence that names the part."""

from typing import Any

import numpy as np
import pytest

from offbeat.core.errors import InvalidInput
from offbeat.data import DATASETS, Dataset
from offbeat.data.samples import LazyDevices, Ragged


def arrays(**changes: Any) -> dict[str, Any]:
    return {
        "train_x": np.zeros((4, 1, 2, 3), dtype=np.float32),
        "train_y": np.array([0, 1, 2, 1]),
        "test_x": np.zeros((2, 1, 2, 3), dtype=np.float32),
        "test_y": np.array([0, 2]),
        "classes": 3,
    } | changes


def test_the_input_shape_is_that_of_one_sample() -> None:
    assert Dataset(**arrays()).input_shape == (1, 2, 3)
    flat = arrays(train_x=np.zeros((4, 7), dtype=np.float32), test_x=np.zeros((2, 7), dtype=np.float32))
    assert Dataset(**flat).input_shape == (7,)


def test_a_split_that_comes_with_the_data_is_kept() -> None:
    devices = (np.array([0, 3]), np.array([1, 2]))
    assert Dataset(**arrays(devices=devices)).devices is devices


def not_finite(value: float) -> np.ndarray[Any, Any]:
    x = np.zeros((4, 1, 2, 3), dtype=np.float32)
    x[2, 0, 1, 1] = value
    return x


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_y": np.array([0, 1, 2])}, r"train_x has shape \(4, 1, 2, 3\) and train_y has shape \(3,\)"),
        ({"train_y": np.array([0, 1, 2, 3])}, "train_y holds labels from 0 to 3; they must be 0 to 2"),
        ({"test_y": np.array([-1, 0])}, "test_y holds labels from -1 to 0"),
        ({"train_x": not_finite(np.nan)}, "train_x holds values that are not finite"),
        ({"train_x": not_finite(-np.inf)}, "train_x holds values that are not finite"),
        ({"train_x": np.zeros((4, 1, 2, 3))}, "train_x is an array of float64: it must be a numpy array of float32"),
        ({"train_y": [0, 1, 2, 1]}, "train_y is a list: it must be a numpy array of int64"),
        ({"test_x": np.zeros((0, 1, 2, 3), dtype=np.float32), "test_y": np.zeros(0, dtype=np.int64)}, "test_x has sh"),
        ({"test_x": np.zeros((2, 1, 3, 2), dtype=np.float32)}, "test_x has samples of shape"),
        ({"devices": ()}, "devices is empty"),
        ({"devices": (np.array([0]), np.zeros(0, dtype=np.int64))}, r"devices\[1\] has shape \(0,\)"),
        ({"devices": (np.array([0, 4]),)}, r"devices\[0\] holds indices from 0 to 4; they must be 0 to 3"),
        ({"devices": (np.array([0.0]),)}, r"devices\[0\] is an array of float64"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Dataset(**arrays(**changes))


@pytest.mark.parametrize("name", DATASETS)
def test_every_registered_set_knows_its_name_and_has_one_line_of_help(name: str) -> None:
    settings = DATASETS[name]
    assert settings.model_fields["name"].default == name
    assert settings.__doc__
    assert "\n" not in settings.__doc__


def test_the_data_say_how_many_tokens_there_are() -> None:
    y = np.array([0, 1])
    tokens, numbers = np.array([[1, 4], [0, 2]]), np.ones((2, 3), dtype=np.float32)
    assert Dataset(train_x=tokens, train_y=y, test_x=tokens + 1, test_y=y).tokens == 6
    assert Dataset(train_x=tokens, train_y=y, test_x=tokens, test_y=y, vocabulary=80).tokens == 80
    assert Dataset(train_x=numbers, train_y=y, test_x=numbers, test_y=y).tokens == 0
    both = (numbers, Ragged.of([[3], [1, 2]]))
    assert Dataset(train_x=both, train_y=y, test_x=both, test_y=y).tokens == 4
    lazy = LazyDevices(np.array([2]), lambda device: (tokens, y))
    assert Dataset(train_x=lazy, test_x=tokens, test_y=y).tokens == 0


def test_a_part_of_the_held_out_samples_is_always_the_same_and_leaves_the_rest_as_it_is() -> None:
    data = Dataset(
        train_x=np.array([[0, 1], [2, 9]]),
        train_y=np.array([0, 1]),
        test_x=np.array([[token, 0] for token in range(8)] + [[11, 0]] * 2),
        test_y=np.array([0, 1] * 5),
    )
    part, again = data.with_test_samples(3), data.with_test_samples(3)
    assert part.test_x.shape == (3, 2) and part.test_x.tolist() == again.test_x.tolist()
    kept = [data.test_x.tolist().index(row) for row in part.test_x.tolist()]
    assert kept == sorted(kept) and part.test_y.tolist() == data.test_y[kept].tolist()
    assert part.tokens == data.tokens == 12 and part.classes == data.classes and part.train_x is data.train_x
    assert data.with_test_samples(10) is data
