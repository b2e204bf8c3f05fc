"""FEMNIST by writer and Shakespeare by role, from the JSON files that LEAF's own scripts write.

S. Caldas et al.: LEAF: A Benchmark for Federated Settings, 2018. Its folders `train` and `test` hold JSON files with
`users`, `num_samples` and `user_data`. Every user is a device, unless `pool` merges users' samples for a partition to
divide. Files are read in order, until enough users are found.
"""

import json
from abc import abstractmethod
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.data.dataset import Dataset, DatasetSettings
from offbeat.data.images import kept_as_bytes, read
from offbeat.data.samples import Array
from offbeat.data.transforms import InputPipeline, Standardisation

DIGITS, CAPITALS, SMALL = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
CHARACTERS = f"\n !\"&'(),-.{DIGITS}:;>?{CAPITALS}[]{SMALL}}}"
"""The 80 characters of LEAF's Shakespeare; a token is an index into it."""
LENGTH = 80
"""Characters of a Shakespeare sample."""


class LeafFiles(DatasetSettings):
    """The base of data sets prepared by LEAF's scripts: every user is a device, or a partition divides the samples."""

    dir: Annotated[str, Field(min_length=1)]
    """The directory of LEAF's folders `train` and `test` (its `data` folder); files plain, .gz or .xz."""
    devices: Annotated[int, Field(gt=0)] = 100
    """Number of users, the first of the training files. The test set is theirs, or that of all test users if LEAF split
    the files by user."""
    pool: Annotated[int, Field(gt=0)] | None = None
    """Merge the samples of this many users and let `[partition]` divide them, by the column "user" if you like
    (default: every user is a device)."""

    @property
    def divided(self) -> bool:
        """Whether the data come divided over devices."""
        return self.pool is None

    def _read(self) -> tuple[dict[str, tuple[Array, Array]], list[tuple[Array, Array]]]:
        """The training samples of each user, and the test samples of each test user."""
        train: dict[str, tuple[Array, Array]] = {}
        wanted = self.pool or self.devices
        for where, user, x, y in read_users(self.dir, "train"):
            if user in train:
                raise InvalidInput(f"{where}: user {user!r} appears twice.")
            train[user] = self._samples(f"{where}, user {user!r}", x, y)
            if len(train) == wanted:
                break
        if len(train) < wanted:
            setting = "devices" if self.divided else "pool"
            raise InvalidInput(f"data.{setting} = {wanted}: {self.dir} has only {len(train)} users.")
        known: list[tuple[Array, Array]] = []
        others: list[tuple[Array, Array]] = []
        for where, user, x, y in read_users(self.dir, "test"):
            if user in train or not known:
                (known if user in train else others).append(self._samples(f"{where}, user {user!r}", x, y))
        if not known and not others:
            raise InvalidInput(f"data.dir = {self.dir!r} has no test samples.")
        return train, known or others

    @abstractmethod
    def _samples(self, where: str, x: list[Any], y: list[Any]) -> tuple[Array, Array]:
        """The samples of one user."""

    def _dataset(
        self, train: dict[str, tuple[Array, Array]], test: list[tuple[Array, Array]], **others: Any
    ) -> Dataset:
        sizes = [len(y) for _, y in train.values()]
        ends = np.cumsum([0, *sizes])
        return Dataset(
            train_x=np.concatenate([x for x, _ in train.values()]),
            train_y=np.concatenate([y for _, y in train.values()]),
            test_x=np.concatenate([x for x, _ in test]),
            test_y=np.concatenate([y for _, y in test]),
            devices=tuple(np.arange(first, last) for first, last in pairwise(ends)) if self.divided else None,
            columns={} if self.divided else {"user": np.repeat(np.array(list(train)), sizes)},
            **others,
        )


