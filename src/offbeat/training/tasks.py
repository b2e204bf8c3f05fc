"""Tasks: a loss on a batch, and the names of the metrics to compute (`offbeat.metrics`).

A user's own task is a subclass of `Task`, named "module:Class" in the settings or passed as an object from Python.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from msgspec import Struct
from pydantic import Field, field_validator
from torch import nn
from torch.nn import functional

from offbeat.core.errors import InvalidInput
from offbeat.core.settings import Settings
from offbeat.data.dataset import IGNORED
from offbeat.metrics import METRICS, Direction, Metric, Totals, metric_class
from offbeat.models import called
from offbeat.references import reference_to

Inputs = Any
"""A tensor, or a tuple or mapping of tensors."""
Model = Callable[..., Any]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Batch(Struct, frozen=True, gc=False):
    """Samples as tensors: inputs in the structure of the data, and targets."""

    x: Inputs
    y: torch.Tensor


class Task(Settings):
    """The base of all tasks: a loss on a batch, and metrics.

    A subclass has its settings as fields and defines `loss`; `measures` names the metrics.
    """

    kind: ClassVar[str] = ""
    """The name of a built-in task, by which a metric says whether it can be used with it."""
    measures: list[str] = Field(["loss"], min_length=1)
    """The metrics (`offbeat list metrics`, or your own as "module:Class") in display order; the first is the target."""

    @field_validator("measures", mode="before")
    @classmethod
    def _names(cls, given: Any) -> Any:
        """References to classes that are given from Python; raises InvalidInput if a metric cannot be used."""
        if not isinstance(given, list | tuple) or not all(isinstance(each, str | type) for each in given):
            return given
        names = [each if isinstance(each, str) else reference_to(each) for each in given]
        seen: set[str] = set()
        for name in names:
            metric = metric_class(name)
            if cls.kind and metric.tasks and cls.kind not in metric.tasks:
                fit = ", ".join(each for each, of in METRICS.items() if not of.tasks or cls.kind in of.tasks)
                raise InvalidInput(
                    f"task.measures: {metric.name!r} is no metric of the task {cls.kind!r}, which has {fit}"
                )
            if metric.name in seen:
                raise InvalidInput(f"task.measures: two metrics are named {metric.name!r}")
            seen.add(metric.name)
        return names

    @property
    def measured(self) -> dict[str, Metric]:
        """The metrics of `measures`, by name."""
        metrics = (metric_class(name)(self) for name in self.measures)
        return {metric.name: metric for metric in metrics}

    @property
    def target(self) -> str:
        """The metric by which runs are compared by default: the first."""
        return next(iter(self.directions))

    @property
    def averages_samples(self) -> bool:
        """Whether the loss of a batch is the mean over its samples, so that a large batch may be split."""
        return False

    @property
    def directions(self) -> Mapping[str, Direction]:
        """The metrics in display order, each with its better direction."""
        return {name: metric.direction for name, metric in self.measured.items()}

    def loss(self, model: Model, batch: Batch) -> tuple[torch.Tensor, float]:
        """The mean loss to minimise, and the number of samples (or tokens) it averages."""
        raise NotImplementedError(f"{type(self).__name__} does not define loss")

    def loss_sum(self, outputs: Any, targets: torch.Tensor) -> tuple[torch.Tensor, float]:
        """The loss summed over these samples, and their number; override it if `loss` needs more than the outputs."""
        mean, count = self.loss(lambda *_, **__: outputs, Batch(x=targets, y=targets))
        return mean * count, count

    def sample_losses(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        """The loss of each sample by itself, for selections that read squared losses."""
        alone = [slice(position, position + 1) for position in range(len(targets))]
        sums = [self.loss_sum(outputs[each], targets[each]) for each in alone]
        return torch.stack([loss / (count or 1.0) for loss, count in sums])

    def totals(self, outputs: Any, targets: torch.Tensor) -> Totals:
        """Sums over these samples; added up over all batches, they are the input of `metrics`."""
        return {name: metric.sums(outputs, targets) for name, metric in self.measured.items()}

    def metrics(self, totals: Totals) -> Mapping[str, float]:
        """The metrics, from the sums over all samples."""
        return {name: metric.value(totals[name]) for name, metric in self.measured.items()}

    def check(self, outputs: Any, targets: torch.Tensor, classes: int) -> None:
        """Raise InvalidInput if the model's outputs for two samples do not fit their targets."""


