"""SVHN, cropped digits of house numbers ("format 2"), from the published MATLAB files."""

import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from math import prod
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


TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""Types of numbers in a file, by their code in MATLAB's format."""
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
"""Types of matrices, by the code of their class."""
MATRIX, COMPRESSED = 14, 15


def _elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The elements in a part of a file: code and content. ValueError if one is longer than the part."""
    at = 0
    while at + 8 <= len(data):
        code, size = struct.unpack_from("<II", data, at)
        small, start = code >> 16, at + 8
        if small:  # up to four bytes within the tag
            code, size, start = code & 0xFFFF, small, at + 4
        if start + size > len(data) or (small and size > 4):
            raise ValueError(f"an element of {size:,} bytes at byte {at:,}, which has {len(data) - start:,} left")
        yield code, data[start : start + size]
        at = at + 8 if small else start + size + (-size % 8 if code != COMPRESSED else 0)


def _matrices(content: bytes) -> Iterator[tuple[str, Any]]:
    """Names and numbers of the matrices in a file of MATLAB 5. Own code: scipy's reader crashes on damaged files."""
    if len(content) < 128 or content[126:128] != b"IM":
        raise ValueError("it has no header of MATLAB 5, little-endian")
    for code, data in _elements(memoryview(content)[128:]):
        if code == COMPRESSED:
            inflated = zlib.decompressobj()
            whole = inflated.decompress(data, 2**26 + 100 * len(data))
            if inflated.unconsumed_tail:
                raise ValueError("a compressed element is more than 100 times as large when decompressed")
            code, data = next(_elements(memoryview(whole)), (0, memoryview(b"")))
        if code != MATRIX:
            continue
        flags, shape, name, numbers = islice(_elements(data), 4)
        kind, dimensions = CLASSES.get(flags[1][0]), np.frombuffer(shape[1], "<i4").tolist()
        if kind is None or numbers[0] not in TYPES or min(dimensions, default=-1) < 0:
            raise ValueError(f"the matrix {bytes(name[1])[:20]!r} is not one of numbers")
        flat = np.frombuffer(numbers[1], f"<{TYPES[numbers[0]]}").astype(kind)
        if flat.size != prod(dimensions):
            raise ValueError(f"the matrix {bytes(name[1])[:20]!r} has {flat.size:,} numbers, not {dimensions}")
        yield bytes(name[1]).decode("ascii", "replace"), flat.reshape(dimensions, order="F")


def parse_mat(path: Path, content: bytes) -> tuple[Bytes, Bytes]:
    """The images [n, 3, 32, 32] and the labels 1 to 10 of one file."""
    try:
        tables: dict[str, Any] = dict(_matrices(content))
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
