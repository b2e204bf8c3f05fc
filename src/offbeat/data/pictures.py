"""CINIC-10 and Tiny-ImageNet, which are published as folders of PNG or JPEG files.

Decoding takes minutes for the larger sets. With `cache` it is done once: the pixels are written to a file that is
memory-mapped from then on. The file's name is a digest of the names, sizes and times of the images, so that a changed
image is decoded again.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.lib.format import open_memmap
from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.core.streams import stream
from offbeat.data import cifar
from offbeat.data.dataset import Dataset, Labels
from offbeat.data.images import ImageFiles, image_dataset
from offbeat.data.transforms import Bytes, Channels
from offbeat.references import describe

A = TypeVar("A", bound=np.ndarray[Any, np.dtype[np.uint8]])
Listing = tuple[list[Path], Labels]
"""Image files and their labels."""


class ImageFolders(ImageFiles):
    """The base of image sets that are published as folders of images."""

    dir: Annotated[str, Field(min_length=1)]
    """The directory of the unpacked archive."""
    cache: str | None = None
    """A directory for the decoded pixels, which are written once and then memory-mapped: with `as_bytes` they need not
    fit into memory."""

    def _loaded(
        self, train: Listing, test: Listing, *, side: int, mean: Channels, std: Channels, class_names: tuple[str, ...]
    ) -> Dataset:
        """Decode these files, or `limit` of them."""
        files, labels = train
        if self.limit is not None:
            kept = stream(0, "limit").permutation(len(files))[: self.limit]
            files, labels = [files[index] for index in kept], labels[kept]
        return image_dataset(
            train=(decoded(files, side, self.cache), labels),
            test=(decoded(test[0], side, self.cache), test[1]),
            classes=len(class_names),
            mean=mean,
            std=std,
            as_bytes=self.as_bytes,
            class_names=class_names,
        )


class Cinic10(ImageFolders):
    """CINIC-10, 3x32x32, PNG files in folders under `dir`; standardised per channel."""

    name: Literal["cinic10"] = "cinic10"
    with_valid: bool = False
    """Train on the 90,000 images of `valid` too."""

    def load(self, seed: int) -> Dataset:
        """Decode the images, with the published training and test split; the seed is not used."""
        parts = [self._part(part) for part in (["train", "valid"] if self.with_valid else ["train"])]
        return self._loaded(
            ([path for files, _ in parts for path in files], np.concatenate([labels for _, labels in parts])),
            self._part("test"),
            side=32,
            mean=(0.4789, 0.4723, 0.4305),
            std=(0.2421, 0.2383, 0.2587),
            class_names=cifar.CLASS_NAMES,
        )

    def _part(self, part: str) -> Listing:
        root = _folder(self.dir, part)
        strange = sorted(each.name for each in root.iterdir() if each.is_dir() and each.name not in cifar.CLASS_NAMES)
        if strange:
            raise InvalidInput(f"{root} has an unknown folder {strange[0]!r}; allowed: {', '.join(cifar.CLASS_NAMES)}.")
        return _by_class([(root / name, "*.png") for name in cifar.CLASS_NAMES])


class TinyImageNet(ImageFolders):
    """Tiny-ImageNet, 3x64x64, JPEG files in folders under `dir`; standardised per channel; tested on `val`."""

    name: Literal["tiny-imagenet"] = "tiny-imagenet"

    def load(self, seed: int) -> Dataset:
        """Decode the images. Labels follow wnids.txt, and `val` is the test set, since `test` has no labels."""
        root = _folder(self.dir, ".")
        wnids = [line.strip() for line in _lines(root / "wnids.txt")]
        words = dict(line.split("\t", 1) for line in _lines(root / "words.txt", needed=False) if "\t" in line)
        return self._loaded(
            _by_class([(root / "train" / wnid / "images", "*.JPEG") for wnid in wnids]),
            _annotated(root / "val", wnids),
            side=64,
            mean=(0.4802, 0.4481, 0.3975),
            std=(0.2770, 0.2691, 0.2821),
            class_names=tuple(words.get(wnid, wnid).split(",")[0] for wnid in wnids),
        )


def decoded(files: Sequence[Path], side: int, cache: str | None = None) -> Bytes:
    """The pixels [files, 3, side, side] of these images, in memory or memory-mapped."""
    shape = (len(files), 3, side, side)
    if cache is None:
        return _decode_into(np.empty(shape, dtype=np.uint8), files)
    folder = Path(cache).expanduser()
    found = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    kept = folder / f"pixels-{hashlib.sha256(repr((side, found)).encode()).hexdigest()[:24]}.npy"
    if not kept.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = kept.with_suffix(f".{os.getpid()}.part")
        try:
            _decode_into(open_memmap(unfinished, mode="w+", dtype=np.uint8, shape=shape), files).flush()
            unfinished.replace(kept)
        finally:
            unfinished.unlink(missing_ok=True)
    try:
        pixels: Bytes = np.load(kept, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{kept} cannot be read: {error}. Delete it, and it will be made again.") from error
    return pixels


def _decode_into(pixels: A, files: Sequence[Path]) -> A:
    for index, path in enumerate(files):
        pixels[index] = decode(path, pixels.shape[-1])
    return pixels


def decode(path: Path, side: int) -> Bytes:
    """The pixels [3, side, side] of one image; grey images get three equal channels."""
    from PIL import Image  # slow to import, and needed only to load the data

    try:
        with Image.open(path) as image:
            if image.size == (side, side):
                pixels: Bytes = np.asarray(image.convert("RGB"), dtype=np.uint8).transpose(2, 0, 1)
                return pixels
            size = image.size
    except Exception as error:  # a damaged image can raise anything
        raise InvalidInput(f"{path} cannot be read as an image: {describe(error)}.") from error
    raise InvalidInput(f"{path} has {size[0]} x {size[1]} pixels; it must have {side} x {side}.")


def _by_class(folders: Sequence[tuple[Path, str]]) -> Listing:
    """The files of these folders, class by class."""
    files: list[Path] = []
    sizes = []
    for folder, pattern in folders:
        found = sorted(folder.glob(pattern))
        if not found:
            raise InvalidInput(f"{folder} has no images {pattern}: was the archive unpacked completely?")
        files += found
        sizes.append(len(found))
    return files, np.repeat(np.arange(len(folders)), sizes)


def _annotated(folder: Path, wnids: Sequence[str]) -> Listing:
    """The validation images, whose labels are in a text file."""
    annotations = folder / "val_annotations.txt"
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    files, labels = [], []
    for number, line in enumerate(_lines(annotations), 1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0].strip()
        if wnid not in label_of:
            raise InvalidInput(f"{annotations}, line {number}: the class {wnid!r} is not in wnids.txt.")
        path = folder / "images" / name
        if not path.is_file():
            raise InvalidInput(f"{annotations}, line {number}: the image {path} does not exist.")
        files.append(path)
        labels.append(label_of[wnid])
    return files, np.array(labels, dtype=np.int64)


def _folder(directory: str, part: str) -> Path:
    folder = Path(directory).expanduser() / part
    if not folder.is_dir():
        raise InvalidInput(f"data.dir = {directory!r}: the directory {folder} does not exist.")
    return folder


def _lines(path: Path, *, needed: bool = True) -> list[str]:
    """The non-empty lines of a text file."""
    if not needed and not path.is_file():
        return []
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}.") from error
    if not lines:
        raise InvalidInput(f"{path} is empty.")
    return lines
