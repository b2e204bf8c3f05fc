"""`Experiment`: the tables of an experiment file, parsed once into frozen, checked settings.

The `[local]` table is `core.orders.LocalWork` and `[execution]` is in `training.execution`. Tables that choose
an implementation by name (`[fleet] name = "ratio"`) are in `named`, the others in `run_settings`. `objects` converts
Python objects to tables.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy.typing as npt
import tomli_w
from pydantic import Field, PrivateAttr, ValidationError, model_validator

from offbeat.algorithms import POLICIES
from offbeat.algorithms.about import smoke_tables
from offbeat.core.errors import InvalidInput
from offbeat.core.orders import LocalWork
from offbeat.core.policy import Policy
from offbeat.core.selection import Selector
from offbeat.core.settings import Settings, explain
from offbeat.data import Dataset, DatasetSettings, Partition, PartitionSettings
from offbeat.data.partitioners import Partitioner
from offbeat.experiment.locations import located, use_modules
from offbeat.experiment.migrations import migrate
from offbeat.experiment.named import (
    AlgorithmTable,
    AvailabilityTable,
    DataTable,
    FleetTable,
    ModelTable,
    PartitionTable,
    SelectionTable,
    TaskTable,
)
from offbeat.experiment.objects import REGISTRIES, arrays_read, as_table
from offbeat.experiment.run_settings import DeploymentTable, EvaluationTable, Stop, TrackingTable
from offbeat.experiment.tables import Table, checked, merge, nested, parse_changes, read_toml
from offbeat.fleet import AvailabilitySettings, FailureSettings, FleetSettings, NetworkSettings
from offbeat.fleet.attacks import AttackTable
from offbeat.fleet.overrides import DeviceSettings
from offbeat.metrics import check_target
from offbeat.references import GIVEN, thing_name
from offbeat.selection import why_no_selection
from offbeat.training.execution import ExecutionTable
from offbeat.trust.privacy import Privacy, why_not_by_example
from offbeat.trust.settings import TrustTable

IN_TRAINING = "in_training"
"""The key of `[compare]` that says how many devices all algorithms keep in training."""
EVERY = "every_algorithm"
"""The key of `[compare]` that stands for all registered algorithms, with their settings for a smoke test."""


Arrays = tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]
"""train_x, train_y, test_x, test_y."""
Given = str | Mapping[str, Any]
"""A name, or a table as a file has it, in which `name` may also be an object."""


class Experiment(Settings):
    """All settings that determine a run.

    A table may be given as a file has it, as a name, or as an object: a policy, a selector, a fleet, a partition or an
    availability as a settings object or class; data as a Dataset, as four arrays or as a function of the seed; a model
    as a class or a function.

    >>> from offbeat.algorithms import FedBuff
    >>> Experiment(stop={"versions": 5}, algorithm=FedBuff(buffer=3), model="mlp").table()["algorithm"]["buffer"]
    3
    """

    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of all random choices: data, partition, initial model, fleet and the algorithm's own."""
    stop: Stop
    data: DataTable = DataTable()
    partition: PartitionTable = PartitionTable()
    model: ModelTable = ModelTable()
    task: TaskTable = TaskTable()
    local: LocalWork = LocalWork()
    fleet: FleetTable = FleetTable()
    network: NetworkSettings = NetworkSettings()
    availability: AvailabilityTable = AvailabilityTable()
    failures: FailureSettings = FailureSettings()
    attack: AttackTable = AttackTable()
    devices: dict[str, DeviceSettings] = Field({})
    """Settings of single devices (`[devices.NAME]`, `[devices.NUMBER]`): slowdown, link, availability, local work."""
    algorithm: AlgorithmTable = AlgorithmTable()
    selection: SelectionTable = SelectionTable()
    privacy: Privacy = Privacy()
    trust: TrustTable = TrustTable()
    evaluation: EvaluationTable = EvaluationTable()
    execution: ExecutionTable = ExecutionTable()
    deployment: DeploymentTable = DeploymentTable()
    tracking: TrackingTable = TrackingTable()
    compare: dict[str, Any] = Field({})
    """Changes to the experiment for single algorithms, as `[compare.NAME.TABLE]`. With `algorithm.name` among them NAME
    is only a label, so that variants of one algorithm can be compared. `[compare] in_training = N` gives all of them
    that many devices in training, false leaves each its own."""
    sweep: dict[str, list[Any]] = Field({})
    """Settings and their values for `offbeat sweep`, as `"TABLE.KEY" = [...]`."""

    _notes: tuple[str, ...] = PrivateAttr(())

    def __init__(
        self,
        *,
        seed: int | None = None,
        data: Given | DatasetSettings | Dataset | Arrays | Callable[[int], Dataset | Arrays] | None = None,
        partition: Given | PartitionSettings | type[PartitionSettings] | Partitioner | type[Partitioner] | None = None,
        model: Given | Callable[..., Any] | None = None,
        fleet: Given | FleetSettings | type[FleetSettings] | None = None,
        availability: Given | AvailabilitySettings | type[AvailabilitySettings] | None = None,
        algorithm: Given | Policy | type[Policy] | None = None,
        selection: Given | Selector | type[Selector] | None = None,
        **tables: Any,
    ) -> None:
        """Other tables are given as a file has them or as settings objects; only `stop` is required."""
        named = {
            "data": data,
            "partition": partition,
            "model": model,
            "fleet": fleet,
            "availability": availability,
            "algorithm": algorithm,
            "selection": selection,
        }
        given = {"seed": seed} | named | tables
        held = {section: arrays_read(section, value) for section, value in given.items() if value is not None}
        plain, notes = migrate({section: as_table(section, value) for section, value in held.items()})
        for section, value in plain.items():
            field = type(self).model_fields.get(section)
            if isinstance(value, dict) and field is not None and isinstance(field.annotation, type):
                _check_section(section, field.annotation, value)
        if isinstance(plain.get("compare"), dict):
            plain["compare"] = {
                label: each if label == IN_TRAINING else _migrate_changes(each, plain, notes)
                for label, each in with_every_algorithm(plain["compare"]).items()
            }
        for key in plain.keys() - type(self).model_fields.keys():
            if homes := homes_of(key):
                raise InvalidInput(f"unknown key {key!r}: did you mean {' or '.join(map(repr, homes[:3]))}?")
        try:
            super().__init__(**plain)
        except ValidationError as error:
            raise InvalidInput(explain(error, "", list(type(self).model_fields))) from None
        self._notes = tuple(dict.fromkeys(notes))
        for label in self.compared:
            self.for_algorithm(label, self.seed)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the author of the file: keys that have moved, and settings without effect."""
        first, over = self.local.first_decay, self.local.schedule_over
        end = None if over == "steps" else getattr(self.stop, over)
        if first is None or end is None or first < end:
            return self._notes
        idle = f"the learning rate never decays in this run: first at {over} {first:g}, but stop.{over} = {end:g}"
        return (*self._notes, idle)

    @model_validator(mode="after")
    def _choose_step_size(self) -> "Experiment":
        """Let classifiers train with polyak where `[local]` leaves the step size open."""
        falls_to_zero = self.task.name == "classification" and not self.task.others.get("label_smoothing")
        needs_sgd = self.privacy.level == "example" or self.algorithm.policy.measures_gradients
        self.__dict__["local"] = self.local.with_step_size(falls_to_zero and not needs_sgd)
        return self

    @model_validator(mode="after")
    def _compare_has_tables(self) -> "Experiment":
        for key, value in self.compare.items():
            if key != IN_TRAINING and not isinstance(value, Mapping):
                raise InvalidInput(f"compare.{key} = {value!r}: must be a table, or `in_training` a number")
        number = self.in_training
        if number is not None and number is not False and (type(number) is not int or number < 1):
            raise InvalidInput(
                f"compare.{IN_TRAINING} = {number!r}: must be a number of devices, or false to keep the algorithms' own"
            )
        return self

    @property
    def compared(self) -> dict[str, Table]:
        """The changes of `[compare]` for each algorithm."""
        return {name: changes for name, changes in self.compare.items() if name != IN_TRAINING}

    @property
    def in_training(self) -> int | bool | None:
        """Devices that all algorithms of a comparison keep in training; False: each its own number; None: not given."""
        return self.compare.get(IN_TRAINING)

    @model_validator(mode="after")
    def _tables_agree(self) -> "Experiment":
        """Raise InvalidInput if fleet and algorithm disagree on an iteration, or the data are partitioned twice."""
        fleet = getattr(self.fleet.settings, "iteration_seconds", None)
        algorithm = getattr(self.algorithm.policy, "iteration_seconds", None)
        if fleet is not None and algorithm is not None and fleet != algorithm:
            raise InvalidInput(
                f"fleet.iteration_seconds = {fleet} and algorithm.iteration_seconds = {algorithm}: they must be equal"
            )
        if self.data.divided:
            self._check_divided()
        self.trust.check(
            self.algorithm.policy,
            self.algorithm.name,
            privacy=self.privacy.protected,
            selector=self.selection.selector,
        )
        return self

    @model_validator(mode="after")
    def _task_and_algorithm_fit(self) -> "Experiment":
        """Raise InvalidInput if a metric does not exist, or the algorithm needs plain SGD and does not get it."""
        _ = self.target_direction
        if self.stop.accuracy is not None:
            self.task.direction("accuracy")
        if self.evaluation.training_loss:
            self.task.direction("loss")
        for index, target in enumerate(self.evaluation.targets or []):
            self.check_target(target, f"evaluation.targets.{index}")
        self.check_target(self.stop.target, "stop.target")
        if getattr(self.algorithm.policy, "masked_loss", False) and not self.task.is_default:
            from offbeat.training.tasks import Classification

            if not isinstance(self.task.task, Classification):
                raise InvalidInput(
                    f"algorithm.masked_loss = true masks classes, but task.name = {self.task.name!r} has none: set "
                    "algorithm.masked_loss = false"
                )
        local = self.local
        if self.algorithm.policy.plain_gradients and (local.optimiser not in ("sgd", "polyak") or local.clip_norm):
            setting = f"clip_norm = {local.clip_norm}" if local.clip_norm else f"optimiser = {local.optimiser!r}"
            raise InvalidInput(
                f"local.{setting}: algorithm {self.algorithm.name!r} treats updates as gradients and needs SGD or "
                "polyak without clipping"
            )
        if self.algorithm.policy.measures_gradients and local.optimiser != "sgd":
            raise InvalidInput(
                f"local.optimiser = {local.optimiser!r}: algorithm {self.algorithm.name!r}, with these settings, "
                "measures gradients by movements and learning rates, and needs sgd"
            )
        if self.selection.selector is not None and (why := why_no_selection(self.algorithm.policy)) is not None:
            name = self.algorithm.name
            raise InvalidInput(f"selection.name = {self.selection.name!r}: algorithm {name!r} {why}, leave it out")
        return self

    @model_validator(mode="after")
    def _privacy_fits(self) -> "Experiment":
        """Raise InvalidInput if the algorithm, the selection or the training cannot be private as asked for."""
        name, selector, local = self.algorithm.name, self.selection.selector, self.local
        self.privacy.check(self.algorithm.policy, name, self.stop.epsilon, self.most_epochs)
        if not self.privacy.on:
            return self
        if selector is not None and selector.reads is not None:
            raise InvalidInput(
                f"selection.name = {self.selection.name!r}: it reads the losses of devices, which would reveal them in "
                "a private run"
            )
        if self.privacy.level == "example" and (why := why_not_by_example(local, self.execution.precision)):
            needed = "needs whole epochs in float32, without loss terms and by an optimiser other than polyak"
            raise InvalidInput(f'{why}: privacy.level = "example" {needed}')
        return self

    @property
    def most_epochs(self) -> int:
        """The most epochs of an order, or its steps: each uses an example once at most."""
        own = (each.epochs or each.steps or 1 for each in self.devices.values())
        return max([self.local.slices, *own])

    @property
    def target_metric(self) -> str:
        """The metric that runs are compared by."""
        return self.evaluation.target_metric or self.task.target

    @property
    def target_direction(self) -> Literal["max", "min"]:
        """Whether a higher or a lower value of the target metric is better."""
        return self.task.direction(self.target_metric)

    def check_target(self, target: float | None, key: str = "target") -> None:
        """Raise InvalidInput if the target metric cannot have this value, or always has a better one."""
        check_target(target, self.task.metric(self.target_metric), key)

    @property
    def schedule(self) -> EvaluationTable:
        """When the model is evaluated: the `[evaluation]` table with its default interval filled in."""
        return self.evaluation.scheduled(self.stop)

    def _check_divided(self) -> None:
        """Raise InvalidInput if there is a partition for data that have their own."""
        if self.partition.name:
            instead = " or set data.pool" if hasattr(self.data.dataset, "pool") else ""
            raise InvalidInput(
                f"partition.name = {self.partition.name!r}: the data set {self.data.name!r} assigns samples to devices "
                f"itself, leave [partition] out{instead}"
            )

    def load_data(self) -> tuple[Dataset, Partition]:
        """Load the data set and the samples of each device."""
        dataset, devices = self.data.load(self.seed, self.task.name), self.data.devices
        if self.evaluation.samples is not None:
            dataset = dataset.with_test_samples(self.evaluation.samples)
        if dataset.devices is None:
            return dataset, self.partition.settings.divide(dataset, devices, self.seed)
        self._check_divided()
        if len(dataset.devices) != devices:
            raise InvalidInput(f"data.devices = {devices}: {self.data.name!r} has {len(dataset.devices)} devices")
        return dataset, Partition.of(dataset.devices)

    # User code ------------------------------------------------------------------------------------------------------

    @property
    def own(self) -> dict[str, str]:
        """References to user code ("module:attribute"), by the setting that has them."""
        names = {
            "data.name": self.data.name,
            "partition.name": self.partition.name,
            "model.name": self.model.name,
            "task.name": self.task.name,
            "fleet.name": self.fleet.name,
            "availability.name": self.availability.name,
            "algorithm.name": self.algorithm.name,
            "trust.combine": self.trust.combine,
            "selection.name": self.selection.name,
            "local.optimiser": self.local.optimiser,
        }
        for setting, tables in (("local.terms", self.local.terms), ("data.transforms", self.data.transforms)):
            names |= {f"{setting}[{index}].name": str(table["name"]) for index, table in enumerate(tables)}
        measures = self.task.others.get("measures", ())
        names |= {f"task.measures[{index}]": str(name) for index, name in enumerate(measures)}
        return {setting: name for setting, name in names.items() if ":" in name}

    @property
    def only_here(self) -> bool:
        """Whether the experiment refers to an object that only this process has, as a notebook defines them."""
        return any(name.startswith(GIVEN) for name in self.own.values())

    def check_importable(self) -> None:
        """Raise InvalidInput if other processes cannot import an object that the experiment refers to."""
        for setting, name in self.own.items():
            if name.startswith(GIVEN):
                raise InvalidInput(
                    f"{setting}: {thing_name(name)!r} exists in this process only, but worker processes need it: put "
                    'it into a module and refer to it as "module:attribute"'
                )

    # As tables and files ----------------------------------------------------------------------------------------------

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> "Experiment":
        """Make an experiment from nested tables, as a file has them."""
        return cls(**{str(section): value for section, value in table.items()})

    @classmethod
    def load(cls, path: str | os.PathLike[str], changes: Iterable[str] = (), *, alone: bool = False) -> "Experiment":
        """Load an experiment file, with changes like "fleet.ratio=110"; paths in it are relative to the file.

        `alone`: for a run of `[algorithm]` alone, whose changes need not suit the algorithms in `[compare]`.
        """
        if not isinstance(path, str | os.PathLike):
            raise InvalidInput(f"an experiment is loaded from the path of a file, not from a {type(path).__name__}")
        folder = Path(path).resolve().parent
        table, notes = migrate(use_modules(read_toml(path), folder))
        table, found = located(table, folder)
        changes_, more = migrate(parse_changes(changes), table)
        changes_, _ = located(changes_, Path.cwd(), note=False)
        merged = merge(table, changes_)
        try:
            experiment = cls.parse(merged)
        except InvalidInput:
            if not (alone and changes_):
                raise
            experiment = cls.parse({key: value for key, value in merged.items() if key not in ("compare", "sweep")})
        experiment._notes = (*notes, *found, *more, *experiment._notes)
        return experiment

    def table(self) -> Table:
        """All settings with their values, as tables; parsing them gives an equal experiment.

        Sizes of the algorithm that were not given, such as its buffer, are left out: `running.sizing` chooses them.
        """
        return self._table(default_partition=self.data.divided is False)

    def _table(self, *, default_partition: bool = False) -> Table:
        """The tables; the default partition only if asked for, because other data may have their own."""
        plain = self.model_dump(exclude_none=True)
        plain["data"] = self.data.resolved()
        plain["partition"] = self.partition.resolved() if self.partition.name or default_partition else {}
        plain["fleet"] = self.fleet.resolved()
        plain["availability"] = self.availability.resolved()
        plain["algorithm"] = self.algorithm.resolved()
        plain["selection"] = self.selection.resolved()
        plain["privacy"] = self.privacy.resolved()
        plain["trust"] = self.trust.written()
        plain["attack"] = {} if self.attack.name == "none" else plain["attack"]
        plain["task"] = self.task.resolved()
        plain["evaluation"] = {
            key: value for key, value in plain["evaluation"].items() if value or key not in ("per_device", "groups")
        }
        plain["deployment"] = self.deployment.model_dump(exclude_defaults=True)
        plain["tracking"] = self.tracking.model_dump(exclude_defaults=True)
        return {key: value for key, value in plain.items() if value != {}}

    def given_table(self) -> Table:
        """The tables without what was chosen by default: settings of the algorithm, and the devices' step size."""
        return self.table() | self._given()

    def _given(self) -> Table:
        algorithm = self.algorithm
        named = {"name": algorithm.name} | ({"label": algorithm.label} if algorithm.label else {})
        local = self.local.model_dump(exclude_none=True, exclude=set(self.local.open_step_size))
        return {"algorithm": named | algorithm.others, "local": local}

    def toml(self) -> str:
        """The experiment as the text of a file."""
        return tomli_w.dumps(self.table())

    def replace(self, changes: Mapping[str, Any] | None = None, /, **tables: Any) -> "Experiment":
        """Return the experiment with some settings changed: tables as `Experiment` takes them, or "table.key" values.

        >>> experiment = Experiment(stop={"versions": 5}, model="mlp")
        >>> experiment.replace({"fleet.ratio": 7.0}, seed=3, algorithm="fedbuff").table()["fleet"]["ratio"]
        7.0
        """
        merged: Table = dict(tables)
        for path, value in (changes or {}).items():
            merged = merge(merged, nested(path, value))
        return self.changed(merged)

    # Variants ---------------------------------------------------------------------------------------------------------

    def changed(self, changes: Mapping[str, Any]) -> "Experiment":
        """Return the experiment with some settings changed; the changes are as `Experiment` takes them.

        Settings of the algorithm that were not given stay so: a comparison may still choose them. So does the step size
        on the devices: with a learning rate among the changes they train by SGD.
        """
        return self._merged(self._table() | self._given(), changes)

    def for_algorithm(self, algorithm: str | Policy | type[Policy], seed: int) -> "Experiment":
        """Return the experiment for another algorithm and seed, with the changes of `[compare.NAME]`."""
        labelled = isinstance(algorithm, str) and algorithm in self.compared
        table: Table = {"name": algorithm} if labelled else as_table("algorithm", algorithm)
        changes = self.compared.get(table["name"], {})
        if "name" in changes.get("algorithm", {}):
            changes = merge(changes, {"algorithm": {"label": table["name"]}})
        else:
            changes = merge({"algorithm": table}, changes)
        return self._single(merge(changes, {"seed": seed}))

    def swept(self, over: Mapping[str, Sequence[Any]], seed: int) -> "list[Experiment]":
        """Return the experiment for every combination of these settings' values, which become the label."""
        experiments = []
        for values in product(*over.values()):
            changes: Table = {"seed": seed}
            for path, value in zip(over, values, strict=True):
                changes = merge(changes, nested(path, value))
            label = " / ".join(str(value) for value in values)
            experiments.append(self._single(merge(changes, {"algorithm": {"label": label}})))
        return experiments

    def _single(self, changes: Mapping[str, Any]) -> "Experiment":
        """Return the experiment with these changes and without `compare` and `sweep`."""
        table = {key: value for key, value in self._table().items() if key not in ("compare", "sweep")}
        return self._merged(table | self._given(), changes)

    def _merged(self, table: Table, changes: Mapping[str, Any]) -> "Experiment":
        held = {section: arrays_read(section, value) for section, value in changes.items()}
        plain, _ = migrate({section: as_table(section, value) for section, value in held.items()}, table)
        return Experiment.parse(merge(table, plain))


