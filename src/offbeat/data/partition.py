"""Partitions: ways to divide the training samples of a data set over devices.

Each is a settings class with `split(labels, devices, seed)` and a line in `PARTITIONS`. Every device gets at least one
sample, and only `Same` gives a sample to several devices. `Sizes`, `LabelSets`, `Same` and `Column` may leave samples
unused. Everything is arrays, so that a million devices are feasible.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.core.settings import Settings
from offbeat.core.streams import stream
from offbeat.data.dataset import Dataset, Labels
from offbeat.data.samples import Array, Indices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partition:
    """The training samples of every device, end to end in one array.

    >>> partition = Partition.of([np.array([4, 2]), np.array([0])])
    >>> partition.devices, partition.sizes.tolist(), partition.samples(0).tolist()
    (2, [2, 1], [4, 2])
    """

    indices: Indices
    offsets: Indices
    """Device k holds indices[offsets[k]:offsets[k + 1]]."""
    names: tuple[str, ...] = ()
    """The names of the devices, if the data name them."""

    @classmethod
    def of(cls, samples: Sequence[Indices]) -> "Partition":
        """The partition with the given samples of each device, as in `Dataset.devices`."""
        return cls(indices=np.concatenate(samples), offsets=_offsets(np.array([len(own) for own in samples])))

    @property
    def devices(self) -> int:
        """The number of devices."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Indices:
        """The number of training samples of each device."""
        return np.diff(self.offsets)

    def samples(self, device: int) -> Indices:
        """The indices of one device's training samples (a view)."""
        return self.indices[self.offsets[device] : self.offsets[device + 1]]


class PartitionSettings(Settings):
    """The base of all partitions, including users' own; its fields are the keys of the table `[partition]`."""

    name: str = ""

    @abstractmethod
    def split(self, labels: Labels, devices: int, seed: int) -> Partition:
        """Divide the training samples with these labels."""

    def divide(self, dataset: Dataset, devices: int, seed: int) -> Partition:
        """Divide the training samples of a data set; most partitions use the labels alone."""
        return self.split(dataset.train_y, devices, seed)


class Iid(PartitionSettings):
    """Shuffled, in equal parts (sizes differ by at most one)."""

    name: Literal["iid"] = "iid"

    def split(self, labels: Labels, devices: int, seed: int) -> Partition:
        """Shuffle the samples and divide them equally."""
        _check_enough(len(labels), devices)
        samples = stream(seed, "partition").permutation(len(labels))
        return Partition(indices=samples, offsets=_even_cuts(len(labels), devices))


