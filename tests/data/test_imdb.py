"""Reviews come back as tokens from both forms; the test part teaches the vocabulary nothing; damage has its place."""

import json
import lzma
from pathlib import Path

import pytest

from offbeat.core.errors import InvalidInput
from offbeat.data.imdb import Imdb

TRAIN = [("A bad, bad film.", 0), ("Not good<br />at all", 0), ("good film", 1)]
TEST = [("bad plot plot plot", 0), ("A GOOD film", 1)]


def as_lines(reviews: list[tuple[str, int]]) -> bytes:
    return "".join(json.dumps({"label": label, "text": text}) + "\n" for text, label in reviews).encode()


def write_lines(folder: Path) -> None:
    (folder / "train.jsonl.xz").write_bytes(lzma.compress(as_lines(TRAIN)))
    (folder / "test.jsonl").write_bytes(as_lines(TEST))


def write_folders(folder: Path) -> None:
    for part, reviews in (("train", TRAIN), ("test", TEST)):
        for number, (text, label) in enumerate(reviews):
            path = folder / part / ("neg", "pos")[label] / f"{9 + number}_{label * 9 + 1}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


@pytest.mark.parametrize("write", [write_lines, write_folders])
def test_tokens_are_those_of_the_most_frequent_words_of_the_training_part(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    write(tmp_path)
    dataset = Imdb(dir=str(tmp_path), vocabulary=6, length=4).load(seed=0)
    # Counts: bad 2, film 2, good 2, then a, all, at, not 1 each. Six tokens: padding, unknown, bad, film, good, a.
    assert dataset.train_x.tolist() == [[5, 2, 2, 3], [1, 4, 1, 1], [4, 3, 0, 0]]
    # "plot" is the most frequent word of the test part, and unknown.
    assert dataset.test_x.tolist() == [[2, 1, 1, 1], [5, 4, 3, 0]]
    assert dataset.train_y.tolist() == [0, 0, 1]
    assert dataset.test_y.tolist() == [0, 1]
    assert dataset.class_names == ("negative", "positive")


def test_a_limit_also_limits_the_vocabulary(tmp_path: Path) -> None:
    write_lines(tmp_path)
    dataset = Imdb(dir=str(tmp_path), limit=1).load(seed=0)
    assert len(dataset.train_y) == 1
    assert (dataset.train_x[dataset.train_x > 0] > 1).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (as_lines(TRAIN)[:-5], "line 3 is not a review"),
        (as_lines([("x", 0), ("y", 2)]), "line 2 is not a review: it must be"),
        (b'{"label": true, "text": "x"}', "line 1 is not a review"),
        (b'{"text": "x"}', "line 1 is not a review"),
        (b'{"label": 0, "text": "\xff"}', "line 1 is not a review"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    write_lines(tmp_path)
    (tmp_path / "test.jsonl").write_bytes(content)
    with pytest.raises(InvalidInput, match=rf"test\.jsonl, {message}"):
        Imdb(dir=str(tmp_path)).load(seed=0)


def test_a_truncated_archive_an_empty_file_and_an_empty_folder_are_named(tmp_path: Path) -> None:
    write_lines(tmp_path)
    whole = (tmp_path / "train.jsonl.xz").read_bytes()
    (tmp_path / "train.jsonl.xz").write_bytes(whole[:-8])
    with pytest.raises(InvalidInput, match=r"train\.jsonl\.xz cannot be read"):
        Imdb(dir=str(tmp_path)).load(seed=0)
    (tmp_path / "train.jsonl.xz").write_bytes(lzma.compress(b""))
    with pytest.raises(InvalidInput, match=r"train\.jsonl\.xz is empty"):
        Imdb(dir=str(tmp_path)).load(seed=0)
    folders = tmp_path / "folders"
    write_folders(folders)
    (folders / "test" / "pos" / "10_10.txt").unlink()
    with pytest.raises(InvalidInput, match=r"pos has no .*txt files"):
        Imdb(dir=str(folders)).load(seed=0)


def test_a_review_that_is_no_utf8_is_named(tmp_path: Path) -> None:
    write_folders(tmp_path)
    (tmp_path / "train" / "neg" / "9_1.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match=r"9_1\.txt cannot be read"):
        Imdb(dir=str(tmp_path)).load(seed=0)
