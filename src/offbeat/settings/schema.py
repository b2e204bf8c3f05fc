"""The experiment file: TOML tables parsed once into frozen, checked settings; every mistake is one sentence.

Some tables hold the settings of a named thing beside its name (`[fleet] name = "ratio", ratio = 5.0`): which keys such
a table may have depends on the name, and an unknown name is answered with the nearest known one.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import product
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import ConfigDict, Field, field_validator, model_validator

from offbeat.algorithms import policy_class
from offbeat.core.errors import InvalidInput, unknown
from offbeat.core.orders import LocalWork
from offbeat.core.policy import Policy
from offbeat.core.settings import Settings
from offbeat.data import DATASETS, PARTITIONS, Dataset, DatasetSettings, Partition, PartitionSettings, load_own
from offbeat.fleet import FLEETS, AvailabilitySettings, FailureSettings, FleetSettings, NetworkSettings
from offbeat.models import MODELS
from offbeat.settings.schedule import Schedule, Stop
from offbeat.settings.tables import Table, checked, merge, nested, parse_changes, read_toml

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]
MOST_EVALUATIONS = 1_000_000
IN_TRAINING = "in_training"
"""The one key of `[compare]` that is not the name of an algorithm."""


class StopTable(Settings):
    """When the run ends: at whichever of these is reached first."""

    time: Positive | None = None
    """Virtual seconds."""
    versions: Count | None = None
    """Versions of the model."""
    updates: Count | None = None
    """Updates that went into the model."""
    accuracy: Share | None = None
    """Accuracy on the held-out data, when evaluated."""

    @model_validator(mode="after")
    def _one_at_least(self) -> "StopTable":
        if all(value is None for value in (self.time, self.versions, self.updates, self.accuracy)):
            raise ValueError("give at least one of stop.time, stop.versions, stop.updates and stop.accuracy")
        return self

    def build(self) -> Stop:
        return Stop(**self.model_dump(exclude_none=True))


class Named(Settings):
    """A table that names a thing and holds its settings."""

    model_config = ConfigDict(extra="allow")
    name: str

    @property
    def others(self) -> Table:
        return dict(self.model_extra or {})


class DataTable(Named):
    """Which data, and how they are divided over the devices. Settings of the data set and of the partition join in."""

    name: str = "mnist5k"
    """A data set (`offbeat list datasets`) or your own as "module:function"."""
    devices: Count = 100
    """Devices that hold the data."""
    partition: str = "iid"
    """iid, dirichlet, shards, sizes, labels or same. Data that come divided (synthetic, your own) stay so."""

    @model_validator(mode="after")
    def _check(self) -> "DataTable":
        _ = self.dataset, self.scheme
        return self

    @cached_property
    def dataset(self) -> DatasetSettings | None:
        """The settings of a data set of ours; None for the user's own."""
        if ":" in self.name:
            return None
        if self.name not in DATASETS:
            raise unknown("data set", self.name, DATASETS)
        kind = DATASETS[self.name]
        ours = {key: value for key, value in self.others.items() if self._belongs_to_dataset(key)}
        if "devices" in kind.model_fields:
            ours["devices"] = self.devices
        known = {"devices", "partition", *self._scheme_kind.model_fields}
        return checked(kind, "data", {"name": self.name} | ours, known)

    def _belongs_to_dataset(self, key: str) -> bool:
        """A key that neither the data set nor the partition knows is refused by the data set."""
        own = ":" not in self.name and key in DATASETS[self.name].model_fields
        return own or (":" not in self.name and key not in self._scheme_kind.model_fields)

    @property
    def _scheme_kind(self) -> type[PartitionSettings]:
        if self.partition not in PARTITIONS:
            raise unknown("partition", self.partition, PARTITIONS)
        return PARTITIONS[self.partition]

    @cached_property
    def scheme(self) -> PartitionSettings:
        theirs = {key: value for key, value in self.others.items() if not self._belongs_to_dataset(key)}
        return checked(self._scheme_kind, "data", theirs)

    def load(self, seed: int) -> tuple[Dataset, Partition]:
        """The data and who holds what."""
        dataset = load_own(self.name, seed) if self.dataset is None else self.dataset.load(seed)
        if dataset.devices is None:
            return dataset, self.scheme.split(dataset.train_y, self.devices, seed)
        if len(dataset.devices) != self.devices:
            raise InvalidInput(
                f"data.devices = {self.devices}: {self.name!r} comes divided over {len(dataset.devices)}"
            )
        return dataset, Partition.of(dataset.devices)

    def resolved(self) -> Table:
        """All settings with their values. Data that come divided leave no choice of a partition, but keep the key."""
        own = self.dataset.model_dump(exclude_none=True) if self.dataset is not None else {"name": self.name}
        scheme = self.scheme.model_dump(exclude_none=True)
        return scheme | {"devices": self.devices, "partition": self.partition} | own