class Dirichlet(PartitionSettings):
    """Each class divided over the devices in proportions from Dirichlet(alpha): label and size skew."""

    name: Literal["dirichlet"] = "dirichlet"
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.3
    """Concentration. Small: few classes per device; large: nearly iid."""

    def split(self, labels: Labels, devices: int, seed: int) -> Partition:
        """Divide each class in its own proportions; an empty device gets one sample of the largest."""
        _check_labels(labels, "dirichlet")
        _check_enough(len(labels), devices)
        generator = stream(seed, "partition")
        samples = generator.permutation(len(labels))
        shuffled = labels[samples]
        owners = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            members = np.flatnonzero(shuffled == label)
            shares = generator.dirichlet(np.full(devices, self.alpha))
            ends = np.floor(np.cumsum(shares)[:-1] * len(members))
            owners[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
        return _grouped(samples, _fill_empty(owners, devices), devices)


class DirichletEqual(PartitionSettings):
    """Equal sizes, each device's classes in proportions from Dirichlet(alpha): label skew."""

    name: Literal["dirichlet-equal"] = "dirichlet-equal"
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.3
    """Concentration. Small: few classes per device; large: nearly iid."""

    def split(self, labels: Labels, devices: int, seed: int) -> Partition:
        """Let each device in turn draw samples in its proportions, among the classes that have samples left."""
        _check_labels(labels, "dirichlet-equal")
        _check_enough(len(labels), devices)
        generator = stream(seed, "partition")
        shuffled = generator.permutation(len(labels))
        left = [shuffled[labels[shuffled] == label].tolist() for label in np.unique(labels)]
        chosen = []
        for size in np.diff(_even_cuts(len(labels), devices)).tolist():
            shares, own = generator.dirichlet(np.full(len(left), self.alpha)), list[int]()
            while len(own) < size:
                # Never zero, so that a device whose classes are used up draws from the others.
                weights = np.array([share + 1e-9 if free else 0.0 for share, free in zip(shares, left, strict=True)])
                wanted = generator.multinomial(size - len(own), weights / weights.sum())
                for free, count in zip(left, wanted.tolist(), strict=True):
                    own += free[:count]
                    del free[:count]
            chosen.append(np.array(own, dtype=np.int64))
        return Partition.of(chosen)


class Shards(PartitionSettings):
    """Sorted by label and cut into equal shards; each device gets labels_per_device of them at random."""

    name: Literal["shards"] = "shards"
    labels_per_device: Annotated[int, Field(gt=0)] = 2
    """Shards per device. A shard on the border of two classes holds both."""

    def split(self, labels: Labels, devices: int, seed: int) -> Partition:
        """Cut the samples, sorted by label, into shards and distribute them at random."""
        _check_labels(labels, "shards")
        _check_enough(len(labels), devices)
        shards = devices * self.labels_per_device
        if shards > len(labels):
            raise InvalidInput(
                f"data.devices = {devices} with partition.labels_per_device = {self.labels_per_device} needs {shards} "
                f"shards, but there are only {len(labels)} training samples."
            )
        generator = stream(seed, "partition")
        samples = _by_label(generator.permutation(len(labels)), labels)
        dealt = generator.permutation(shards) // self.labels_per_device
        owners = np.repeat(dealt, np.diff(_even_cuts(len(labels), shards)))
        return _grouped(samples, owners, devices)


class Sizes(PartitionSettings):
    """Random samples in the numbers that `sizes` lists; other training samples are not used."""

    name: Literal["sizes"] = "sizes"
    sizes: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)]
    """Number of training samples of each device."""
    disjoint_labels: bool = False
    """Sort by label first, so that the devices' label sets overlap as little as possible."""

    def split(self, labels: Labels, devices: int, seed: int) -> Partition:
        """Give each device random samples, as many as listed."""
        if len(self.sizes) != devices:
            raise InvalidInput(
                f"partition.sizes lists {len(self.sizes)} devices, but data.devices = {devices}: they must be equal."
            )
        _check_enough(len(labels), devices)
        total = sum(self.sizes)
        if total > len(labels):
            raise InvalidInput(f"partition.sizes add up to {total}, but there are only {len(labels)} training samples.")
        # Chosen before sorting, so that unused samples are a random part of every class, not the last classes.
        samples = stream(seed, "partition").permutation(len(labels))[:total]
        if self.disjoint_labels:
            _check_labels(labels, "sizes with disjoint_labels")
            samples = _by_label(samples, labels)
        return Partition(indices=samples, offsets=_offsets(np.array(self.sizes)))


class LabelSets(PartitionSettings):
    """Random samples of the labels, and in the number, that are listed for each device; labels may be shared."""

    name: Literal["labels"] = "labels"
    labels: Annotated[list[Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]], Field(min_length=1)]
    """The labels of each device."""
    sizes: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)]
    """The number of training samples of each device."""

    def split(self, labels: Labels, devices: int, seed: int) -> Partition:
        """Give each device in turn random unused samples of its labels."""
        _check_labels(labels, "labels")
        if not len(self.sizes) == len(self.labels) == devices:
            raise InvalidInput(
                f"partition.sizes lists {len(self.sizes)} devices and partition.labels {len(self.labels)}, but "
                f"data.devices = {devices}: they must be equal."
            )
        free = stream(seed, "partition").permutation(len(labels))
        chosen = []
        for device, (wanted, size) in enumerate(zip(self.labels, self.sizes, strict=True)):
            fitting = np.isin(labels[free], wanted)
            if np.count_nonzero(fitting) < size:
                raise InvalidInput(
                    f"partition.sizes[{device}] = {size}: only {np.count_nonzero(fitting)} training samples with its "
                    f"labels {wanted} are left."
                )
            taken = np.flatnonzero(fitting)[:size]
            chosen.append(free[taken])
            free = np.delete(free, taken)
        return Partition.of(chosen)


