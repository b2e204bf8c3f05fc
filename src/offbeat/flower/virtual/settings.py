"""The settings of a Flower app on a virtual clock: the fleet as in an experiment, and what its work takes."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from offbeat.core.errors import InvalidInput
from offbeat.core.settings import Settings
from offbeat.experiment.named import AvailabilityTable, FleetTable
from offbeat.experiment.tables import Table, checked, explain
from offbeat.fleet import FailureSettings, NetworkSettings
from offbeat.flower.virtual.app import FlowerApp

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
EPOCHS_KEYS = ("local-epochs", "local_epochs", "epochs", "num-epochs")
"""Keys of a run config that say how many epochs a training has, as Flower's own examples call them."""
MOST_NODES = 1_000_000


class WorkTable(Settings):
    """What a device's work takes: an app does not say it, so it is said here."""

    seconds: Literal["fleet", "measured"] = "fleet"
    """fleet: a training takes what `[fleet]` says of its epochs; measured: the processor time that the ClientApp took
    here, times the device's slowness (the fastest is 1), which no two runs agree on."""
    epochs: Count | None = None
    """Epochs that a training is (default: `local-epochs` of the app's run config, or else 1)."""
    evaluation: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    """What an evaluation takes, in epochs of training on the same device."""
    processor: Positive = 1.0
    """How many times slower than this machine the fastest device is; for measured time."""


class LimitsTable(Settings):
    """When an app is ended that does not end by itself."""

    time: Positive | None = None
    """Virtual seconds after which the run ends."""
    messages: Count | None = None
    """Messages that its ServerApp has sent."""


class ClientsTable(Settings):
    """Who runs the ClientApps. It makes no difference to the numbers of an app that uses no generator of its own."""

    workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Worker processes, each with the ClientApp loaded and the state of its nodes; 0: this process."""
    seeded: bool = True
    """Seed `random`, numpy and torch before each message from the seed, the device and the message's number, so that a
    run can be repeated. Flower leaves them as they are."""


class MetricTable(Settings):
    """Which of the app's metrics runs are compared by."""

    target_metric: str | None = None
    """The metric that the target is for (default: the first accuracy, of central evaluation if there is one; or else
    the first metric)."""
    target_direction: Literal["max", "min"] | None = None
    """Whether a higher or a lower value is better (default: by the name)."""
    targets: list[float] = Field([0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.96, 0.97, 0.98, 0.99])
    """Values for which the time to reach them is reported."""


class AppSettings(Settings):
    """Everything beside the app itself that determines its run on a virtual clock."""

    seed: Annotated[int, Field(ge=0)] = 0
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)] = 10
    """Devices, which the app sees as nodes with a partition-id from 0 on."""
    label: str = ""
    """What tables and plots call the run (default: the name of the strategy)."""
    fleet: FleetTable = FleetTable()
    network: NetworkSettings = NetworkSettings()
    availability: AvailabilityTable = AvailabilityTable()
    failures: FailureSettings = FailureSettings()
    work: WorkTable = WorkTable()
    stop: LimitsTable = LimitsTable()
    clients: ClientsTable = ClientsTable()
    evaluation: MetricTable = MetricTable()

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> "AppSettings":
        """The settings of nested tables; a mistake is one sentence."""
        for section, value in table.items():
            kind = cls.model_fields[section].annotation if section in cls.model_fields else None
            if isinstance(value, Mapping) and isinstance(kind, type) and issubclass(kind, Settings):
                checked(kind, section, value)  # a table on its own first, so that a mistake names what it may hold
        try:
            return cls(**table)
        except ValidationError as error:
            raise InvalidInput(explain(error, "", list(cls.model_fields))) from None

    def epochs(self, app: FlowerApp) -> int:
        """How many epochs a training of this app is."""
        if self.work.epochs is not None:
            return self.work.epochs
        for key in EPOCHS_KEYS:
            value = app.run_config.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return 1

    def table(self, app: FlowerApp, algorithm: str) -> Table:
        """All settings with their values, as the run directory's config.toml has them."""
        plain = self.model_dump(exclude_none=True, exclude={"nodes", "label"})
        plain["work"]["epochs"] = self.epochs(app)
        plain["fleet"] = self.fleet.resolved()
        plain["availability"] = self.availability.resolved()
        plain["data"] = {"devices": self.nodes}
        plain["algorithm"] = {"name": algorithm}
        plain["app"] = {"name": app.identity, "version": app.version, "run_config": dict(app.run_config)}
        return {"seed": plain.pop("seed")} | {key: value for key, value in plain.items() if value != {}}
