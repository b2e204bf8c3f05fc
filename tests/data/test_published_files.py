"""The files as published are read whole and right: counts, labels and pixel statistics are the known ones."""

import tarfile
from pathlib import Path

import numpy as np
import pytest

from offbeat.core.errors import InvalidInput
from offbeat.data import DATASETS
from offbeat.data.cifar import parse_binary_batch
from offbeat.data.images import read
from offbeat.data.imdb import Imdb, read_reviews
from offbeat.data.pictures import TinyImageNet

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def published(name: str) -> str:
    if not (SHARED / name).is_dir():
        pytest.skip(f"the published {name} files are not in shared/data")
    return str(SHARED / name)


TRAIN_COUNTS = {
    "mnist": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "fashion-mnist": [6000] * 10,
}


@pytest.mark.parametrize("name", TRAIN_COUNTS)
def test_idx_sets_have_the_known_counts_and_standardise_to_mean_0_and_deviation_1(name: str) -> None:
    dataset = DATASETS[name].model_validate({"dir": published(name)}).load(seed=0)
    assert dataset.input_shape == (1, 28, 28)
    assert np.bincount(dataset.train_y).tolist() == TRAIN_COUNTS[name]
    assert len(dataset.test_y) == 10_000
    assert float(dataset.train_x.mean(dtype=np.float64)) == pytest.approx(0, abs=1e-3)
    assert float(dataset.train_x.std(dtype=np.float64)) == pytest.approx(1, abs=1e-3)


def test_a_cifar10_batch_has_ten_thousand_images_a_thousand_of_each_class() -> None:
    pixels, labels = parse_binary_batch(*read(published("cifar-10"), "test_batch.bin"))
    assert np.bincount(labels).tolist() == [1000] * 10
    means = pixels.reshape(-1, 3, 1024).mean(axis=(0, 2)) / 255
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=0.01)


def test_imdb_has_its_known_reviews_and_words() -> None:
    folder = published("imdb")
    train, test = read_reviews(folder, "train"), read_reviews(folder, "test")
    for reviews in (train, test):
        assert np.bincount([label for _, label in reviews]).tolist() == [12_500, 12_500]
    assert (len({text for text, _ in train}), len({text for text, _ in test})) == (24_904, 24_801)
    dataset = Imdb(dir=folder, limit=500, vocabulary=100, length=50).load(seed=0)
    assert dataset.train_x.shape == (500, 50)
    assert dataset.test_x.max() == 99
    # The most frequent English word has the first token after padding and unknown words, about one word in twenty.
    assert 0.03 < float((dataset.test_x == 2).mean()) < 0.08


def test_tiny_imagenet_images_are_decoded_to_the_known_statistics(tmp_path: Path) -> None:
    """The first classes of the subset: their training images in part, their validation images all."""
    archive = Path(published("tiny-imagenet-40")) / "tiny-imagenet-40classes.tar.xz"
    with tarfile.open(archive) as files:
        for member in files:
            name = member.name.partition("/")[2]
            number = member.name.rpartition("_")[2].removesuffix(".JPEG")
            if name.startswith("train/") and not (number.isdigit() and int(number) < 20):
                continue
            files.extract(member, tmp_path, filter="data")
    dataset = TinyImageNet(dir=str(tmp_path / "tiny-imagenet-200")).load(seed=0)
    assert np.bincount(dataset.train_y).tolist() == [20] * 40
    assert np.bincount(dataset.test_y).tolist() == [50] * 40
    assert (dataset.input_shape, dataset.class_names[0]) == ((3, 64, 64), "Egyptian cat")
    assert float(dataset.train_x.mean(dtype=np.float64)) == pytest.approx(0, abs=0.1)
    assert float(dataset.train_x.std(dtype=np.float64)) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("given", "found"), [("mnist", "fashion-mnist"), ("fashion-mnist", "mnist")])
def test_the_files_of_the_other_set_are_noticed(given: str, found: str) -> None:
    with pytest.raises(InvalidInput, match=f'holds the files of {found}, set data.name = "{found}"'):
        DATASETS[given].model_validate({"dir": published(found)}).load(seed=0)