class Same(PartitionSettings):
    """The same random samples, in the same order, to every device."""

    name: Literal["same"] = "same"
    samples: Annotated[int, Field(gt=0)] | None = None
    """Number of training samples of every device (default: all)."""

    def split(self, labels: Labels, devices: int, seed: int) -> Partition:
        """Give every device the same samples."""
        size = len(labels) if self.samples is None else self.samples
        if devices < 1:
            raise InvalidInput(f"devices = {devices}: there must be at least one.")
        if size > len(labels):
            raise InvalidInput(f"partition.samples = {size}: there are only {len(labels)} training samples.")
        chosen = stream(seed, "partition").permutation(len(labels))[:size]
        return Partition(indices=np.tile(chosen, devices), offsets=np.arange(devices + 1) * size)


class Column(PartitionSettings):
    """By the values of a column, in sorted order: one device for each of the first `data.devices` values."""

    name: Literal["column"] = "column"
    column: Annotated[str, Field(min_length=1)]
    """The name of the column."""

    def split(self, labels: Labels, devices: int, seed: int) -> Partition:
        """Raise InvalidInput: labels alone have no columns."""
        raise InvalidInput(f"partition.column = {self.column!r}: the data have labels only, and no columns.")

    def divide(self, dataset: Dataset, devices: int, seed: int) -> Partition:
        """Give each device all samples with its value of the column."""
        if self.column not in dataset.columns:
            there = ", ".join(dataset.columns) or "none"
            raise InvalidInput(f"partition.column = {self.column!r}: no such column; the data have: {there}")
        return by_owner(dataset.columns[self.column], devices, self.column)


PARTITIONS: dict[str, type[PartitionSettings]] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "dirichlet-equal": DirichletEqual,
    "shards": Shards,
    "sizes": Sizes,
    "labels": LabelSets,
    "same": Same,
    "column": Column,
}


def by_owner(owners: Array, devices: int, column: str) -> Partition:
    """The samples of the first `devices` owners in sorted order; those of others are not used."""
    names, numbers = np.unique(owners, return_inverse=True)
    if len(names) < devices:
        raise InvalidInput(
            f"data.devices = {devices}: column {column!r} has only {len(names)} different values, one per device."
        )
    samples = np.flatnonzero(numbers < devices)
    return replace(_grouped(samples, numbers[samples], devices), names=tuple(str(name) for name in names[:devices]))


def _check_labels(labels: Any, name: str) -> None:
    """Raise InvalidInput if these targets are not one label for each sample."""
    if not isinstance(labels, np.ndarray) or labels.ndim != 1 or labels.dtype.kind != "i":
        raise InvalidInput(
            f"partition.name = {name!r} divides by label, but the targets are not labels: use iid or sizes."
        )


def _check_enough(samples: int, devices: int) -> None:
    if devices < 1:
        raise InvalidInput(f"devices = {devices}: there must be at least one.")
    if samples < devices:
        raise InvalidInput(
            f"data.devices = {devices}: there are only {samples} training samples, and each device needs at least one."
        )


def _offsets(sizes: Indices) -> Indices:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)])


def _even_cuts(samples: int, parts: int) -> Indices:
    """Offsets of parts whose sizes differ by at most one."""
    return np.arange(parts + 1) * samples // parts


def _by_label(samples: Indices, labels: Labels) -> Indices:
    """The samples in a stable order by label."""
    return samples[np.argsort(labels[samples], kind="stable")]


def _grouped(samples: Indices, owners: Indices, devices: int) -> Partition:
    """The partition in which samples[i] belongs to owners[i]."""
    sizes = np.bincount(owners, minlength=devices)
    return Partition(indices=samples[np.argsort(owners, kind="stable")], offsets=_offsets(sizes))


def _fill_empty(owners: Indices, devices: int) -> Indices:
    """The owners after each empty device has taken one sample from the device that is then the largest.

    Number each device's samples 0, 1, 2, ...: the largest device has the highest number, so taking from the largest
    repeatedly means taking the samples with the highest numbers. With at least as many samples as devices, none
    of those is the first of its device (number 0), so no device becomes empty.
    """
    sizes = np.bincount(owners, minlength=devices)
    empty = np.flatnonzero(sizes == 0)
    grouped = np.argsort(owners, kind="stable")
    counts = np.empty_like(owners)
    counts[grouped] = np.arange(len(owners)) - _offsets(sizes)[owners[grouped]]
    filled = owners.copy()
    filled[np.argsort(-counts, kind="stable")[: len(empty)]] = empty
    return filled