def homes_of(key: str) -> list[str]:
    """The settings "table.key" with this key, in any implementation that a table can name.

    >>> homes_of("ratio"), homes_of("learning_rate")
    (['fleet.ratio'], ['local.learning_rate'])
    """
    kinds = {
        section: [field.annotation, *REGISTRIES.get(section, {}).values()]
        for section, field in Experiment.model_fields.items()
    }
    return [
        f"{section}.{key}"
        for section, classes in kinds.items()
        if any(isinstance(kind, type) and issubclass(kind, Settings) and key in kind.model_fields for kind in classes)
    ]


def _check_section(section: str, kind: type[Any], value: Table) -> None:
    """Check one table by itself, so that an error message can list its allowed keys."""
    if issubclass(kind, Settings):
        checked(kind, section, value)


def with_every_algorithm(compare: Table) -> Table:
    """The tables of `[compare]`, with one for each registered algorithm in place of `every_algorithm = true`."""
    if compare.get(EVERY) is not True:
        return compare
    return merge(smoke_tables(POLICIES.values()), {label: each for label, each in compare.items() if label != EVERY})


def _migrate_changes(changes: Any, base: Table, notes: list[str]) -> Any:
    """Migrate an entry of [compare], and append its notes."""
    if not isinstance(changes, dict):
        return changes
    tables, more = migrate(changes, base)
    notes += more
    return tables
