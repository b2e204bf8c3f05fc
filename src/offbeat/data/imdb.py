"""IMDb, the Large Movie Review Dataset: from JSON lines, or from the published folders.

The vocabulary is made of the training texts only, so that nothing leaks from the test set.
"""

import json
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.core.streams import stream
from offbeat.data.dataset import Dataset, DatasetSettings
from offbeat.data.images import SUFFIXES, read
from offbeat.data.text import Vocabulary

CLASS_NAMES = ("negative", "positive")
FOLDERS = ("neg", "pos")

Reviews = list[tuple[str, int]]


class Imdb(DatasetSettings):
    """IMDb film reviews, negative or positive, as word tokens: 0 is padding, 1 an unknown word."""

    name: Literal["imdb"] = "imdb"
    dir: Annotated[str, Field(min_length=1)]
    """The directory of train.jsonl and test.jsonl (lines {"label": 0 or 1, "text": "..."}; plain, .gz or .xz), or of
    the published folders train/pos, train/neg, test/pos and test/neg."""
    vocabulary: Annotated[int, Field(ge=3)] = 20_000
    """Size of the vocabulary, including padding and unknown words."""
    length: Annotated[int, Field(ge=1)] = 256
    """Words used of each review, from its beginning."""
    limit: Annotated[int, Field(gt=0)] | None = None
    """Maximum number of training reviews; the seed does not change which."""

    def load(self, seed: int) -> Dataset:
        """Read and tokenise the reviews; the seed is not used."""
        train, test = read_reviews(self.dir, "train"), read_reviews(self.dir, "test")
        if self.limit is not None:
            train = [train[index] for index in stream(0, "limit").permutation(len(train))[: self.limit]]
        vocabulary = Vocabulary.of((text for text, _ in train), self.vocabulary)
        return Dataset(
            train_x=vocabulary.tokens([text for text, _ in train], self.length),
            train_y=np.array([label for _, label in train], dtype=np.int64),
            test_x=vocabulary.tokens([text for text, _ in test], self.length),
            test_y=np.array([label for _, label in test], dtype=np.int64),
            classes=2,
            class_names=CLASS_NAMES,
            vocabulary=self.vocabulary,
        )


def read_reviews(directory: str, part: str) -> Reviews:
    """The texts and labels of one part, from the JSON lines if there are both."""
    root = Path(directory).expanduser()
    lines = any((root / f"{part}.jsonl{suffix}").is_file() for suffix in SUFFIXES)
    if lines or not (root / part).is_dir():
        return parse_lines(*read(directory, f"{part}.jsonl"))
    return [review for label, name in enumerate(FOLDERS) for review in _folder(root / part / name, label)]


def parse_lines(path: Path, content: bytes) -> Reviews:
    """The reviews of a file with one JSON object per line."""
    reviews = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            match json.loads(line):
                case {"label": (0 | 1) as label, "text": str(text)} if not isinstance(label, bool):
                    reviews.append((text, int(label)))
                case _:
                    raise ValueError('it must be {"label": 0 or 1, "text": "..."}')
        except ValueError as error:
            raise InvalidInput(f"{path}, line {number} is not a review: {error}.") from error
    if not reviews:
        raise InvalidInput(f"{path} is empty.")
    return reviews


def _folder(folder: Path, label: int) -> Reviews:
    """The reviews of one folder, in the order of the numbers at the beginning of their names."""
    files = sorted(folder.glob("*.txt"), key=lambda path: (len(path.stem.partition("_")[0]), path.name))
    if not files:
        raise InvalidInput(f"{folder} has no *.txt files: was the archive unpacked completely?")
    reviews = []
    for path in files:
        try:
            reviews.append((path.read_text(encoding="utf-8"), label))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{path} cannot be read: {error}.") from error
    return reviews
