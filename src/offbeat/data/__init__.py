"""Data sets, and partitions of them over devices."""

from offbeat.data.cifar import Cifar10, Cifar100
from offbeat.data.csv_table import CsvTable
from offbeat.data.dataset import Dataset, DatasetSettings
from offbeat.data.embedded import Digits, Mnist5k
from offbeat.data.huggingface import HuggingFace
from offbeat.data.idx import Emnist, FashionMnist, Mnist
from offbeat.data.imdb import Imdb
from offbeat.data.leaf import Femnist, Shakespeare
from offbeat.data.own import Folder, from_arrays, load_own
from offbeat.data.partition import PARTITIONS, Partition, PartitionSettings
from offbeat.data.pictures import Cinic10, TinyImageNet
from offbeat.data.svhn import Svhn
from offbeat.data.synthetic import Synthetic

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

DATASETS: dict[str, type[DatasetSettings]] = {
    "digits": Digits,
    "mnist5k": Mnist5k,
    "mnist": Mnist,
    "fashion-mnist": FashionMnist,
    "emnist": Emnist,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "cinic10": Cinic10,
    "svhn": Svhn,
    "tiny-imagenet": TinyImageNet,
    "femnist": Femnist,
    "imdb": Imdb,
    "shakespeare": Shakespeare,
    "synthetic": Synthetic,
    "csv": CsvTable,
    "folder": Folder,
    "huggingface": HuggingFace,
}
"""The registered data sets. A new one is a subclass of `DatasetSettings` and a line here."""