class ModelTable(Settings):
    """Which network."""

    name: str = "lenet5"
    """A model (`offbeat list models`) or your own as "module:function"."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if ":" not in name and name not in MODELS:
            raise unknown("model", name, MODELS)
        return name


class LocalTable(Settings):
    """What a device does with an order."""

    epochs: Annotated[int, Field(ge=1, le=100_000)] = 5
    """Passes over the device's data."""
    batch_size: Annotated[int, Field(ge=0)] = 32
    """Samples in a step; 0: all of the device's."""
    learning_rate: Annotated[float, Field(gt=0, le=1e6)] = 0.03
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    learning_rate_decay: Share = 1.0
    """The learning rate shrinks by this factor every `decay_every` versions."""
    decay_every: Count = 1
    schedule: Literal["exponential", "inverse"] = "exponential"
    """"inverse": the learning rate is divided by 1 + version / `decay_every` instead."""

    def build(self) -> LocalWork:
        return LocalWork(**(self.model_dump() | {"batch_size": self.batch_size or None}))


class FleetTable(Named):
    """How fast the devices are (`offbeat list fleets`)."""

    name: str = "ratio"

    @model_validator(mode="after")
    def _check(self) -> "FleetTable":
        _ = self.settings
        return self

    @cached_property
    def settings(self) -> FleetSettings:
        if self.name not in FLEETS:
            raise unknown("fleet", self.name, FLEETS)
        return checked(FLEETS[self.name], "fleet", {"name": self.name} | self.others)


class AlgorithmTable(Named):
    """Which algorithm (`offbeat list algorithms`; `offbeat describe NAME` for its settings)."""

    name: str = "fedavg"
    label: str = ""
    """What tables and plots call it (default: its name)."""

    @property
    def title(self) -> str:
        return self.label or self.name

    @model_validator(mode="after")
    def _check(self) -> "AlgorithmTable":
        _ = self.policy
        return self

    @cached_property
    def policy(self) -> Policy:
        return checked(policy_class(self.name), "algorithm", self.others)


class EvaluationTable(Settings):
    """When the model is evaluated on the held-out data, beside at the start and at the end."""

    every_seconds: Positive | None = None
    """Virtual seconds between evaluations (default: a thirtieth of stop.time, if that is given)."""
    every_versions: Count | None = None
    """Versions between evaluations (default: 10, if stop.time is not given)."""
    targets: list[Share] = Field([0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.96, 0.97, 0.98, 0.99])
    """Accuracies for which the time to reach them is reported."""
    training_loss: bool = False
    """Evaluate also the loss over the training samples that the devices hold."""

    def build(self, stop: Stop) -> Schedule:
        if self.every_seconds is None and self.every_versions is None:
            return Schedule(every_seconds=stop.time / 30) if stop.time < inf else Schedule(every_versions=10)
        if self.every_seconds is not None and stop.time / self.every_seconds > MOST_EVALUATIONS and stop.time < inf:
            raise InvalidInput(
                f"evaluation.every_seconds = {self.every_seconds}: that is more than {MOST_EVALUATIONS:,} evaluations"
            )
        return Schedule(every_seconds=self.every_seconds or inf, every_versions=self.every_versions)


