"""What all image sets share: reading files that may be compressed, and making data sets of pixels and labels."""

import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.core.streams import stream
from offbeat.data.dataset import Dataset, DatasetSettings, Labels
from offbeat.data.transforms import Bytes, Channels, InputPipeline, Standardisation

MOST_FLOAT_BYTES = 256 * 2**20
"""Images that would take more than this as float32 stay bytes by default, and are normalised batch by batch. That costs
small dense models a fifth of their training time, and convolutional ones less than a hundredth."""
SUFFIXES = ("", ".gz", ".xz")


class ImageFiles(DatasetSettings):
    """The base of image sets that are read from files."""

    dir: Annotated[str, Field(min_length=1)]
    """The directory of the files, plain or compressed (.gz, .xz)."""
    limit: Annotated[int, Field(gt=0)] | None = None
    """Maximum number of training samples; the seed does not change which."""
    as_bytes: bool | None = None
    """Keep pixels as bytes and normalise each batch: a quarter of the memory, bit-identical results (default: if
    float32 pixels would take more than 256 MB)."""


MOST_EXPANSION, LEAST_BYTES = 100, 2**26
"""A compressed file may hold this many times its own size in bytes, and 64 MiB in any case."""


def read(directory: str, *names: str) -> tuple[Path, bytes]:
    """The path and decompressed content of the first of these files that exists, plain or compressed."""
    folder = Path(directory).expanduser()
    wanted = f"{' or '.join(names)} (plain, .gz or .xz)"
    if not folder.is_dir():
        raise InvalidInput(f"data.dir = {directory!r} is not a directory: it must be one that holds {wanted}.")
    candidates = (folder / f"{name}{suffix}" for name in names for suffix in SUFFIXES)
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        raise InvalidInput(f"data.dir = {directory!r} has no file {wanted}.")
    try:
        content = path.read_bytes()
        if path.suffix in (".gz", ".xz"):
            most = LEAST_BYTES + MOST_EXPANSION * len(content)
            with (gzip.open if path.suffix == ".gz" else lzma.open)(io.BytesIO(content)) as stream_of_bytes:
                content = stream_of_bytes.read(most + 1)
            if len(content) > most:
                raise InvalidInput(f"{path} has more than {most:,} bytes when decompressed: decompress it yourself.")
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}.") from error
    return path, content


def check_labels(path: Path, labels: Bytes, classes: int, first: int = 0) -> None:
    """Raise InvalidInput if a label is not one of `first` to `first + classes - 1`."""
    strange = np.flatnonzero((labels < first) | (labels >= first + classes))
    if len(strange):
        sample, last = strange[0], first + classes - 1
        raise InvalidInput(f"{path}, sample {sample}: the label is {labels[sample]}; it must be {first} to {last}.")


def image_dataset(
    *,
    train: tuple[Bytes, Bytes | Labels],
    test: tuple[Bytes, Bytes | Labels],
    classes: int,
    mean: Channels,
    std: Channels,
    limit: int | None = None,
    as_bytes: bool | None = None,
    class_names: tuple[str, ...] = (),
) -> Dataset:
    """A data set of pixels [samples, channels, height, width] and labels."""
    pixels, labels = train
    if limit is not None:
        kept = stream(0, "limit").permutation(len(labels))[:limit]
        pixels, labels = pixels[kept], labels[kept]
    standardisation = Standardisation(mean, std)
    stay = kept_as_bytes(as_bytes, pixels.size + test[0].size)
    train_x, test_x = (np.ascontiguousarray(x) if stay else standardisation(x) for x in (pixels, test[0]))
    return Dataset(
        train_x=train_x,
        train_y=labels.astype(np.int64),
        test_x=test_x,
        test_y=test[1].astype(np.int64),
        classes=classes,
        pipeline=InputPipeline(standardisation=standardisation) if stay else None,
        class_names=class_names,
    )


def kept_as_bytes(wanted: bool | None, pixels: int) -> bool:
    """Whether pixels stay bytes: as the setting says or, without one, if float32 would take too much memory.

    >>> kept_as_bytes(None, 70_000 * 784), kept_as_bytes(None, 60_000 * 3072)  # MNIST, CIFAR
    (False, True)
    """
    return 4 * pixels > MOST_FLOAT_BYTES if wanted is None else wanted


def names_from(directory: str, file: str, classes: int) -> tuple[str, ...]:
    """The names of the classes from the official file, one per line; () if the file does not exist."""
    path = Path(directory).expanduser() / file
    if not path.is_file():
        return ()
    names = tuple(filter(None, path.read_text(encoding="utf-8", errors="replace").split()))
    if len(names) != classes:
        raise InvalidInput(f"{path} names {len(names)} classes; it must name {classes}.")
    return names
