"""Measures of heterogeneity: label counts per device, and summaries of them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offbeat.data.dataset import IGNORED, Dataset
from offbeat.data.partition import Partition
from offbeat.data.samples import Array, Indices, LazyDevices, Ragged, Samples

BINS = 10
"""Quantile bins of numeric targets."""
LABELS = ""
NUMBERS = "The targets are numbers: shown are their deciles, from lowest to highest, instead of labels."
ROWS = "The targets are rows of numbers: shown are deciles of their means, from lowest to highest, instead of labels."
SEVERAL = "Samples have any number of labels: each label of each sample is counted."
TOKENS = "The targets are sequences: tokens are counted, not samples."


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelCounts:
    """The number of samples of each label on each device."""

    counts: npt.NDArray[np.int64]
    """Samples [devices, labels]."""
    sizes: Indices
    """Samples of each device."""
    names: tuple[str, ...]
    """The names of the labels."""
    remark: str = ""
    """Says what is counted if it is not labels."""

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """The share of each label in a device's samples [devices, labels]."""
        return np.asarray(self.counts / np.maximum(self.counts.sum(axis=1, keepdims=True), 1))

    @property
    def distances(self) -> npt.NDArray[np.float64]:
        """The total-variation distance between each device's labels and those of all devices together.

        That is half the sum of absolute differences of shares: 0 if they are equal, nearly 1 if they have no label in
        common.
        """
        whole = self.counts.sum(axis=0) / max(self.counts.sum(), 1)
        return np.asarray(np.abs(self.shares - whole).sum(axis=1) / 2)

    @property
    def effective_classes(self) -> npt.NDArray[np.float64]:
        """The exponential of the entropy of each device's labels: k if it holds k labels equally often.

        >>> one = LabelCounts(counts=np.array([[5, 5, 0], [7, 0, 0]]), sizes=np.array([10, 7]), names=("a", "b", "c"))
        >>> one.effective_classes.round(6).tolist()
        [2.0, 1.0]
        """
        shares = self.shares
        logarithms = np.log(shares, where=shares > 0, out=np.zeros_like(shares))
        return np.asarray(np.exp(-(shares * logarithms).sum(axis=1)))

    def summary(self) -> dict[str, float]:
        """Sizes and mean measures, by name."""
        return {
            "devices": len(self.sizes),
            "samples": int(self.sizes.sum()),
            "smallest device": int(self.sizes.min()),
            "median device": float(np.median(self.sizes)),
            "largest device": int(self.sizes.max()),
            "mean total-variation distance": float(self.distances.mean()),
            "mean effective number of classes": float(self.effective_classes.mean()),
        }


def label_counts(dataset: Dataset, partition: Partition) -> LabelCounts:
    """Count the labels of every device; numeric targets are counted by decile."""
    targets = [_targets(dataset, partition, device) for device in range(partition.devices)]
    kinds, remark = _kinds(targets, dataset.classes)
    classes = 1 + max((int(kind.max()) for kind in kinds if kind.size), default=0)
    numeric = remark in (NUMBERS, ROWS)
    classes = classes if numeric else max(classes, dataset.classes)
    counts = np.stack([np.bincount(kind, minlength=classes) for kind in kinds])
    names = () if numeric else dataset.class_names
    return LabelCounts(
        counts=counts,
        sizes=partition.sizes,
        names=names or tuple(str(label) for label in range(classes)),
        remark=remark,
    )


def _targets(dataset: Dataset, partition: Partition, device: int) -> Samples:
    """The targets of one device, loaded if the data are lazy."""
    if isinstance(dataset.train_x, LazyDevices):
        return dataset.train_x.load(device)[1]
    y, samples = dataset.train_y, partition.samples(device)
    return y.take(samples) if isinstance(y, Ragged) else y[samples]


def _kinds(targets: list[Samples], classes: int) -> tuple[list[Array], str]:
    """What is counted of each device's targets, as integers from 0, and the remark about it."""
    if isinstance(targets[0], Ragged):
        return [each.values[each.values != IGNORED] for each in targets], TOKENS
    first = targets[0]
    several = first.ndim == 2 and all(bool(((each == 0) | (each == 1)).all()) for each in targets)
    if several and first.shape[1] == classes:
        return [np.nonzero(each)[1] for each in targets], SEVERAL
    if first.dtype.kind != "i":
        values = [each.reshape(len(each), -1).mean(axis=1) for each in targets]
        cuts = np.unique(np.quantile(np.concatenate(values), np.arange(1, BINS) / BINS))
        remark = NUMBERS if first.size == len(first) else ROWS
        return [np.searchsorted(cuts, each, side="right") for each in values], remark
    if first.ndim > 1:
        return [each[each != IGNORED] for each in targets], TOKENS
    return targets, LABELS
