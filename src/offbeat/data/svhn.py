"""SVHN, cropped digits of house numbers ("format 2"), from the published MATLAB files."""

import io
from pathlib import Path
from typing import Any, Literal

import numpy as np

from offbeat.core.errors import InvalidInput
from offbeat.data.dataset import Dataset
from offbeat.data.images import ImageFiles, check_labels, image_dataset, read
from offbeat.data.transforms import Bytes
from offbeat.references import describe

MEAN = (0.4377, 0.4438, 0.4728)
STD = (0.1980, 0.2010, 0.1970)


class Svhn(ImageFiles):
    """SVHN digits, 3x32x32, from its .mat files in `dir`; standardised per channel."""

    name: Literal["svhn"] = "svhn"
    extra: bool = False
    """Train on the 531,131 easier images of extra_32x32.mat too."""

    def load(self, seed: int) -> Dataset:
        """Read the files, with the published training and test split; the seed is not used."""
        parts = [_part(self.dir, name) for name in (["train", "extra"] if self.extra else ["train"])]
        return image_dataset(
            train=(
                np.concatenate([images for images, _ in parts]),
                np.concatenate([labels for _, labels in parts]),
            ),
            test=_part(self.dir, "test"),
            classes=10,
            mean=MEAN,
            std=STD,
            limit=self.limit,
            as_bytes=self.as_bytes,
            class_names=tuple("0123456789"),
        )


def _part(directory: str, name: str) -> tuple[Bytes, Bytes]:
    path, content = read(directory, f"{name}_32x32.mat")
    images, labels = parse_mat(path, content)
    return images, labels % 10  # the digit 0 is published with the label 10


def parse_mat(path: Path, content: bytes) -> tuple[Bytes, Bytes]:
    """The images [n, 3, 32, 32] and the labels 1 to 10 of one file."""
    from scipy.io import loadmat  # slow to import, and needed only to load the data

    try:
        tables: dict[str, Any] = loadmat(io.BytesIO(content), variable_names=["X", "y"])
    except Exception as error:  # a damaged file can raise anything
        raise InvalidInput(f"{path} is not a complete MATLAB file: {describe(error)}.") from error
    images, labels = tables.get("X"), tables.get("y")
    if not isinstance(images, np.ndarray) or not isinstance(labels, np.ndarray):
        raise InvalidInput(f"{path} has no X and y: it must be an SVHN file of cropped digits.")
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3) or not images.shape[3]:
        raise InvalidInput(
            f"{path}: X is {images.dtype} of shape {images.shape}; it must be uint8 of shape 32 x 32 x 3 x n."
        )
    if labels.dtype.kind not in "ui" or labels.size != images.shape[3]:
        raise InvalidInput(f"{path} holds {images.shape[3]} images and {labels.size} labels of {labels.dtype}.")
    check_labels(path, labels.reshape(-1), 10, first=1)
    return images.transpose(3, 2, 0, 1), labels.reshape(-1).astype(np.uint8)
