"""SVHN comes back from MATLAB files of the official form; damaged ones are refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from offbeat.core.errors import InvalidInput
from offbeat.data.svhn import MEAN, STD, Svhn


def write(folder: Path, part: str, labels: list[int], **others: Any) -> Path:
    """Images whose pixel in row 1 and column 2 is 10 * place in red, one more in green, two more in blue."""
    images = np.zeros((32, 32, 3, len(labels)), dtype=np.uint8)
    images[1, 2] = 10 * np.arange(len(labels)) + np.arange(3)[:, None]
    path = folder / f"{part}_32x32.mat"
    savemat(path, {"X": images, "y": np.array(labels, dtype=np.uint8)[:, None]} | others, do_compression=True)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "train", [10, 1, 9])
    write(tmp_path, "test", [5, 10])
    write(tmp_path, "extra", [2])
    return tmp_path


def test_label_ten_is_the_digit_zero_and_planes_stand_in_their_places(folder: Path) -> None:
    dataset = Svhn(dir=str(folder)).load(seed=0)
    assert dataset.train_y.tolist() == [0, 1, 9]
    assert dataset.test_y.tolist() == [5, 0]
    assert (dataset.classes, dataset.input_shape, dataset.class_names[9]) == (10, (3, 32, 32), "9")
    expected = [(value / 255 - mean) / std for value, mean, std in zip((20, 21, 22), MEAN, STD, strict=True)]
    np.testing.assert_allclose(dataset.train_x[2, :, 1, 2], expected, rtol=1e-5)


def test_bytes_give_the_same_numbers_and_extra_images_join_in(folder: Path) -> None:
    floats = Svhn(dir=str(folder), extra=True).load(seed=0)
    pixels = Svhn(dir=str(folder), extra=True, as_bytes=True).load(seed=0)
    assert floats.train_y.tolist() == [0, 1, 9, 2]
    assert pixels.train_x.dtype == np.uint8
    assert pixels.pipeline is not None
    np.testing.assert_array_equal(pixels.pipeline.evaluation(pixels.train_x), floats.train_x)


def test_a_truncated_file_is_refused_by_name(folder: Path) -> None:
    path = folder / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InvalidInput, match=r"train_32x32\.mat is not a complete MATLAB file"):
        Svhn(dir=str(folder)).load(seed=0)


@pytest.mark.parametrize(
    ("labels", "others", "message"),
    [
        ([0, 1], {}, "sample 0: the label is 0; it must be 1 to 10"),
        ([1, 2], {"y": np.array([[1]], dtype=np.uint8)}, "holds 2 images and 1 labels"),
        ([1, 300], {"y": np.array([[1], [300]], dtype=np.int16)}, "sample 1: the label is 300; it must be 1 to 10"),
        ([1], {"X": np.zeros((3, 32, 32, 1), dtype=np.uint8)}, r"X is uint8 of shape \(3, 32, 32, 1\)"),
        ([1], {"X": np.zeros((32, 32, 3, 1))}, "X is float64"),
    ],
)
def test_what_is_no_svhn_is_refused_by_name(
    folder: Path, labels: list[int], others: dict[str, Any], message: str
) -> None:
    write(folder, "test", [label % 256 for label in labels], **others)
    with pytest.raises(InvalidInput, match=rf"test_32x32\.mat[:,]? {message}"):
        Svhn(dir=str(folder)).load(seed=0)


def test_a_file_with_other_variables_is_refused_by_name(folder: Path) -> None:
    savemat(folder / "test_32x32.mat", {"digitStruct": np.zeros(3)})
    with pytest.raises(InvalidInput, match=r"test_32x32\.mat has no X and y"):
        Svhn(dir=str(folder)).load(seed=0)
