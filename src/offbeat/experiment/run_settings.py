"""The tables that say how a run goes: `[stop]`, `[evaluation]` and `[deployment]`. Drivers use them as they are."""

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
    """When the run ends: at whichever of these is reached first."""

    time: Positive | None = None
    """Virtual seconds after which the run ends."""
    versions: Count | None = None
    """Versions of the model."""
    updates: Count | None = None
    """Updates that went into the model."""
    accuracy: Share | None = None
    """Accuracy on the held-out data, when evaluated."""
    target: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """A value of `evaluation.target_metric` on the held-out data, when evaluated."""

    @model_validator(mode="after")
    def _one_at_least(self) -> "Stop":
        if all(value is None for value in (self.time, self.versions, self.updates, self.accuracy, self.target)):
            raise ValueError("give at least one of stop.time, stop.versions, stop.updates, stop.accuracy, stop.target")
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
    """When the model is evaluated on the held-out data, beside at the start and at the end."""

    every_seconds: Positive | None = None
    """Virtual seconds between evaluations (default: a thirtieth of stop.time, if that is given)."""
    every_versions: Count | None = None
    """Versions between evaluations (default: 10, if stop.time is not given)."""
    target_metric: str | None = None
    """The metric that runs are compared by (default: the task's first)."""
    targets: list[float] = Field([0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.96, 0.97, 0.98, 0.99])
    """Values of the target metric for which the time to reach them is reported."""
    samples: Count | None = None
    """How many of the held-out samples are evaluated on, always the same ones (default: all of them)."""
    training_loss: bool = False
    """Evaluate also the loss over the training samples that the devices hold."""

    def scheduled(self, stop: Stop) -> "EvaluationTable":
        """This table with the default interval filled in, where none is given."""
        if self.every_seconds is None and self.every_versions is None:
            default = (
                {"every_versions": 10} if stop.time is None else {"every_seconds": stop.time / EVALUATIONS_PER_RUN}
            )
            return self.model_copy(update=default)
        if self.every_seconds is not None and (stop.time or 0.0) / self.every_seconds > MOST_EVALUATIONS:
            raise InvalidInput(
                f"evaluation.every_seconds = {self.every_seconds}: that is more than {MOST_EVALUATIONS:,} evaluations"
            )
        return self

    @property
    def interval(self) -> float:
        """Seconds between evaluations; infinite if they do not go by time."""
        return self.every_seconds or inf


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
