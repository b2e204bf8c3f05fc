"""The tables `[stop]`, `[evaluation]`, `[deployment]` and `[tracking]`, which the drivers use directly."""

from collections.abc import Mapping
from math import inf
from typing import Annotated, Literal

from pydantic import Field, model_validator

from offbeat.core.errors import InvalidInput
from offbeat.core.settings import Settings

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]
EVALUATIONS_PER_RUN = 30
"""Evaluations of a run that ends by time, unless the experiment says otherwise."""
MOST_EVALUATIONS = 1_000_000


class Stop(Settings):
    """When the run ends: at the first of these conditions that is met."""

    time: Positive | None = None
    """Seconds of the run's clock."""
    versions: Count | None = None
    """Number of versions."""
    updates: Count | None = None
    """Number of updates used."""
    accuracy: Share | None = None
    """Accuracy on the test data, at an evaluation."""
    target: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """A value of `evaluation.target_metric` on the test data, at an evaluation."""
    epsilon: Positive | None = None
    """A privacy budget: devices contribute as often as it allows, then the run ends (`[privacy]`)."""

    @model_validator(mode="after")
    def _one_at_least(self) -> "Stop":
        if all(getattr(self, name) is None for name in type(self).model_fields):
            names = ", ".join(f"stop.{name}" for name in type(self).model_fields)
            raise ValueError(f"give at least one of {names}")
        return self

    @property
    def horizon(self) -> float:
        """Seconds after which the run ends; infinite if time does not end it."""
        return inf if self.time is None else self.time

    def reached(
        self, row: Mapping[str, float], metric: str = "accuracy", direction: Literal["max", "min"] = "max"
    ) -> str | None:
        """The metric in this row that ends the run, if one does; `target` is a value of `metric`."""
        if self.accuracy is not None and row.get("accuracy", -inf) >= self.accuracy:
            return "accuracy"
        if self.target is None or metric not in row:
            return None
        better = row[metric] >= self.target if direction == "max" else row[metric] <= self.target
        return metric if better else None

    def progress(self, *, time: float, versions: float, updates: float) -> float:
        """The completed share of the run, by the condition that is nearest; a metric cannot be foreseen."""
        conditions = ((time, self.time), (versions, self.versions), (updates, self.updates))
        return min(1.0, max((done / end for done, end in conditions if end is not None), default=0.0))


class EvaluationTable(Settings):
    """When the model is evaluated on the test data, apart from start and end, and how runs are compared."""

    every_seconds: Positive | None = None
    """Seconds between evaluations (default: a thirtieth of stop.time, if that is given)."""
    every_versions: Count | None = None
    """Versions between evaluations (default: 10, if stop.time is not given)."""
    target_metric: str | None = None
    """The metric that runs are compared by (default: the task's first)."""
    targets: list[float] | None = None
    """Values of the target metric for which the time to reach them is reported (default: twelve from 0.5 to 0.99 for an
    accuracy or another share, none for other metrics)."""
    samples: Count | None = None
    """Number of test samples to evaluate on, always the same ones (default: all)."""
    per_device: bool = False
    """Whether to evaluate the final model for each device and group of devices too: on the device's held-out samples if
    the data say which they are, else on its training samples. Groups are thirds of the devices by speed
    and by how unusual their label mix is, and `groups`."""
    groups: dict[str, list[int | str]] = Field({})
    """Named groups of devices, by number or name: `[evaluation.groups] north = ["H01", "H02"]`."""
    training_loss: bool = False
    """Whether to evaluate the loss on the training samples of all devices too."""

    def scheduled(self, stop: Stop) -> "EvaluationTable":
        """Return this table with the default interval, if it has none."""
        if self.every_seconds is None and self.every_versions is None:
            default = (
                {"every_versions": 10} if stop.time is None else {"every_seconds": stop.time / EVALUATIONS_PER_RUN}
            )
            return self.model_copy(update=default)
        if self.every_seconds is not None and (stop.time or 0.0) / self.every_seconds > MOST_EVALUATIONS:
            raise InvalidInput(
                f"evaluation.every_seconds = {self.every_seconds}: more than {MOST_EVALUATIONS:,} evaluations"
            )
        return self

    @property
    def interval(self) -> float:
        """Seconds between evaluations; infinite if they do not depend on time."""
        return self.every_seconds or inf


class DeploymentTable(Settings):
    """Real devices (`offbeat deploy`, `offbeat local-cluster`); a simulation ignores this table."""

    start_with: Count | None = None
    """Number of devices that must have joined before the run starts (default: all)."""
    start_seconds: Positive = 300.0
    """Longest wait for them, in seconds, once at least one has joined."""
    answer_seconds: Positive = 600.0
    """Response timeout in seconds. The device counts as unavailable until it replies."""
    leg_seconds: Positive = 30.0
    """Seconds between check-ins of a stock node in training, under an algorithm that sends stop notices. A check-in
    costs Flower some seconds."""
    rest_seconds: Positive = 5.0
    """Backoff in seconds before the next order to a device that failed; it doubles with each consecutive failure."""
    norm_bound: Positive | None = None
    """Refuse an update whose norm (Euclidean distance from its base) is larger than this."""
    norm_factor: Annotated[float, Field(gt=1)] = 20.0
    """Refuse an update whose norm is more than this many times the median of the norms that devices reported last (inf:
    never). Until three devices have reported, only absurd norms are refused."""
    paced: bool = False
    """Slow devices down to the speeds of `[fleet]`, to try an uneven fleet on one machine."""


class TrackingTable(Settings):
    """Experiment trackers that show the run while it is in progress. They change nothing in its results."""

    tensorboard: bool | str = False
    """Write TensorBoard event files: true for `tensorboard/` in the run directory, or a directory."""
    mlflow: str = ""
    """MLflow tracking URI, e.g. "http://127.0.0.1:5000" or "sqlite:///mlflow.db"."""
    wandb: str = ""
    """Weights & Biases project. `WANDB_MODE=offline` in the environment keeps the data on this machine."""
    prometheus: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port of an HTTP endpoint for Prometheus, for the time of the run."""
    prometheus_host: str = "127.0.0.1"
    """Address of that endpoint; anyone who reaches it can read the metrics."""
    wait_seconds: Positive = 30.0
    """Longest wait for each tracker at the end of the run, in seconds."""

    @property
    def chosen(self) -> list[str]:
        """The trackers that are on."""
        return [name for name in ("tensorboard", "mlflow", "wandb", "prometheus") if getattr(self, name)]
