"""Data sets, and partitions of them over devices."""

from offbeat.data.dataset import Dataset, DatasetSettings
from offbeat.data.own import from_arrays, load_own
from offbeat.data.partition import PARTITIONS, Partition, PartitionSettings
from offbeat.data.registry import DATASETS

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "Dataset",
    "DatasetSettings",
    "Partition",
    "PartitionSettings",
    "from_arrays",
    "load_own",
]
