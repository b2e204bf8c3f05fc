"""What a trainer is given and gives back: the numbers of a local run between two slices, or between two steps."""

from collections.abc import Mapping

from msgspec import Struct, field

from offbeat.core.orders import Order
from offbeat.core.parameters import Vector
from offbeat.core.policy import ReadOnlyMemory


class TrainingState(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """The numeric state of a local run: enough to go on with the next slice as if it had never paused."""

    parameters: Vector
    momentum: Vector | None = None
    """The SGD velocity, over the trained elements only; None before the first step or without momentum."""
    optimiser: Mapping[str, Vector] = field(default_factory=dict)
    """What any other optimiser keeps from step to step, by the names that torch gives it."""
    buffers: Vector | None = None
    """The running statistics, where they stay on the device and are no part of the parameters that travel."""
    steps: int = 0
    steps_into_slice: int = 0
    """Steps of the next slice that are done already: a newer model came in its midst."""
    loss_sum: float = 0.0
    """Sum of the training loss over the samples (or tokens) seen."""
    seen: float = 0
    start: "TrainingState | None" = None
    """The state at the beginning of a step that has come through some of its layers only (unit "layer")."""

    @property
    def loss(self) -> float:
        """The mean loss over the samples seen so far; nan before the first."""
        return self.loss_sum / self.seen if self.seen else float("nan")


class TrainingJob(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """Slices `first` to `last - 1` of one order on one device, starting from `state`, and a few steps more."""

    device: int
    ticket: int
    order: Order
    first: int
    last: int
    extra_steps: int = 0
    """Steps of slice `last` that are done as well (counted from its beginning; unit "epoch")."""
    state: TrainingState
    anchor: Vector
    """The model that came with the order, to which terms of the loss refer."""
    memory: ReadOnlyMemory = {}
    """What the device remembers of earlier trainings, where the order has a use for it."""

    @property
    def whole(self) -> bool:
        """Whether all its slices are whole ones."""
        return not self.extra_steps and not self.state.steps_into_slice

    @property
    def slices(self) -> int:
        """Slices that it works on, wholly or in part."""
        return self.last - self.first + bool(self.extra_steps)


class Evaluation(Struct, frozen=True, kw_only=True):
    """How good a model is by the metrics of its task, on the held-out data if nothing else is said."""

    metrics: Mapping[str, float]
    training_loss: float | None = None
    """The loss over the devices' own samples, where it was asked for."""

    @property
    def accuracy(self) -> float:
        """The share of test samples that the model gets right."""
        return self.metrics["accuracy"]

    @property
    def loss(self) -> float:
        """The mean loss over the test samples."""
        return self.metrics["loss"]