class ExecutionTable(Settings):
    """Who computes. It changes how long a run takes, never (beyond float tolerance) what comes out."""

    executor: Literal["auto", "sequential", "stacked", "processes"] = "auto"
    """sequential: clients one by one, bit-reproducible; stacked: dense models many at once; auto: the faster of the two
    for the model; processes: auto in worker processes."""
    workers: Count = 1
    """Worker processes; 1 trains in this one (unless the executor is "processes")."""
    checkpoint_seconds: Positive = 30.0
    """Real seconds between checkpoints."""
    save_model: bool = True
    """Leave the final parameters in the run directory."""


class DeploymentTable(Settings):
    """How real devices are dealt with (`offbeat deploy`, `offbeat local-cluster`); a simulation does not look at it."""

    start_with: Count | None = None
    """Devices that must have joined before the run begins (default: all)."""
    start_seconds: Positive = 300.0
    """Wait no longer than this for them if at least one has joined."""
    answer_seconds: Positive = 600.0
    """A device that has not answered a message after so long is given up until it does."""
    leg_seconds: Positive = 30.0
    """How often a device in training checks whether it was told to stop, under an algorithm that tells so. Every such
    message costs Flower some seconds."""
    rest_seconds: Positive = 5.0
    """A device that failed gets its next order after a rest, which doubles with every failure in a row."""
    norm_bound: Positive | None = None
    """Refuse an update that moved the model by more than this (Euclidean norm)."""
    paced: bool = False
    """Devices take the time that `[fleet]` says, by waiting: for trying out an uneven fleet on one machine."""


