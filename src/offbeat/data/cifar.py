"""CIFAR-10, from either form in which it is published: the binary batches, or the batches "for Python"."""

from pathlib import Path
from typing import Literal

import numpy as np

from offbeat.core.errors import InvalidInput
from offbeat.data.cifar_pickle import parse_python_batch
from offbeat.data.dataset import Dataset
from offbeat.data.images import Bytes, ImageFiles, check_labels, image_dataset, read

CLASSES = 10
IMAGE_SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32
"""A label, then the red, green and blue plane row by row."""
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)

TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_BATCH = "test_batch"


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
        )


def _batch(directory: str, name: str) -> tuple[Bytes, Bytes]:
    """The images and labels of one batch, in whichever form it is there (binary if both)."""
    path, content = read(directory, f"{name}.bin", name)
    binary = path.name.startswith(f"{name}.bin")
    pixels, labels = parse_binary_batch(path, content) if binary else parse_python_batch(path, content)
    check_labels(path, labels, CLASSES)
    return pixels.reshape(-1, *IMAGE_SHAPE), labels


def parse_binary_batch(path: Path, content: bytes) -> tuple[Bytes, Bytes]:
    """The pixels [n, 3072] and the labels of one batch."""
    if not content or len(content) % RECORD:
        raise InvalidInput(f"{path} has {len(content)} bytes: it must be whole records of {RECORD} bytes.")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
    return records[:, 1:], records[:, 0]
