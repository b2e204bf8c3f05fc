"""IDX files, plain or compressed, come back as they were written; damaged ones are refused by name."""

import gzip
import lzma
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from offbeat.core.errors import InvalidInput
from offbeat.data import DATASETS, Dataset
from offbeat.data.idx import Mnist

Bytes = npt.NDArray[np.uint8]
PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def idx(array: npt.ArrayLike) -> bytes:
    values = np.asarray(array, dtype=np.uint8)
    return struct.pack(f">{1 + values.ndim}I", 0x800 + values.ndim, *values.shape) + values.tobytes()


def write(folder: Path, prefix: str, images: Bytes, labels: npt.ArrayLike, suffix: str = "") -> None:
    (folder / f"{prefix}-images-idx3-ubyte{suffix}").write_bytes(PACK[suffix](idx(images)))
    (folder / f"{prefix}-labels-idx1-ubyte{suffix}").write_bytes(PACK[suffix](idx(labels)))


def load(name: str, folder: Path, **options: Any) -> Dataset:
    return DATASETS[name].model_validate({"dir": str(folder), **options}).load(seed=0)


TRAIN = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3)
TEST = np.full((2, 2, 3), 255, dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "train", TRAIN, [0, 9, 3, 3, 1])
    write(tmp_path, "t10k", TEST, [7, 0])
    return tmp_path


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize(("name", "mean", "std"), [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.2860, 0.3530)])
def test_files_come_back_standardised(tmp_path: Path, suffix: str, name: str, mean: float, std: float) -> None:
    write(tmp_path, "train", TRAIN, [0, 9, 3, 3, 1], suffix)
    write(tmp_path, "t10k", TEST, [7, 0], suffix)
    dataset = load(name, tmp_path)
    np.testing.assert_allclose(dataset.train_x, (TRAIN[:, None] / 255 - mean) / std, rtol=1e-5)
    np.testing.assert_allclose(dataset.test_x, (1 - mean) / std, rtol=1e-5)
    assert dataset.train_y.tolist() == [0, 9, 3, 3, 1]
    assert dataset.test_y.tolist() == [7, 0]
    assert (dataset.classes, dataset.input_shape) == (10, (1, 2, 3))


def test_a_limit_keeps_the_same_training_samples_for_every_seed(folder: Path) -> None:
    settings = Mnist(dir=str(folder), limit=3)
    first, second = settings.load(seed=0), settings.load(seed=1)
    assert first.train_x.shape == (3, 1, 2, 3)
    assert len(first.test_y) == 2
    np.testing.assert_array_equal(first.train_x, second.train_x)
    whole = {(image.tobytes(), label) for image, label in zip(*_train(load("mnist", folder)), strict=True)}
    assert {(image.tobytes(), label) for image, label in zip(*_train(first), strict=True)} < whole


def test_a_limit_above_what_there_is_keeps_all(folder: Path) -> None:
    assert len(load("mnist", folder, limit=99).train_y) == 5


def _train(dataset: Dataset) -> tuple[Any, Any]:
    return dataset.train_x, dataset.train_y


def test_emnist_images_are_turned_upright(tmp_path: Path) -> None:
    write(tmp_path, "emnist-balanced-train", TRAIN, [0, 46, 3, 3, 1], ".gz")
    write(tmp_path, "emnist-balanced-test", TEST, [7, 0], ".gz")
    dataset = load("emnist", tmp_path)
    upright = TRAIN.transpose(0, 2, 1)[:, None]
    np.testing.assert_allclose(dataset.train_x, (upright / 255 - 0.1751) / 0.3332, rtol=1e-5)
    assert dataset.train_x.flags.c_contiguous
    assert (dataset.classes, dataset.input_shape) == (47, (1, 3, 2))


def test_emnist_letters_start_at_class_0(tmp_path: Path) -> None:
    write(tmp_path, "emnist-letters-train", TRAIN, [1, 26, 2, 2, 1])
    write(tmp_path, "emnist-letters-test", TEST, [26, 1])
    dataset = load("emnist", tmp_path, split="letters")
    assert dataset.train_y.tolist() == [0, 25, 1, 1, 0]
    assert dataset.test_y.tolist() == [25, 0]
    assert dataset.classes == 26


def test_emnist_letters_with_a_label_0_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "emnist-letters-train", TRAIN, [0, 26, 2, 2, 1])
    write(tmp_path, "emnist-letters-test", TEST, [26, 1])
    with pytest.raises(InvalidInput, match=r"emnist-letters-train-labels-idx1-ubyte, sample .* must be 1 to 26"):
        load("emnist", tmp_path, split="letters")


def test_an_unknown_emnist_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="balanced"):
        load("emnist", tmp_path, split="fair")


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nowhere' is not a directory"):
        load("mnist", tmp_path / "nowhere")


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / LABELS).unlink()
    with pytest.raises(InvalidInput, match=LABELS):
        load("mnist", folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (IMAGES, b"", "is truncated: it has 0 bytes"),
        (IMAGES, idx(TRAIN)[:10], "is truncated: it has 10 bytes"),
        (IMAGES, idx(TRAIN)[:-1], "declares 5 x 2 x 3 bytes of data but holds 29"),
        (IMAGES, idx(TRAIN) + b"\0", "holds 31"),
        (IMAGES, idx(TRAIN[:0]), "declares 0 x 2 x 3"),
        (IMAGES, idx(TRAIN[:4]), "holds 4 images and .* holds 5 labels"),
        (IMAGES, idx(TRAIN[0]), "starts with 0x00000802; an IDX file of 3 dimensions starts with 0x00000803"),
        (LABELS, idx(TRAIN), "starts with 0x00000803"),
        (LABELS, idx([0, 10, 3, 3, 1]), "sample 1: the label is 10; it must be 0 to 9"),
    ],
)
def test_a_damaged_file_is_refused_by_name(folder: Path, name: str, content: bytes, message: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=f"{name}.*{message}"):
        load("mnist", folder)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("damage", ["not compressed", "cut", "changed"])
def test_a_damaged_compressed_file_is_refused_by_name(folder: Path, suffix: str, damage: str) -> None:
    packed = bytearray(PACK[suffix](idx(TRAIN)))
    if damage == "cut":
        del packed[-12:]
    elif damage == "changed":
        packed[len(packed) // 2] ^= 0xFF
    (folder / IMAGES).unlink()
    (folder / f"{IMAGES}{suffix}").write_bytes(idx(TRAIN) if damage == "not compressed" else packed)
    with pytest.raises(InvalidInput, match=f"{IMAGES}{suffix} cannot be read"):
        load("mnist", folder)


def test_a_home_directory_is_understood(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert len(load("mnist", Path("~")).train_y) == 5
