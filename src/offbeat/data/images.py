"""What all image sets share: reading a file that may be compressed, and turning bytes into standardised samples."""

import gzip
import lzma
import zlib
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.core.settings import Settings
from offbeat.core.streams import stream
from offbeat.data.dataset import Dataset, Labels
from offbeat.data.transforms import InputPipeline

Bytes = npt.NDArray[np.uint8]
Channels = float | tuple[float, ...]
"""One number for all channels, or one for each."""

SUFFIXES = ("", ".gz", ".xz")


class ImageFiles(Settings):
    """An image set that the user has on disk."""

    dir: Annotated[str, Field(min_length=1)]
    """The directory that holds the files, plain or compressed (.gz, .xz)."""
    limit: Annotated[int, Field(gt=0)] | None = None
    """Use at most this many training samples: always the same ones, whatever the seed."""
    as_bytes: bool = False
    """Keep pixels as bytes and normalise them batch by batch: a quarter of the memory, the same numbers to the bit.
    Dense models then train one by one instead of stacked."""


def read(directory: str, *names: str) -> tuple[Path, bytes]:
    """The first file there is of these names, plain or compressed, and what it holds."""
    folder = Path(directory).expanduser()
    wanted = f"{' or '.join(names)} (plain, .gz or .xz)"
    if not folder.is_dir():
        raise InvalidInput(f"dir = {directory!r} is not a directory: it must be one that holds {wanted}.")
    candidates = (folder / f"{name}{suffix}" for name in names for suffix in SUFFIXES)
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        raise InvalidInput(f"dir = {directory!r} holds no file {wanted}.")
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        elif path.suffix == ".xz":
            content = lzma.decompress(content)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}.") from error
    return path, content


def check_labels(path: Path, labels: Bytes, classes: int, first: int = 0) -> None:
    """Refuse a file with labels outside `first` to `first + classes - 1`."""
    if labels.min() < first or labels.max() >= first + classes:
        raise InvalidInput(
            f"{path} holds labels from {labels.min()} to {labels.max()}: they must be {first} to {first + classes - 1}."
        )


def image_dataset(
    *,
    train: tuple[Bytes, Bytes | Labels],
    test: tuple[Bytes, Bytes | Labels],
    classes: int,
    mean: Channels,
    std: Channels,
    limit: int | None = None,
    as_bytes: bool = False,
    class_names: tuple[str, ...] = (),
) -> Dataset:
    """A data set from pairs of pixels [samples, channels, height, width] and labels."""
    pixels, labels = train
    if limit is not None:
        kept = stream(0, "limit").permutation(len(labels))[:limit]
        pixels, labels = pixels[kept], labels[kept]
    if as_bytes:
        levels = standardised(np.tile(np.arange(256, dtype=np.uint8), (pixels.shape[1], 1, 1)), mean, std)
        return Dataset(
            train_x=np.ascontiguousarray(pixels),
            train_y=labels.astype(np.int64),
            test_x=np.ascontiguousarray(test[0]),
            test_y=test[1].astype(np.int64),
            classes=classes,
            pipeline=InputPipeline(levels=levels.reshape(-1, 256)),
            class_names=class_names,
        )
    return Dataset(
        train_x=standardised(pixels, mean, std),
        train_y=labels.astype(np.int64),
        test_x=standardised(test[0], mean, std),
        test_y=test[1].astype(np.int64),
        classes=classes,
        class_names=class_names,
    )


def standardised(pixels: Bytes, mean: Channels, std: Channels) -> npt.NDArray[np.float32]:
    """Pixels scaled from 0..255 to 0..1, then (pixel - mean) / std in each channel."""
    images = pixels.astype(np.float32, order="C")
    images /= 255
    images -= np.asarray(mean, dtype=np.float32).reshape(-1, 1, 1)
    images /= np.asarray(std, dtype=np.float32).reshape(-1, 1, 1)
    return images


def names_from(directory: str, file: str, classes: int) -> tuple[str, ...]:
    """The names of the classes, a line each, if the official file with them is there."""
    path = Path(directory).expanduser() / file
    if not path.is_file():
        return ()
    names = tuple(filter(None, path.read_text(encoding="utf-8", errors="replace").split()))
    if len(names) != classes:
        raise InvalidInput(f"{path} names {len(names)} classes: there must be {classes}.")
    return names