def added(sums: dict[str, Any], totals: Totals) -> dict[str, Any]:
    """The sums plus those of one more batch."""
    for name, total in totals.items():
        if isinstance(total, Mapping):
            sums[name] = added(sums.get(name, {}), total)
        else:
            sums[name] = sums[name] + total if name in sums else total
    return sums


def _check_shape(outputs: Any, wanted: tuple[int, ...], task: str, what: str) -> None:
    shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if shape != wanted:
        raise InvalidInput(f"the model returns {shape} for two samples, but {task} needs {wanted}: {what}.")


class Classification(Task):
    """One of several classes per sample: cross-entropy; accuracy, loss, and optionally macro F1 and AUC."""

    kind = "classification"
    measures: list[str] = Field(["accuracy", "loss"], min_length=1)
    """The metrics, in display order: accuracy, loss, f1, auc, or your own as "module:Class"."""
    class_weights: list[Weight] | None = None
    """The weight of each class in the loss, which becomes a weighted mean."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @property
    def averages_samples(self) -> bool:
        return self.class_weights is None

    def loss(self, model: Model, batch: Batch) -> tuple[torch.Tensor, float]:
        outputs = called(model, batch.x)
        if self.class_weights is None:
            return self._entropy(outputs, batch.y, "mean")
        loss, weight = self._entropy(outputs, batch.y, "sum")
        return loss / (weight or 1.0), weight  # a batch may hold only classes of weight 0

    def _entropy(self, outputs: torch.Tensor, y: torch.Tensor, reduction: str) -> tuple[torch.Tensor, float]:
        outputs = outputs.float()  # sums stay float32 when products are bfloat16
        if self.class_weights is None:
            loss = functional.cross_entropy(outputs, y, reduction=reduction, label_smoothing=self.label_smoothing)
            return loss, len(y)
        weights = torch.tensor(self.class_weights, dtype=outputs.dtype, device=outputs.device)
        loss = functional.cross_entropy(
            outputs, y, weight=weights, reduction=reduction, label_smoothing=self.label_smoothing
        )
        return loss, float(weights[y].sum())

    def loss_sum(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, float]:
        return self._entropy(outputs, targets, "sum")

    def sample_losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(
            outputs.float(), targets, reduction="none", label_smoothing=self.label_smoothing
        )  # a weighted mean over one sample is its loss, whatever the weight of its class

    def check(self, outputs: Any, targets: torch.Tensor, classes: int) -> None:
        if targets.is_floating_point() or targets.ndim != 1:
            raise InvalidInput(
                f"the targets are {targets.dtype} of shape {tuple(targets.shape[1:])} each, but classification needs "
                'one integer label per sample (did you mean task.name = "regression" or "multi-label"?).'
            )
        _check_shape(outputs, (2, classes), "classification", f"one number for each of {classes} classes")
        if self.class_weights is not None and len(self.class_weights) != classes:
            raise InvalidInput(
                f"task.class_weights has {len(self.class_weights)} values for {classes} classes: give one per class"
            )


class Regression(Task):
    """Numbers per sample: squared, absolute or Huber error; R² (mean over the outputs), mean absolute error, loss."""

    kind = "regression"
    measures: list[str] = Field(["r2", "mae", "loss"], min_length=1)
    """The metrics, in display order: r2, mae, rmse, huber, loss, or your own as "module:Class"."""
    error: Literal["squared", "absolute", "huber"] = "squared"
    """What is minimised; huber is quadratic up to `delta` and linear beyond, so outliers weigh less."""
    delta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The error at which the Huber loss becomes linear."""

    @property
    def averages_samples(self) -> bool:
        return True

    def loss(self, model: Model, batch: Batch) -> tuple[torch.Tensor, float]:
        outputs = called(model, batch.x)
        return self._error(outputs, batch.y.view_as(outputs), "mean"), len(batch.y)

    def _error(self, outputs: torch.Tensor, y: torch.Tensor, reduction: str) -> torch.Tensor:
        if self.error == "huber":
            return functional.huber_loss(outputs, y, reduction=reduction, delta=self.delta)
        return (functional.mse_loss if self.error == "squared" else functional.l1_loss)(outputs, y, reduction=reduction)

    def loss_sum(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, float]:
        outputs = outputs.double()
        each = self._error(outputs, targets.double().view_as(outputs), "none")
        return each.reshape(len(targets), -1).mean(1).sum(), len(targets)

    def check(self, outputs: Any, targets: torch.Tensor, classes: int) -> None:
        if not targets.is_floating_point():
            raise InvalidInput("the targets are integers, but regression needs floating-point numbers: convert them.")
        if not (isinstance(outputs, torch.Tensor) and outputs.shape == (2, 1) and targets.ndim == 1):
            _check_shape(outputs, (2, *targets.shape[1:]), "regression", "as many numbers as each target has")


