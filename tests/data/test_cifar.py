"""CIFAR-10 comes back the same from both of its published forms; damaged and hostile files are refused by name."""

import gzip
import lzma
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest

from offbeat.core.errors import InvalidInput
from offbeat.data import Dataset
from offbeat.data.cifar import MEAN, MEAN_100, STD, STD_100, Cifar10, Cifar100, parse_python_batch

Bytes = npt.NDArray[np.uint8]
PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
HERE = Path("data_batch_1")

Batch = tuple[Bytes, list[int]]


def make_batch(number: int) -> Batch:
    """Two images; the first pixel of each plane tells which image and which plane."""
    pixels = np.zeros((2, 3, 1024), dtype=np.uint8)
    pixels[:, :, 0] = 40 * number + np.arange(6).reshape(2, 3)
    return pixels.reshape(2, 3072), [number, 9 - number]


def binary_form(pixels: Bytes, labels: list[int]) -> bytes:
    return b"".join(bytes([label]) + image.tobytes() for image, label in zip(pixels, labels, strict=True))


def python_form(pixels: Bytes, labels: list[int], *, dtype: bytes = b"u1", by_columns: bool = False) -> bytes:
    """The opcodes of the official batches, as Python 2 wrote them (pickle protocol 2)."""

    def string(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    rows, columns = pixels.shape
    content = pixels.tobytes(order="F" if by_columns else "C")
    number = b"M" + struct.pack("<H", rows) + b"M" + struct.pack("<H", columns)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + b"K\x00\x85" + string(b"b") + b"tR"
        b"(K\x01" + number + b"\x86cnumpy\ndtype\n" + string(dtype) + b"K\x00K\x01\x87R"
        b"(K\x03" + string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + (b"\x88" if by_columns else b"\x89") + b"T" + struct.pack("<I", len(content)) + content + b"tb"
    )  # fmt: skip
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    names = b"](" + string(b"a.png") + string(b"b.png") + b"e"
    fields = {b"batch_label": string(b"batch 1 of 5"), b"labels": listed, b"data": array, b"filenames": names}
    return b"\x80\x02}(" + b"".join(string(key) + value for key, value in fields.items()) + b"u."


def load(folder: Path) -> Dataset:
    return Cifar10(dir=str(folder)).load(seed=0)


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("form", ["binary", "python"])
def test_both_forms_come_back_standardised_per_channel(tmp_path: Path, form: str, suffix: str) -> None:
    for number, name in enumerate(BATCHES):
        content = binary_form(*make_batch(number)) if form == "binary" else python_form(*make_batch(number))
        (tmp_path / f"{name}{'.bin' if form == 'binary' else ''}{suffix}").write_bytes(PACK[suffix](content))
    dataset = load(tmp_path)
    assert dataset.train_y.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert dataset.test_y.tolist() == [5, 4]
    assert (dataset.classes, dataset.input_shape) == (10, (3, 32, 32))
    # Image 1 of batch 3 starts with 40 * 3 + 3, 4, 5 in its red, green and blue plane.
    expected = [(value / 255 - mean) / std for value, mean, std in zip((123, 124, 125), MEAN, STD, strict=True)]
    np.testing.assert_allclose(dataset.train_x[7, :, 0, 0], expected, rtol=1e-5)
    np.testing.assert_allclose(dataset.train_x[7, :, 31, 31], -np.array(MEAN) / STD, rtol=1e-5)


def test_an_array_that_was_stored_column_by_column_is_the_same_array() -> None:
    pixels, labels = make_batch(1)
    read, _ = parse_python_batch(HERE, python_form(pixels, labels, by_columns=True))
    np.testing.assert_array_equal(read, pixels)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_a_batch_that_was_written_again_by_python_3_is_read_too(protocol: int) -> None:
    pixels, labels = make_batch(2)
    read = parse_python_batch(HERE, pickle.dumps({b"labels": labels, b"data": pixels}, protocol=protocol))
    np.testing.assert_array_equal(read[0], pixels)
    assert read[1].tolist() == labels


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(BATCHES):
        (tmp_path / f"{name}.bin").write_bytes(binary_form(*make_batch(number)))
    return tmp_path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes"),
        (binary_form(*make_batch(1))[:-1], "has 6145 bytes: it must hold whole records of 3073 bytes"),
        (binary_form(make_batch(1)[0], [3, 10]), "sample 1: the label is 10; it must be 0 to 9"),
    ],
)
def test_a_damaged_binary_batch_is_refused_by_name(folder: Path, content: bytes, message: str) -> None:
    (folder / "data_batch_4.bin").write_bytes(content)
    with pytest.raises(InvalidInput, match=rf"data_batch_4\.bin,? {message}"):
        load(folder)


def test_a_missing_batch_is_named(folder: Path) -> None:
    (folder / "test_batch.bin").unlink()
    with pytest.raises(InvalidInput, match=r"has no file test_batch\.bin or test_batch"):
        load(folder)