class Femnist(LeafFiles):
    """FEMNIST by writer, 28x28, 62 characters, prepared by LEAF's scripts; pixels from 0 to 1 (white)."""

    name: Literal["femnist"] = "femnist"
    as_bytes: bool | None = None
    """Keep pixels as bytes and scale each batch: a quarter of the memory, bit-identical results (default: if float32
    pixels would take more than 256 MB)."""

    def load(self, seed: int) -> Dataset:
        """Read the characters, with the training and test split of the files; the seed is not used.

        Classes are the digits, then the capital letters, then the small letters.
        """
        train, test = self._read()
        parts = [x for x, _ in [*train.values(), *test]]
        stay = kept_as_bytes(self.as_bytes, sum(x.size for x in parts)) and all(x.dtype == np.uint8 for x in parts)
        scale = Standardisation()
        if not stay:
            train = {user: (_numbers(x, scale), y) for user, (x, y) in train.items()}
            test = [(_numbers(x, scale), y) for x, y in test]
        return self._dataset(
            train,
            test,
            classes=62,
            class_names=tuple(DIGITS + CAPITALS + SMALL),
            pipeline=InputPipeline(standardisation=scale) if stay else None,
        )

    def _samples(self, where: str, x: list[Any], y: list[Any]) -> tuple[Array, Array]:
        try:
            pixels = np.asarray(x, dtype=np.float64).reshape(-1, 1, 28, 28)
            labels = np.asarray(y)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"{where}: x must be images of 784 numbers and y labels: {error}.") from error
        if len(pixels) != len(y):
            raise InvalidInput(f"{where}: x must be images of 784 numbers.")
        strange = np.flatnonzero(~((pixels >= 0) & (pixels <= 1)).all(axis=(1, 2, 3)))
        if len(strange):
            raise InvalidInput(f"{where}, sample {strange[0]}: x must be 784 numbers from 0 to 1.")
        if labels.ndim != 1 or labels.dtype.kind != "i":
            raise InvalidInput(f"{where}: y must be labels from 0 to 61.")
        strange = np.flatnonzero((labels < 0) | (labels > 61))
        if len(strange):
            raise InvalidInput(f"{where}, sample {strange[0]}: the label is {labels[strange[0]]}; it must be 0 to 61.")
        values = np.rint(255 * pixels)
        if self.as_bytes is not False and np.abs(values - 255 * pixels).max() <= 1e-3:
            return values.astype(np.uint8), labels
        if self.as_bytes:
            raise InvalidInput(f"{where}: the pixels are not multiples of 1/255: set data.as_bytes = false.")
        return pixels.astype(np.float32), labels


class Shakespeare(LeafFiles):
    """Shakespeare's plays by role, 80 characters to predict the next, prepared by LEAF's scripts; 80 classes."""

    name: Literal["shakespeare"] = "shakespeare"
    predict: Literal["next", "every"] = "next"
    """Predict the character after the 80, as LEAF does (task classification), or after each of them (task sequence)."""

    def load(self, seed: int) -> Dataset:
        """Read the lines, with the training and test split of the files; the seed is not used."""
        size = len(CHARACTERS)
        return self._dataset(*self._read(), classes=size, class_names=tuple(CHARACTERS), vocabulary=size)

    def _samples(self, where: str, x: list[Any], y: list[Any]) -> tuple[Array, Array]:
        tokens = np.empty((len(x), LENGTH + 1), dtype=np.int64)
        for number, (before, after) in enumerate(zip(x, y, strict=True)):
            if not isinstance(before, str) or not isinstance(after, str) or (len(before), len(after)) != (LENGTH, 1):
                raise InvalidInput(
                    f"{where}, sample {number}: x must be {LENGTH} characters and y the next one, "
                    f"not {str(before)[:20]!r} and {str(after)[:20]!r}."
                )
            tokens[number] = [CHARACTERS.find(character) for character in before + after]
            if tokens[number].min() < 0:
                strange = next(character for character in before + after if character not in CHARACTERS)
                raise InvalidInput(f"{where}, sample {number}: {strange!r} is not one of LEAF's 80 characters.")
        return tokens[:, :-1], tokens[:, -1] if self.predict == "next" else tokens[:, 1:]


def read_users(directory: str, part: str) -> Iterator[tuple[Path, str, list[Any], list[Any]]]:
    """File, name, inputs and targets of every user with samples, in the order of the files."""
    folder = Path(directory).expanduser() / part
    names = sorted({path.name.partition(".json")[0] for path in folder.glob("*.json*")})
    if not names:
        raise InvalidInput(f"data.dir = {directory!r}: {folder} has no JSON files of LEAF.")
    for name in names:
        path, content = read(str(folder), f"{name}.json")
        try:
            table = json.loads(content)
            users, sizes, samples = table["users"], table["num_samples"], table["user_data"]
            held = [(user, size, samples[user]["x"], samples[user]["y"]) for user, size in _pairs(users, sizes)]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise InvalidInput(f"{path} is not one of LEAF's files: {reason}.") from error
        for user, size, x, y in held:
            if not isinstance(x, list) or not isinstance(y, list) or not size == len(x) == len(y):
                counts = f"{_length(x)} inputs and {_length(y)} targets"
                raise InvalidInput(f"{path}: user {user!r} declares {size} samples but has {counts}.")
            if x:
                yield path, str(user), x, y


def _numbers(x: Array, scale: Standardisation) -> Array:
    return scale(x) if x.dtype == np.uint8 else x


def _pairs(users: list[str], sizes: list[int]) -> Iterator[tuple[str, int]]:
    if len(users) != len(sizes):
        raise ValueError(f"it lists {len(users)} users and {len(sizes)} sizes")
    return zip(users, sizes, strict=True)


def _length(values: Any) -> int:
    return len(values) if isinstance(values, list) else 0
