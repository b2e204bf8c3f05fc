"""Settings of a Flower app on a virtual clock: the fleet as in an experiment, and how long messages take."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.core.settings import InvalidSettings, Settings, explain
from offbeat.experiment.named import AvailabilityTable, FleetTable
from offbeat.experiment.tables import Table, checked
from offbeat.fleet import FailureSettings, NetworkSettings
from offbeat.flower.virtual.app import FlowerApp

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
EPOCHS_KEYS = ("local-epochs", "local_epochs", "epochs", "num-epochs")
"""Keys of the run config that Flower's examples use for the number of local epochs."""
MOST_NODES = 1_000_000


class WorkTable(Settings):
    """How long a device works on a message."""

    seconds: Literal["fleet", "measured"] = "fleet"
    """fleet: a training message takes the time of its epochs in `[fleet]`; measured: the ClientApp's CPU time on this
    machine times the device's slowness (the fastest is 1), which differs from run to run."""
    epochs: Count | None = None
    """Epochs of a training message (default: `local-epochs` of the app's run config, else 1)."""
    evaluation: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    """Duration of an evaluation message, in epochs of training on the same device."""
    processor: Positive = 1.0
    """Slowness of the fastest device relative to this machine; for measured time."""


class LimitsTable(Settings):
    """When to end an app that does not end by itself."""

    time: Positive | None = None
    """Virtual seconds after which the run ends."""
    messages: Count | None = None
    """Messages sent by the ServerApp after which the run ends."""


class ClientsTable(Settings):
    """Where ClientApps run. Results are the same, unless an app has its own random generators."""

    workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Worker processes, each with the ClientApp and the state of its nodes; 0: run in this process."""
    seeded: bool = True
    """Seed `random`, numpy and torch before each message, from the seed, the device and the message's number, so that
    runs are reproducible. Flower does not."""


class MetricTable(Settings):
    """The metric that runs are compared by."""

    target_metric: str | None = None
    """The metric of the targets (default: the first accuracy, preferably of central evaluation, else the first
    metric)."""
    target_direction: Literal["max", "min"] | None = None
    """Whether higher (max) or lower (min) values are better (default: by the name)."""
    targets: list[float] = Field([0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.96, 0.97, 0.98, 0.99])
    """Values whose time to target is reported."""


class AppSettings(Settings):
    """All settings of a run on a virtual clock, apart from the app itself."""

    seed: Annotated[int, Field(ge=0)] = 0
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)] = 10
    """Number of devices; the app sees them as nodes with partition-id 0, 1, ..."""
    label: str = ""
    """Name of the run in tables and plots (default: the strategy's name)."""
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
        """Parse nested tables; raises InvalidInput with one sentence per mistake."""
        for section, value in table.items():
            kind = cls.model_fields[section].annotation if section in cls.model_fields else None
            if isinstance(value, Mapping) and isinstance(kind, type) and issubclass(kind, Settings):
                checked(kind, section, value)  # each table by itself first, so that an error lists its keys
        try:
            return cls(**table)
        except InvalidSettings as invalid:
            raise InvalidInput(explain(invalid.error, "", list(cls.model_fields))) from None

    def epochs(self, app: FlowerApp) -> int:
        """Number of epochs in a training message of this app."""
        if self.work.epochs is not None:
            return self.work.epochs
        for key in EPOCHS_KEYS:
            value = app.run_config.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return 1

    def table(self, app: FlowerApp, algorithm: str) -> Table:
        """All settings with their values, for config.toml of the run directory."""
        plain = self.model_dump(exclude_none=True, exclude={"nodes", "label"})
        plain["work"]["epochs"] = self.epochs(app)
        plain["fleet"] = self.fleet.resolved()
        plain["availability"] = self.availability.resolved()
        plain["data"] = {"devices": self.nodes}
        plain["algorithm"] = {"name": algorithm}
        plain["app"] = {"name": app.identity, "version": app.version, "run_config": dict(app.run_config)}
        return {"seed": plain.pop("seed")} | {key: value for key, value in plain.items() if value != {}}
