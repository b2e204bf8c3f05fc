"""MNIST, Fashion-MNIST and EMNIST, from their published IDX files.

An IDX file is a big-endian magic number (0x800 + number of dimensions, for unsigned bytes), the size of each dimension
as four bytes, then the bytes themselves.
"""

import math
import struct
import zlib
from pathlib import Path
from typing import Literal

import numpy as np

from offbeat.core.errors import InvalidInput
from offbeat.data.dataset import Dataset
from offbeat.data.images import ImageFiles, check_labels, image_dataset, read
from offbeat.data.transforms import Bytes

MNIST_MEAN, MNIST_STD = 0.1307, 0.3081
FASHION_MEAN, FASHION_STD = 0.2860, 0.3530
EMNIST_MEAN, EMNIST_STD = 0.1751, 0.3332

PUBLISHED = {0x4AB9EFF9: "mnist", 0x80142C1F: "fashion-mnist"}
"""CRC-32 of the published test labels, uncompressed: the two sets have the same file names."""

FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

EmnistSplit = Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"]
EMNIST_CLASSES: dict[EmnistSplit, int] = {
    "balanced": 47,
    "byclass": 62,
    "bymerge": 47,
    "digits": 10,
    "letters": 26,
    "mnist": 10,
}


class Mnist(ImageFiles):
    """MNIST, 28x28, from its IDX files in `dir`; standardised with mean 0.1307, std 0.3081."""

    name: Literal["mnist"] = "mnist"

    def load(self, seed: int) -> Dataset:
        """Read the files, with the published training and test split; the seed is not used."""
        _check_published(self.dir, "mnist")
        return _ten_classes(self, MNIST_MEAN, MNIST_STD)


class FashionMnist(ImageFiles):
    """Fashion-MNIST, 28x28, from its IDX files in `dir`; standardised with mean 0.2860, std 0.3530."""

    name: Literal["fashion-mnist"] = "fashion-mnist"

    def load(self, seed: int) -> Dataset:
        """Read the files, with the published training and test split; the seed is not used."""
        _check_published(self.dir, "fashion-mnist")
        return _ten_classes(self, FASHION_MEAN, FASHION_STD, FASHION_CLASSES)


class Emnist(ImageFiles):
    """EMNIST letters and digits, 28x28, from its IDX files in `dir`; standardised with mean 0.1751, std 0.3332."""

    name: Literal["emnist"] = "emnist"
    split: EmnistSplit = "balanced"
    """Which of the six published splits; in letters, A is class 0."""

    def load(self, seed: int) -> Dataset:
        """Read the files, with the published training and test split; the seed is not used."""
        return image_dataset(
            train=self._part("train"),
            test=self._part("test"),
            classes=EMNIST_CLASSES[self.split],
            mean=EMNIST_MEAN,
            std=EMNIST_STD,
            limit=self.limit,
            as_bytes=self.as_bytes,
        )

    def _part(self, part: str) -> tuple[Bytes, Bytes]:
        first = 1 if self.split == "letters" else 0  # published with labels 1 to 26
        prefix = f"emnist-{self.split}-{part}"
        images, labels = _labelled(self.dir, prefix, classes=EMNIST_CLASSES[self.split], first_label=first)
        return images.swapaxes(-1, -2), labels - np.uint8(first)  # published transposed


def _check_published(directory: str, name: str) -> None:
    """Raise InvalidInput if the directory holds the files of another published set, which have the same names."""
    path, content = read(directory, "t10k-labels-idx1-ubyte")
    found = PUBLISHED.get(zlib.crc32(content), name)
    if found != name:
        raise InvalidInput(f'data.name = "{name}": {path.parent} holds the files of {found}, set data.name = "{found}"')


def _ten_classes(files: ImageFiles, mean: float, std: float, class_names: tuple[str, ...] = ()) -> Dataset:
    """MNIST, or a set with the same file names."""
    return image_dataset(
        train=_labelled(files.dir, "train", classes=10),
        test=_labelled(files.dir, "t10k", classes=10),
        classes=10,
        mean=mean,
        std=std,
        limit=files.limit,
        as_bytes=files.as_bytes,
        class_names=class_names,
    )


def _labelled(directory: str, prefix: str, *, classes: int, first_label: int = 0) -> tuple[Bytes, Bytes]:
    """The images, with one channel, and the labels of the two files with this prefix."""
    images_path, content = read(directory, f"{prefix}-images-idx3-ubyte")
    images = parse_idx(images_path, content, dimensions=3)
    labels_path, content = read(directory, f"{prefix}-labels-idx1-ubyte")
    labels = parse_idx(labels_path, content, dimensions=1)
    if len(images) != len(labels):
        raise InvalidInput(f"{images_path} holds {len(images)} images and {labels_path} holds {len(labels)} labels.")
    check_labels(labels_path, labels, classes, first_label)
    return images[:, np.newaxis], labels


def parse_idx(path: Path, content: bytes, dimensions: int) -> Bytes:
    """The array of unsigned bytes in an IDX file with this number of dimensions."""
    header = struct.Struct(f">{1 + dimensions}I")
    if len(content) < header.size:
        raise InvalidInput(
            f"{path} is truncated: it has {len(content)} bytes, and the header alone needs {header.size}."
        )
    magic, *shape = header.unpack_from(content)
    if magic != 0x800 + dimensions:
        raise InvalidInput(
            f"{path} starts with {magic:#010x}; an IDX file of {dimensions} dimensions starts with "
            f"{0x800 + dimensions:#010x}."
        )
    expected, found = math.prod(shape), len(content) - header.size
    if expected == 0 or expected != found:
        raise InvalidInput(f"{path} declares {' x '.join(map(str, shape))} bytes of data but holds {found}.")
    return np.frombuffer(content, dtype=np.uint8, offset=header.size).reshape(shape)
