"""Partitioners of Flower Datasets, or any object with their interface, as partitions.

The interface is `dataset`, which is assigned once, `num_partitions`, and `load_partition(number)`, which returns rows
of that table. It is a Hugging Face table (extra `offbeat[datasets]`) with the column `label` and the other columns of
the data, without the inputs.
"""

import inspect
from copy import deepcopy
from typing import Any, Protocol

import numpy as np
from pydantic import ConfigDict

from offbeat.core.errors import InvalidInput
from offbeat.data.dataset import Dataset, Labels
from offbeat.data.partition import Partition, PartitionSettings
from offbeat.references import describe, resolve

INDEX = "offbeat_sample"
"""The column with the index of each sample, by which the samples of a part are identified."""


class Partitioner(Protocol):
    """The interface of a partitioner; `dataset` is assigned first."""

    dataset: Any

    @property
    def num_partitions(self) -> int:
        """The number of parts."""

    def load_partition(self, partition_id: int) -> Any:
        """The rows of one part, as columns by name."""


def is_partitioner(thing: Any) -> bool:
    """Whether this is a partitioner or a class of partitioners."""
    return callable(getattr(thing, "load_partition", None))


class PartitionerSettings(PartitionSettings):
    """A partitioner by its class; the keys of the table are its arguments.

    `num_partitions` defaults to the number of devices, and `seed` to the seed of the experiment.
    """

    model_config = ConfigDict(extra="allow")

    def check(self) -> None:
        """Raise InvalidInput if the partitioner does not take these arguments."""
        thing, arguments = resolve(self.name), dict(self.model_extra or {})
        if not isinstance(thing, type):
            if arguments:
                key = next(iter(arguments))
                raise InvalidInput(f"partition.{key}: {self.name!r} is an object, not a class, and takes no arguments")
            return
        try:
            inspect.signature(thing).bind(**self._arguments(thing, 1, 0))
        except TypeError as error:
            raise InvalidInput(f"partition.name = {self.name!r}: {error}") from None

    def split(self, labels: Labels, devices: int, seed: int) -> Partition:
        """Divide a table that has labels only."""
        return self._divided({"label": labels}, len(labels), devices, seed)

    def divide(self, dataset: Dataset, devices: int, seed: int) -> Partition:
        """Divide a table with labels and the other columns of the data."""
        y = dataset.train_y
        labels = {"label": y} if isinstance(y, np.ndarray) and y.ndim == 1 else {}
        return self._divided(labels | dict(dataset.columns), len(y), devices, seed)

    def _arguments(self, thing: Any, devices: int, seed: int) -> dict[str, Any]:
        known = inspect.signature(thing).parameters
        ours = {key: value for key, value in (("num_partitions", devices), ("seed", seed)) if key in known}
        return ours | dict(self.model_extra or {})

    def _divided(self, columns: dict[str, Any], samples: int, devices: int, seed: int) -> Partition:
        try:
            from datasets import Dataset as HuggingFaceTable
        except ImportError as error:
            raise InvalidInput(f"partition.name = {self.name!r} needs the extra offbeat[datasets]: {error}.") from error
        thing = resolve(self.name)
        table = HuggingFaceTable.from_dict({INDEX: np.arange(samples)} | columns)
        try:
            one: Partitioner = (
                thing(**self._arguments(thing, devices, seed)) if isinstance(thing, type) else deepcopy(thing)
            )
            one.dataset = table
            parts = one.num_partitions
            own = [np.array(list(one.load_partition(k)[INDEX]), np.int64) for k in range(parts) if parts == devices]
        except Exception as error:
            raise InvalidInput(f"partition.name = {self.name!r}: the partitioner failed: {describe(error)}") from error
        if parts != devices:
            raise InvalidInput(f"data.devices = {devices}, but the partitioner {self.name!r} makes {parts} parts")
        empty = next((device for device, each in enumerate(own) if not len(each)), None)
        if empty is not None:
            raise InvalidInput(f"partition.name = {self.name!r}: device {empty} would hold no samples")
        return Partition.of(own)
