"""The tables that choose an implementation by name and hold its settings (`[fleet] name = "ratio", ratio = 5.0`).

The allowed keys of such a table depend on the name. A name is in a registry, or it is "module:attribute" for the user's
own implementation, which has the same base class.
"""

import inspect
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from offbeat.algorithms import policy_class
from offbeat.algorithms.sizes import governed
from offbeat.core.errors import InvalidInput, unknown
from offbeat.core.policy import Policy
from offbeat.core.selection import Selector
from offbeat.core.settings import Settings
from offbeat.data import DATASETS, PARTITIONS, Dataset, DatasetSettings, PartitionSettings, load_own
from offbeat.data.csv_table import CsvTable
from offbeat.data.partition import Iid
from offbeat.data.partitioners import PartitionerSettings, is_partitioner
from offbeat.data.transforms import transforms_of
from offbeat.experiment.tables import Table, checked
from offbeat.fleet import AVAILABILITIES, FLEETS, AvailabilitySettings, FleetSettings
from offbeat.metrics import METRICS, Direction, Metric
from offbeat.models.catalogue import MODEL_SETTINGS, MODELS, Layers, ModelChoice, PlainModel
from offbeat.references import GIVEN, resolve, thing_name
from offbeat.selection import SELECTORS

if TYPE_CHECKING:
    from offbeat.training.tasks import Task

S = TypeVar("S", bound=Settings)
TASKS = {
    "classification": "offbeat.training.tasks:Classification",
    "regression": "offbeat.training.tasks:Regression",
    "multi-label": "offbeat.training.tasks:MultiLabel",
    "sequence": "offbeat.training.tasks:TokenSequence",
}
"""Tasks by name, as references, so that torch is imported only when a task is made."""
UNIFORM = "uniform"
"""The selection of a run that names none."""


