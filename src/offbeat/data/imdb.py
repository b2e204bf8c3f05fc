"""IMDb, the Large Movie Review Dataset: from JSON lines, or from the folders in which it is published.

The vocabulary is made of the training part only, so that nothing of the test part is known before it is tested on.
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
    """IMDb film reviews, negative or positive, as tokens of words: 0 is padding, 1 any other word."""

    name: Literal["imdb"] = "imdb"
    dir: Annotated[str, Field(min_length=1)]
    """The directory that holds train.jsonl and test.jsonl (a line is {"label": 0 or 1, "text": "..."}; plain, .gz or
    .xz), or the published folders train/pos, train/neg, test/pos and test/neg."""
    vocabulary: Annotated[int, Field(ge=3)] = 20_000
    """How many tokens there are, padding and unknown words among them."""
    length: Annotated[int, Field(ge=1)] = 256
    """How many words of each review are used, from its beginning."""
    limit: Annotated[int, Field(gt=0)] | None = None
    """Use at most this many training reviews: always the same ones, whatever the seed."""

    def load(self, seed: int) -> Dataset:
        """Read the reviews and make tokens of them; `seed` plays no part."""
        train, test = read_reviews(self.dir, "train"), read_reviews(self.dir, "test")
        if self.limit is not None:
            train = [train[place] for place in stream(0, "limit").permutation(len(train))[: self.limit]]
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
    """The texts and labels of one part, in whichever form it is there (JSON lines if both)."""
    root = Path(directory).expanduser()
    lines = any((root / f"{part}.jsonl{suffix}").is_file() for suffix in SUFFIXES)
    if lines or not (root / part).is_dir():
        return parse_lines(*read(directory, f"{part}.jsonl"))
    return [review for label, name in enumerate(FOLDERS) for review in _folder(root / part / name, label)]


def parse_lines(path: Path, content: bytes) -> Reviews:
    """The reviews of a file with one JSON object in each line."""
    reviews = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            match json.loads(line):
                case {"label": (0 | 1) as label, "text": str(text)} if not isinstance(label, bool):
                    reviews.append((text, int(label)))
                case _:
                    raise ValueError('it must be {"label": 0 or 1, "text": "..."}')
        except ValueError as error:
            raise InvalidInput(f"{path}, line {number} is no review: {error}.") from error
    if not reviews:
        raise InvalidInput(f"{path} is empty.")
    return reviews


def _folder(folder: Path, label: int) -> Reviews:
    """The reviews of one folder, in the order of the numbers that their names begin with."""
    files = sorted(folder.glob("*.txt"), key=lambda path: (len(path.stem.partition("_")[0]), path.name))
    if not files:
        raise InvalidInput(f"{folder} holds no reviews *.txt: is the archive unpacked whole?")
    reviews = []
    for path in files:
        try:
            reviews.append((path.read_text(encoding="utf-8"), label))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{path} cannot be read: {error}.") from error
    return reviews