class MultiLabel(Task):
    """Any number of labels per sample: binary cross-entropy; micro F1 over all decisions, macro F1 over labels."""

    kind = "multi-label"
    measures: list[str] = Field(["micro_f1", "macro_f1", "loss"], min_length=1)
    """The metrics, in display order: micro_f1, macro_f1, auc, loss, or your own as "module:Class"."""
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The probability from which a label counts as predicted."""

    @property
    def averages_samples(self) -> bool:
        return True

    def loss(self, model: Model, batch: Batch) -> tuple[torch.Tensor, float]:
        outputs = called(model, batch.x).float()
        return functional.binary_cross_entropy_with_logits(outputs, batch.y.to(outputs.dtype)), len(batch.y)

    def loss_sum(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, float]:
        outputs = outputs.float()
        loss = functional.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="sum")
        return loss, targets.numel()

    def check(self, outputs: Any, targets: torch.Tensor, classes: int) -> None:
        if targets.ndim != 2 or not bool(((targets == 0) | (targets == 1)).all()):
            raise InvalidInput("multi-label needs a row of zeros and ones as target of each sample.")
        _check_shape(outputs, tuple(targets.shape), "multi-label", "one number for each label")


class TokenSequence(Task):
    """A token at each position of a sequence (language modelling): cross-entropy per token, without padding."""

    kind = "sequence"
    measures: list[str] = Field(["token_accuracy", "perplexity", "loss"], min_length=1)
    """The metrics, in display order: token_accuracy, perplexity, loss, or your own as "module:Class"."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0

    def loss(self, model: Model, batch: Batch) -> tuple[torch.Tensor, float]:
        loss, tokens = self._entropy(called(model, batch.x), batch.y)
        return loss / max(tokens, 1), tokens

    def _entropy(self, outputs: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int]:
        loss = functional.cross_entropy(
            outputs.flatten(0, -2),
            y.flatten(),
            ignore_index=IGNORED,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )
        return loss, int((y != IGNORED).sum())

    def loss_sum(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, float]:
        return self._entropy(outputs, targets)

    def check(self, outputs: Any, targets: torch.Tensor, classes: int) -> None:
        if targets.is_floating_point() or targets.ndim < 2:
            raise InvalidInput("the task sequence needs a row of integer tokens as target of each sample.")
        _check_shape(
            outputs, (*targets.shape, classes), "sequence", f"one number for each of {classes} tokens at each position"
        )


BUILT_IN: tuple[type[Task], ...] = (Classification, Regression, MultiLabel, TokenSequence)

CLASSIFICATION = Classification()
"""The default task."""


def is_plain_classification(task: Task) -> bool:
    """Whether the loss is the plain mean cross-entropy, which stacked training differentiates by hand."""
    return type(task) is Classification and task.class_weights is None and not task.label_smoothing


def check_fit(task: Task, module: nn.Module, batch: Batch, classes: int) -> None:
    """Raise InvalidInput if the task does not work with this model on a batch of two samples."""
    try:
        with torch.no_grad():
            outputs = called(module, batch.x)
            task.check(outputs, batch.y, classes)
            task.loss(module, batch)
            found = task.metrics(task.totals(outputs, batch.y))
    except InvalidInput:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InvalidInput(
            f"the task {type(task).__name__} fails on the model's outputs for two samples: "
            f"{type(error).__name__}: {reason}."
        ) from error
    missing = [name for name in task.directions if name not in found]
    if missing:
        raise InvalidInput(
            f"the task {type(task).__name__} lists the metric {missing[0]!r} in `directions` but does not compute it."
        )
