"""The files as published are read whole and right: counts, labels and pixel statistics are the known ones."""

from pathlib import Path

import numpy as np
import pytest

from offbeat.data import DATASETS
from offbeat.data.cifar import parse_binary_batch
from offbeat.data.images import read

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
