"""The data sets by the names that users write. A new one is a settings class with `load(seed)` and a line here."""

from offbeat.data.cifar import Cifar10
from offbeat.data.embedded import Digits, Mnist5k
from offbeat.data.folder import Folder
from offbeat.data.idx import Emnist, FashionMnist, Mnist
from offbeat.data.synthetic import Synthetic

DatasetSettings = Digits | Mnist5k | Mnist | FashionMnist | Emnist | Cifar10 | Synthetic | Folder

DATASETS: dict[str, type[DatasetSettings]] = {
    "digits": Digits,
    "mnist5k": Mnist5k,
    "mnist": Mnist,
    "fashion-mnist": FashionMnist,
    "emnist": Emnist,
    "cifar10": Cifar10,
    "synthetic": Synthetic,
    "folder": Folder,
}