def chosen(section: str, word: str, name: str, registry: Mapping[str, type[S]], base: type[Any]) -> type[S]:
    """Return the settings class of this name: from the registry, or the user's subclass of `base` as "module:Class"."""
    if ":" not in name:
        if name not in registry:
            raise unknown(word, name, registry)
        return registry[name]
    found = resolve(name)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise InvalidInput(f"{section}.name = {name!r}: not a subclass of offbeat.{base.__name__}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise InvalidInput(f"{section}.name = {name!r}: does not define {missing}")
    return found


def written(name: str, settings: Settings) -> Table:
    """Return the table as a file has it."""
    return {"name": name} | settings.model_dump(exclude={"name"}, exclude_none=True)


class NamedTable(Settings):
    """A table that chooses an implementation by name and holds its settings."""

    model_config = ConfigDict(extra="allow")
    name: str
    _object: Any = PrivateAttr(None)
    """Keeps an object that was given instead of a name alive."""

    @property
    def others(self) -> Table:
        """The settings of the implementation: all keys that this class does not have."""
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _check(self) -> "NamedTable":
        if self.name.startswith(GIVEN):
            self._object = resolve(self.name)
        self.check()
        return self

    def check(self) -> None:
        """Raise InvalidInput if the name or a setting is not allowed."""


class DataTable(NamedTable):
    """The data set, and the number of devices. The settings of the data set belong here too."""

    name: str = "mnist5k"
    """A data set (`offbeat list datasets`) or your own as "module:function"."""
    devices: Annotated[int, Field(ge=1)] = 100
    """Number of devices among which `[partition]` divides the data."""
    transforms: list[Table] = Field([])
    """Augmentations of training images, a table each: crop, flip, cutout, or your own as name = "module:function"."""

    def check(self) -> None:
        transforms_of(self.transforms)
        if self.dataset is None and self.others:
            raise InvalidInput(f"unknown key 'data.{next(iter(self.others))}': allowed: name, devices, transforms")

    @cached_property
    def dataset(self) -> DatasetSettings | None:
        """The settings of the data set; None for the user's own."""
        if ":" in self.name:
            return None
        if self.name not in DATASETS:
            raise unknown("data set", self.name, DATASETS)
        kind = DATASETS[self.name]
        devices = {"devices": self.devices} if "devices" in kind.model_fields else {}
        return checked(kind, "data", {"name": self.name} | self.others | devices, {"devices", "transforms"})

    @property
    def divided(self) -> bool | None:
        """Whether the data set assigns samples to devices itself; None if that is known only when it is loaded."""
        return None if self.dataset is None else self.dataset.divided

    def load(self, seed: int, task: str = "") -> Dataset:
        """Load the data set, with the transforms of this table; a table of numbers is read as the task needs it."""
        settings = self.dataset
        if isinstance(settings, CsvTable) and task == "regression" and not settings.predict:
            settings = settings.model_copy(update={"predict": "numbers"})
        dataset = load_own(self.name, seed) if settings is None else settings.load(seed)
        return dataset.transformed(transforms_of(self.transforms)) if self.transforms else dataset

    def resolved(self) -> Table:
        """All settings with their values."""
        transforms = {"transforms": self.transforms} if self.transforms else {}
        own = written(self.name, self.dataset) if self.dataset else {}
        return {"name": self.name, "devices": self.devices} | transforms | own


class PartitionTable(NamedTable):
    """How samples are divided among devices (`offbeat list partitions`); not for data sets that do so themselves."""

    name: str = ""
    """A partition (default: iid), or your own or one of Flower Datasets as "module:Class"."""

    def check(self) -> None:
        _ = self.settings

    @cached_property
    def settings(self) -> PartitionSettings:
        """The settings of the partition, checked by its own class."""
        if not self.name and self.others:
            raise InvalidInput(f"partition.name is missing, but there is a setting {next(iter(self.others))!r}")
        if ":" in self.name and is_partitioner(resolve(self.name)):
            other = PartitionerSettings(name=self.name, **self.others)
            other.check()
            return other
        kind = chosen("partition", "partition", self.name, PARTITIONS, PartitionSettings) if self.name else Iid
        return checked(kind, "partition", self.others)

    def resolved(self) -> Table:
        """All settings with their values."""
        return written(self.name or "iid", self.settings)


class ModelTable(NamedTable):
    """The network (`offbeat list models`). The settings of the network belong here too."""

    name: str = "lenet5"
    """A model, or your own as "module:function" or "module:Class"; other keys are its keyword arguments."""
    layers: Layers = "modules"
    """What counts as a layer in layer-wise training: a submodule with its parameters, or every tensor."""
    projection: Annotated[int, Field(ge=1)] | None = None
    """Outputs of a projection head before the last dense layer, as in MOON (256; default: no head)."""
    buffers: Literal["average", "local", "ignore"] = "average"
    """Running statistics (batch normalisation). average: uploaded and averaged with the model; local: each device keeps
    its own; ignore: unchanged. Unless averaged, evaluation uses the statistics of each batch."""

    def check(self) -> None:
        """Raise InvalidInput if the name is unknown or the model has no such setting."""
        if ":" not in self.name and self.name not in MODELS:
            raise unknown("model", self.name, MODELS)
        _ = self.choice

    @cached_property
    def choice(self) -> ModelChoice:
        """The model as plain data."""
        settings = self.others
        if ":" not in self.name:
            known = ("name", "layers", "projection", "buffers")
            settings = checked(MODEL_SETTINGS.get(self.name, PlainModel), "model", settings, known).model_dump(
                exclude_none=True
            )
        return ModelChoice(name=self.name, settings=settings, layers=self.layers, projection=self.projection)


class FleetTable(NamedTable):
    """Speeds of the devices (`offbeat list fleets`)."""

    name: str = "ratio"
    """A fleet, or your own as "module:Class"."""

    def check(self) -> None:
        _ = self.settings

    @cached_property
    def settings(self) -> FleetSettings:
        """The settings of the fleet, checked by its own class."""
        return checked(chosen("fleet", "fleet", self.name, FLEETS, FleetSettings), "fleet", self.others)

    def resolved(self) -> Table:
        """All settings with their values."""
        return written(self.name, self.settings)


class AvailabilityTable(NamedTable):
    """When devices are available (`offbeat list availability`)."""

    name: str = "always"
    """always, on-off, or your own as "module:Class"."""

    def check(self) -> None:
        _ = self.settings

    @cached_property
    def settings(self) -> AvailabilitySettings:
        """The settings of the availability, checked by its own class."""
        kind = chosen("availability", "availability", self.name, AVAILABILITIES, AvailabilitySettings)
        return checked(kind, "availability", self.others)

    def resolved(self) -> Table:
        """All settings with their values."""
        return written(self.name, self.settings)


class AlgorithmTable(NamedTable):
    """The algorithm (`offbeat list algorithms`; `offbeat describe NAME` for its settings)."""

    name: str = "fedavg"
    """An algorithm, or your own as "module:Class"."""
    label: str = ""
    """Name in tables and plots (default: the algorithm's name)."""

    def check(self) -> None:
        _ = self.policy

    @property
    def title(self) -> str:
        """Name in tables and plots: the label, or else the algorithm's name."""
        return self.label or thing_name(self.name)

    @cached_property
    def policy(self) -> Policy:
        """The policy with its settings, checked by its own class."""
        return checked(policy_class(self.name), "algorithm", self.others)

    def resolved(self) -> Table:
        """All settings with their values, without the sizes that are still open (`open_sizes`)."""
        label = {"label": self.label} if self.label else {}
        return {"name": self.name} | label | self.policy.model_dump(exclude_none=True, exclude=set(self.open_sizes))

    @property
    def open_sizes(self) -> list[str]:
        """The settings that were not given and follow the number of devices in training when a run begins."""
        return [size for size in governed(type(self.policy)) if size not in self.others]


class SelectionTable(NamedTable):
    """Which idle devices the algorithm orders (`offbeat list selections`). The selection's settings belong here too."""

    name: str = UNIFORM
    """A selection, or your own as "module:Class"."""

    def check(self) -> None:
        _ = self.selector

    @cached_property
    def selector(self) -> Selector | None:
        """The selector with its settings, checked by its own class; None: the session's own uniform draw."""
        kind = chosen("selection", "selection", self.name, SELECTORS, Selector)
        if not hasattr(kind, "State"):
            raise InvalidInput(f"selection.name = {self.name!r}: does not define State, the dataclass of its state")
        if kind.pick is Selector.pick:
            raise InvalidInput(
                f"selection.name = {self.name!r}: does not define pick(count, idle, state, view), which returns devices"
            )
        found = checked(kind, "selection", self.others)
        return None if self.name == UNIFORM else found

    def resolved(self) -> Table:
        """All settings with their values; empty for the uniform draw."""
        return {} if self.selector is None else written(self.name, self.selector)


class TaskTable(NamedTable):
    """What is trained and how it is evaluated. The settings of the task belong here too."""

    name: str = "classification"
    """classification, regression, multi-label, sequence, or your own as "module:Class" or "module:object"."""

    @property
    def is_default(self) -> bool:
        """Whether the task is classification without settings."""
        return self.name == "classification" and not self.others

    def check(self) -> None:
        if not self.is_default:
            _ = self.task

    @cached_property
    def task(self) -> "Task":
        """The task with its settings."""
        if ":" not in self.name and self.name not in TASKS:
            raise unknown("task", self.name, TASKS)
        from offbeat.training.tasks import Task

        found: Any = resolve(TASKS.get(self.name, self.name))
        if isinstance(found, Task) and not self.others:
            return found
        if not (isinstance(found, type) and issubclass(found, Task)):
            raise InvalidInput(f"task.name = {self.name!r}: not a subclass of offbeat.training.tasks.Task")
        return checked(found, "task", self.others)

    def metric(self, name: str) -> type[Metric] | None:
        """The class of a metric; None if the task computes it without one."""
        own = None if self.is_default else self.task.measured.get(name)
        return METRICS.get(name) if own is None else type(own)

    def direction(self, metric: str) -> Direction:
        """Whether a higher or a lower value of a metric is better; raises InvalidInput if the task does not have it."""
        if metric == "accuracy" and self.is_default:
            return "max"
        if metric not in self.task.directions:
            raise unknown(f"metric of the task {self.name!r},", metric, self.task.directions)
        return self.task.directions[metric]

    @property
    def metrics(self) -> list[str]:
        """The names of the task's metrics, in the order in which they are shown."""
        return ["accuracy", "loss"] if self.is_default else list(self.task.directions)

    @property
    def target(self) -> str:
        """The default of `evaluation.target_metric`."""
        return "accuracy" if self.is_default else self.task.target

    def resolved(self) -> Table:
        """All settings with their values; empty for the default task."""
        if self.is_default:
            return {}
        return {"name": self.name} | self.task.model_dump(exclude_none=True)
