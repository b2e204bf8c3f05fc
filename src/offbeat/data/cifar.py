"""CIFAR-10 and CIFAR-100, from either form in which they are published: binary, or the batches "for Python"."""

from pathlib import Path
from typing import Literal

import numpy as np

from offbeat.core.errors import InvalidInput
from offbeat.data.cifar_pickle import parse_python_batch
from offbeat.data.dataset import Dataset
from offbeat.data.images import ImageFiles, check_labels, image_dataset, names_from, read
from offbeat.data.transforms import Bytes

CLASSES = 10
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IMAGE_SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
"""The red, green and blue plane of an image, row by row; in a binary record they follow the labels."""
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
MEAN_100 = (0.5071, 0.4865, 0.4409)
STD_100 = (0.2673, 0.2564, 0.2762)

TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_BATCH = "test_batch"

LabelKind = Literal["fine", "coarse"]
CLASSES_100: dict[LabelKind, int] = {"coarse": 20, "fine": 100}
"""The two labels of a CIFAR-100 record, in their order."""


class Cifar10(ImageFiles):
    """CIFAR-10, 3x32x32, binary or Python batches in `dir`; standardised per channel with its usual mean and std."""

    name: Literal["cifar10"] = "cifar10"

    def load(self, seed: int) -> Dataset:
        """Read the files and divide them into training and test samples as published; `seed` plays no part."""
        batches = [_batch(self.dir, name) for name in TRAIN_BATCHES]
        return image_dataset(
            train=(
                np.concatenate([images for images, _ in batches]),
                np.concatenate([labels for _, labels in batches]),
            ),
            test=_batch(self.dir, TEST_BATCH),
            classes=CLASSES,
            mean=MEAN,
            std=STD,
            limit=self.limit,
            as_bytes=self.as_bytes,
            class_names=CLASS_NAMES,
        )


class Cifar100(ImageFiles):
    """CIFAR-100, 3x32x32, binary or Python files in `dir`; standardised per channel with its usual mean and std."""

    name: Literal["cifar100"] = "cifar100"
    labels: LabelKind = "fine"
    """The 100 classes (fine) or the 20 groups of them (coarse)."""

    def load(self, seed: int) -> Dataset:
        """Read the files and divide them into training and test samples as published; `seed` plays no part."""
        classes = CLASSES_100[self.labels]
        return image_dataset(
            train=self._part("train"),
            test=self._part("test"),
            classes=classes,
            mean=MEAN_100,
            std=STD_100,
            limit=self.limit,
            as_bytes=self.as_bytes,
            class_names=names_from(self.dir, f"{self.labels}_label_names.txt", classes),
        )

    def _part(self, name: str) -> tuple[Bytes, Bytes]:
        path, content = read(self.dir, f"{name}.bin", name)
        if path.name.startswith(f"{name}.bin"):
            place = list(CLASSES_100).index(self.labels)
            pixels, labels = parse_binary_batch(path, content, labels=2, place=place)
        else:
            field = f"{self.labels}_labels".encode()
            pixels, labels = parse_python_batch(path, content, what="CIFAR-100", field=field)
        check_labels(path, labels, CLASSES_100[self.labels])
        return pixels.reshape(-1, *IMAGE_SHAPE), labels


def _batch(directory: str, name: str) -> tuple[Bytes, Bytes]:
    """The images and labels of one batch, in whichever form it is there (binary if both)."""
    path, content = read(directory, f"{name}.bin", name)
    binary = path.name.startswith(f"{name}.bin")
    pixels, labels = parse_binary_batch(path, content) if binary else parse_python_batch(path, content)
    check_labels(path, labels, CLASSES)
    return pixels.reshape(-1, *IMAGE_SHAPE), labels


def parse_binary_batch(path: Path, content: bytes, *, labels: int = 1, place: int = 0) -> tuple[Bytes, Bytes]:
    """The pixels [n, 3072] and the labels of one batch, whose records begin with so many labels: the one at `place`."""
    record = labels + PIXELS
    if not content or len(content) % record:
        raise InvalidInput(f"{path} has {len(content)} bytes: it must be whole records of {record} bytes.")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
    return records[:, labels:], records[:, place]