GOOD = python_form(*make_batch(1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Ran out of input"),
        (b"not a pickle", ""),
        (GOOD[:-100], "truncated"),
        (b"\x80\x02}.", "b'data'"),
        (python_form(make_batch(1)[0][:, :3071], [1, 2]), "rows of 3072 unsigned bytes"),
        (python_form(make_batch(1)[0], [1, 2], dtype=b"O8"), "rows of 3072 unsigned bytes"),
        (python_form(make_batch(1)[0], [1]), "2 images and 1 labels"),
        (GOOD.replace(b"K\x01K\x08e", b"NNe"), "integer"),
    ],
)
def test_a_damaged_python_batch_is_refused_by_name(content: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"data_batch_1 is not a CIFAR-10 batch for Python.*{message}"):
        parse_python_batch(HERE, content)


@pytest.mark.parametrize(
    ("call", "asked"),
    [
        (b"cos\nsystem\n(S'touch %b'\ntR.", "os.system"),
        (b"c__builtin__\nopen\n(S'%b'\nS'w'\ntR.", "__builtin__.open"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93(S'touch %b'\ntR.", "os.system"),
        (b"(S'touch %b'\nios\nsystem\n.", "os.system"),
        (b"\x80\x04\x8c\x05numpy\x8c\x19ndarray.__class__.__mro__\x93.%b", "numpy.ndarray.__class__.__mro__"),
    ],
)
def test_a_hostile_pickle_is_refused_before_it_does_anything(tmp_path: Path, call: bytes, asked: str) -> None:
    victim = tmp_path / "victim"
    with pytest.raises(InvalidInput, match=f"data_batch_1 is not .*: it asks for {asked}, which no batch contains"):
        parse_python_batch(HERE, call.replace(b"%b", str(victim).encode()))
    assert not victim.exists()


@pytest.mark.parametrize("target", ["numpy\nndarray", "numpy\ndtype", "_codecs\nencode"])
def test_a_pickle_that_abuses_the_allowed_names_only_is_refused_too(target: str) -> None:
    state = b"(dS'code'\nS'x'\ns"
    with pytest.raises(InvalidInput, match="data_batch_1 is not"):
        parse_python_batch(HERE, b"c" + target.encode() + b"\n" + state + b"b.")
    parse_python_batch(HERE, GOOD)


def cifar100_records(labels: list[tuple[int, int]]) -> bytes:
    """Records of a coarse and a fine label; every pixel of an image is its place."""
    return b"".join(bytes(pair) + bytes([place]) * 3072 for place, pair in enumerate(labels))


@pytest.mark.parametrize(("kind", "expected"), [("fine", [99, 7]), ("coarse", [19, 3])])
@pytest.mark.parametrize("form", ["binary", "python"])
def test_cifar100_has_fine_and_coarse_labels_in_both_forms(
    tmp_path: Path, form: str, kind: Literal["fine", "coarse"], expected: list[int]
) -> None:
    for part in ("train", "test"):
        if form == "binary":
            (tmp_path / f"{part}.bin").write_bytes(cifar100_records([(19, 99), (3, 7)]))
        else:
            pixels = np.repeat(np.arange(2, dtype=np.uint8), 3072).reshape(2, 3072)
            batch = {b"fine_labels": [99, 7], b"coarse_labels": [19, 3], b"data": pixels}
            (tmp_path / part).write_bytes(pickle.dumps(batch, protocol=2))
    dataset = Cifar100(dir=str(tmp_path), labels=kind).load(seed=0)
    assert dataset.train_y.tolist() == dataset.test_y.tolist() == expected
    assert dataset.classes == (100 if kind == "fine" else 20)
    assert dataset.class_names == ()
    np.testing.assert_allclose(dataset.train_x[1, :, 5, 5], (1 / 255 - np.array(MEAN_100)) / STD_100, rtol=1e-5)


def test_cifar100_takes_the_names_of_its_classes_from_the_official_file(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / f"{part}.bin").write_bytes(cifar100_records([(0, 0)]))
    (tmp_path / "coarse_label_names.txt").write_text("".join(f"group_{k}\n" for k in range(20)))
    assert Cifar100(dir=str(tmp_path), labels="coarse").load(seed=0).class_names[19] == "group_19"
    (tmp_path / "coarse_label_names.txt").write_text("fish\n")
    with pytest.raises(InvalidInput, match=r"coarse_label_names\.txt names 1 classes; it must name 20"):
        Cifar100(dir=str(tmp_path), labels="coarse").load(seed=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (cifar100_records([(0, 0)])[:-1], "has 3073 bytes: it must hold whole records of 3074 bytes"),
        (cifar100_records([(0, 100)]), "sample 0: the label is 100; it must be 0 to 99"),
    ],
)
def test_a_damaged_cifar100_file_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "train.bin").write_bytes(content)
    with pytest.raises(InvalidInput, match=rf"train\.bin,? {message}"):
        Cifar100(dir=str(tmp_path)).load(seed=0)