class Experiment(Settings):
    """Everything that determines a run."""

    seed: Annotated[int, Field(ge=0)] = 0
    stop: StopTable
    data: DataTable = DataTable()
    model: ModelTable = ModelTable()
    local: LocalTable = LocalTable()
    fleet: FleetTable = FleetTable()
    network: NetworkSettings = NetworkSettings()
    availability: AvailabilitySettings = AvailabilitySettings()
    failures: FailureSettings = FailureSettings()
    algorithm: AlgorithmTable = AlgorithmTable()
    evaluation: EvaluationTable = EvaluationTable()
    execution: ExecutionTable = ExecutionTable()
    deployment: DeploymentTable = DeploymentTable()
    compare: dict[str, Any] = Field({})
    """Changes to the experiment for single algorithms, as `[compare.NAME.TABLE]`. With `algorithm.name` among them NAME
    is only a label, so that variants of one algorithm can be compared. `[compare] in_training = N` gives all of them
    that many devices in training, false leaves each its own."""
    sweep: dict[str, list[Any]] = Field({})
    """Settings and the values that `offbeat sweep` gives them, as `"TABLE.KEY" = [...]`."""

    @model_validator(mode="after")
    def _compare_has_tables(self) -> "Experiment":
        for key, value in self.compare.items():
            if key != IN_TRAINING and not isinstance(value, Mapping):
                raise InvalidInput(f"compare.{key} = {value!r}: must be a table, or `in_training` a number")
        number = self.in_training
        if number is not None and number is not False and (type(number) is not int or number < 1):
            raise InvalidInput(
                f"compare.{IN_TRAINING} = {number!r}: must be a number of devices, or false to leave each its own"
            )
        return self

    @property
    def compared(self) -> dict[str, Table]:
        """What `[compare]` says of each algorithm that it names."""
        return {name: changes for name, changes in self.compare.items() if name != IN_TRAINING}

    @property
    def in_training(self) -> int | bool | None:
        """How many devices all algorithms of a comparison keep in training; False: each its own; None: not said."""
        return self.compare.get(IN_TRAINING)

    @model_validator(mode="after")
    def _iterations_agree(self) -> "Experiment":
        """A fleet that thinks in iterations and an algorithm that does must mean the same ones."""
        fleet = getattr(self.fleet.settings, "iteration_seconds", None)
        algorithm = getattr(self.algorithm.policy, "iteration_seconds", None)
        if fleet is not None and algorithm is not None and fleet != algorithm:
            raise InvalidInput(
                f"fleet.iteration_seconds = {fleet} and algorithm.iteration_seconds = {algorithm}: they must be equal"
            )
        return self

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> "Experiment":
        """From nested tables, as an experiment file has them."""
        for section, value in table.items():
            field = cls.model_fields.get(section)
            if isinstance(value, dict) and field is not None and isinstance(field.annotation, type):
                _check_section(section, field.annotation, value)
        experiment = checked(cls, "", table)
        for name in experiment.compared:
            experiment.for_algorithm(name, experiment.seed)
        return experiment

    @classmethod
    def load(cls, path: Path, changes: Iterable[str] = ()) -> "Experiment":
        """From a file, with changes like "fleet.ratio=110"."""
        return cls.parse(merge(read_toml(path), parse_changes(changes)))

    def table(self) -> Table:
        """All settings with their values, as tables: parsing them gives this experiment again."""
        plain = self.model_dump(exclude_none=True)
        plain["data"] = self.data.resolved()
        plain["deployment"] = self.deployment.model_dump(exclude_defaults=True)
        plain["fleet"] = self.fleet.settings.model_dump(exclude_none=True)
        named = {"name": self.algorithm.name} | ({"label": self.algorithm.label} if self.algorithm.label else {})
        plain["algorithm"] = named | self.algorithm.policy.model_dump(exclude_none=True)
        return {key: value for key, value in plain.items() if value != {}}

    def given_table(self) -> Table:
        """The same, but of the algorithm only the settings that somebody gave: a comparison shares out the others."""
        algorithm = self.algorithm
        named = {"name": algorithm.name} | ({"label": algorithm.label} if algorithm.label else {})
        return self.table() | {"algorithm": named | algorithm.others}

    def toml(self) -> str:
        return tomli_w.dumps(self.table())

    def changed(self, changes: Mapping[str, Any]) -> "Experiment":
        """This experiment with some settings changed."""
        return Experiment.parse(merge(self.table(), changes))

    def for_algorithm(self, name: str, seed: int) -> "Experiment":
        """The same experiment under another algorithm and seed, with what `[compare.NAME]` says about it."""
        changes = self.compared.get(name, {})
        if "name" in changes.get("algorithm", {}):
            changes = merge(changes, {"algorithm": {"label": name}})
        else:
            changes = merge({"algorithm": {"name": name}}, changes)
        return self._single(merge(changes, {"seed": seed}))

    def swept(self, over: Mapping[str, Sequence[Any]], seed: int) -> "list[Experiment]":
        """The same experiment with every combination of these settings' values, which become its label."""
        experiments = []
        for values in product(*over.values()):
            changes: Table = {"seed": seed}
            for path, value in zip(over, values, strict=True):
                changes = merge(changes, nested(path, value))
            label = " / ".join(str(value) for value in values)
            experiments.append(self._single(merge(changes, {"algorithm": {"label": label}})))
        return experiments

    def _single(self, changes: Mapping[str, Any]) -> "Experiment":
        """With these changes, and nothing about comparisons."""
        table = {key: value for key, value in self.table().items() if key not in ("compare", "sweep")}
        return Experiment.parse(merge(table, changes))


def _check_section(section: str, kind: type[Any], value: Table) -> None:
    """Check one table on its own first, so that a mistake in it is explained with what the table may hold."""
    if issubclass(kind, Settings):
        checked(kind, section, value)
