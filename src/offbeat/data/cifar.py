"""CIFAR-10 and CIFAR-100, from the binary files or from the batches "for Python", whichever is there.

The batches for Python are pickles, and loading a pickle may call any function of any installed module. The official
batches need only one thing, a numpy array of unsigned bytes. So a name in the file is looked up in `ALLOWED` alone, and
any other name raises before anything is imported or called. The names in `ALLOWED` are inert stand-ins that keep what
the file says; the array is then made here, from bytes whose type and shape were checked.
"""

import io
import pickle
from pathlib import Path
from typing import Any, Literal

import numpy as np

from offbeat.core.errors import InvalidInput
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
"""The two labels of a CIFAR-100 record, in this order."""


class _Dtype:
    """Stands in for numpy.dtype."""

    def __init__(self, code: object, *flags: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and alignment, which mean nothing for single bytes."""


class _Array:
    """Stands in for numpy.ndarray."""

    def __setstate__(self, state: object) -> None:
        self.state = state

    def pixels(self) -> Bytes:
        """The array; ValueError unless it is n x 3072 unsigned bytes."""
        match self.state:
            case (1, (int(rows), int(columns)), _Dtype(code=b"u1" | "u1"), bool(by_columns), bytes(content)):
                if rows > 0 and columns == PIXELS and len(content) == rows * columns:
                    values = np.frombuffer(content, dtype=np.uint8)
                    return values.reshape(columns, rows).T if by_columns else values.reshape(rows, columns)
        raise ValueError(f"its data are not rows of {PIXELS} unsigned bytes")


def _reconstruct(kind: object, shape: object, typecode: object) -> _Array:
    """Stands in for numpy's function, which makes an empty array that the state fills."""
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    """Stands in for _codecs.encode, which Python 3 uses to pickle byte strings."""
    if encoding != "latin1":
        raise ValueError(f"encoding {encoding!r}")
    return text.encode("latin1")


ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _BatchUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch contains")
        return ALLOWED[module, name]


def parse_python_batch(
    path: Path, content: bytes, *, what: str = "CIFAR-10", field: bytes = b"labels"
) -> tuple[Bytes, Bytes]:
    """The pixels [n, 3072] of one batch, and the labels in this field of it."""
    try:
        batch = _BatchUnpickler(io.BytesIO(content), encoding="bytes").load()
        pixels = batch[b"data"].pixels()
        labels = np.frombuffer(bytes(list(batch[field])), dtype=np.uint8)  # bytes: integers from 0 to 255 only
        if len(pixels) != len(labels):
            raise ValueError(f"it holds {len(pixels)} images and {len(labels)} labels")
    except Exception as error:  # a damaged or hostile pickle can raise anything
        raise InvalidInput(f"{path} is not a {what} batch for Python: {error or type(error).__name__}.") from error
    return pixels, labels


class Cifar10(ImageFiles):
    """CIFAR-10, 3x32x32, binary or Python batches in `dir`; standardised per channel."""

    name: Literal["cifar10"] = "cifar10"

    def load(self, seed: int) -> Dataset:
        """Read the files, with the published training and test split; the seed is not used."""
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
    """CIFAR-100, 3x32x32, binary or Python files in `dir`; standardised per channel."""

    name: Literal["cifar100"] = "cifar100"
    labels: LabelKind = "fine"
    """100 classes (fine), or 20 groups of them (coarse)."""

    def load(self, seed: int) -> Dataset:
        """Read the files, with the published training and test split; the seed is not used."""
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
            position = list(CLASSES_100).index(self.labels)
            pixels, labels = parse_binary_batch(path, content, labels=2, position=position)
        else:
            field = f"{self.labels}_labels".encode()
            pixels, labels = parse_python_batch(path, content, what="CIFAR-100", field=field)
        check_labels(path, labels, CLASSES_100[self.labels])
        return pixels.reshape(-1, *IMAGE_SHAPE), labels


def _batch(directory: str, name: str) -> tuple[Bytes, Bytes]:
    """The images and labels of one batch, from the binary file if there are both."""
    path, content = read(directory, f"{name}.bin", name)
    binary = path.name.startswith(f"{name}.bin")
    pixels, labels = parse_binary_batch(path, content) if binary else parse_python_batch(path, content)
    check_labels(path, labels, CLASSES)
    return pixels.reshape(-1, *IMAGE_SHAPE), labels


def parse_binary_batch(path: Path, content: bytes, *, labels: int = 1, position: int = 0) -> tuple[Bytes, Bytes]:
    """The pixels [n, 3072] of one batch, and one label of each record; records begin with `labels` labels."""
    record = labels + PIXELS
    if not content or len(content) % record:
        raise InvalidInput(f"{path} has {len(content)} bytes: it must hold whole records of {record} bytes.")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
    return records[:, labels:], records[:, position]
