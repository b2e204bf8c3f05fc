"""What a trainer gets and returns: jobs, training states and evaluations."""

from collections.abc import Mapping

from msgspec import Struct, field

from offbeat.core.orders import Order
from offbeat.core.parameters import Vector
from offbeat.core.policy import ReadOnlyMemory


class TrainingState(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """The numbers of a local run between two slices or steps: enough to continue as if it had never paused."""

    parameters: Vector
    momentum: Vector | None = None
    """The SGD velocity of the trained elements; None before the first step or without momentum."""
    optimiser: Mapping[str, Vector] = field(default_factory=dict)
    """The state of any other optimiser, by torch's names."""
    buffers: Vector | None = None
    """The running statistics, if they stay on the device and are not uploaded."""
    steps: int = 0
    steps_into_slice: int = 0
    """Steps of the next slice that are done, if a newer model arrived during the slice."""
    loss_sum: float = 0.0
    """Sum of the training loss over the samples (or tokens) seen."""
    squared_sum: float = 0.0
    """Sum of the squared training losses of single samples, weighted as `loss_sum`, if the order asks for it."""
    seen: float = 0
    start: "TrainingState | None" = None
    """The state before a step whose backward pass has reached only some layers (unit "layer")."""

    @property
    def loss(self) -> float:
        """The mean loss over the samples seen; nan before the first."""
        return self.loss_sum / self.seen if self.seen else float("nan")

    @property
    def squared_loss(self) -> float:
        """The mean squared loss over the samples seen; nan before the first."""
        return self.squared_sum / self.seen if self.seen else float("nan")


class TrainingJob(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """Slices `first` to `last - 1` of one order on one device, starting from `state`, and `extra_steps` more steps."""

    device: int
    ticket: int
    order: Order
    first: int
    last: int
    extra_steps: int = 0
    """Steps to take of slice `last`, counted from its beginning (unit "epoch")."""
    state: TrainingState
    anchor: Vector
    """The parameters that came with the order, to which terms of the loss refer."""
    memory: ReadOnlyMemory = {}
    """The device's memory of earlier orders, if the order needs it."""

    @property
    def whole(self) -> bool:
        """Whether the job consists of whole slices."""
        return not self.extra_steps and not self.state.steps_into_slice

    def samples(self, held: int) -> int:
        """Samples that the job goes through on a device with `held` samples, about."""
        batch = self.order.batch_size
        return self.slices * (held if self.order.unit != "step" or batch is None else min(held, batch))

    @property
    def slices(self) -> int:
        """Number of slices, whole or partial."""
        return self.last - self.first + bool(self.extra_steps)


class Evaluation(Struct, frozen=True, kw_only=True):
    """The metrics of a model, on the test data unless said otherwise."""

    metrics: Mapping[str, float]
    training_loss: float | None = None
    """The loss over the devices' training samples, if requested."""

    @property
    def accuracy(self) -> float:
        """The share of samples that the model classifies correctly."""
        return self.metrics["accuracy"]

    @property
    def loss(self) -> float:
        """The mean loss over the samples."""
        return self.metrics["loss"]
