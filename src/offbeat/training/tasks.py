"""Tasks: a loss on a batch, and metrics that are computed from sums over samples.

A user's own task is a subclass of `Task`, named "module:Class" in the settings or passed as an object from Python.
Because metrics come from sums, the batch size of an evaluation does not change them.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import torch
from msgspec import Struct
from pydantic import Field
from torch import nn
from torch.nn import functional

from offbeat.core.errors import InvalidInput
from offbeat.core.settings import Settings
from offbeat.models import called

Direction = Literal["max", "min"]
Inputs = Any
"""A tensor, or a tuple or mapping of tensors."""
Model = Callable[..., Any]
Totals = Mapping[str, Any]
"""Sums over samples: numbers or arrays, by name."""
IGNORED = -100
"""The target of padding tokens, which do not count."""
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Batch(Struct, frozen=True, gc=False):
    """Samples as tensors: inputs in the structure of the data, and targets."""

    x: Inputs
    y: torch.Tensor


class Task(Settings):
    """The base of all tasks: a loss on a batch, and metrics from sums over samples.

    A subclass has its settings as fields and defines `loss`, `totals` and `metrics`.
    """

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
        return {"loss": "min"}

    def loss(self, model: Model, batch: Batch) -> tuple[torch.Tensor, float]:
        """The mean loss to minimise, and the number of samples (or tokens) it averages."""
        raise NotImplementedError(f"{type(self).__name__} does not define loss")

    def totals(self, outputs: Any, targets: torch.Tensor) -> Totals:
        """Sums over these samples; added up over all batches, they are the input of `metrics`."""
        raise NotImplementedError(f"{type(self).__name__} does not define totals")

    def metrics(self, totals: Totals) -> Mapping[str, float]:
        """The metrics, from the sums over all samples."""
        raise NotImplementedError(f"{type(self).__name__} does not define metrics")

    def check(self, outputs: Any, targets: torch.Tensor, classes: int) -> None:
        """Raise InvalidInput if the model's outputs for two samples do not fit their targets."""


def added(sums: dict[str, Any], totals: Totals) -> dict[str, Any]:
    """The sums plus those of one more batch."""
    for name, total in totals.items():
        sums[name] = sums[name] + total if name in sums else total
    return sums


def _check_shape(outputs: Any, wanted: tuple[int, ...], task: str, what: str) -> None:
    shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if shape != wanted:
        raise InvalidInput(f"the model returns {shape} for two samples, but {task} needs {wanted}: {what}.")


class Classification(Task):
    """One of several classes per sample: cross-entropy; accuracy, loss, and optionally macro F1."""

    measures: list[Literal["accuracy", "loss", "f1"]] = Field(["accuracy", "loss"], min_length=1)
    """The metrics, in display order."""
    class_weights: list[Weight] | None = None
    """The weight of each class in the loss, which becomes a weighted mean."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @property
    def averages_samples(self) -> bool:
        return self.class_weights is None

    @property
    def directions(self) -> Mapping[str, Direction]:
        return {name: "min" if name == "loss" else "max" for name in self.measures}

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

    def totals(self, outputs: torch.Tensor, targets: torch.Tensor) -> Totals:
        loss, weight = self._entropy(outputs, targets, "sum")
        chosen = outputs.argmax(1)
        totals: dict[str, Any] = {
            "loss": loss.item(),
            "weight": weight,
            "correct": int((chosen == targets).sum()),
            "count": len(targets),
        }
        if "f1" in self.measures:
            classes = outputs.shape[1]
            totals["hits"] = torch.bincount(targets[chosen == targets], minlength=classes)
            totals["chosen"] = torch.bincount(chosen, minlength=classes)
            totals["held"] = torch.bincount(targets, minlength=classes)
        return totals

    def metrics(self, totals: Totals) -> Mapping[str, float]:
        known = {"accuracy": totals["correct"] / totals["count"], "loss": totals["loss"] / (totals["weight"] or 1)}
        if "f1" in self.measures:
            known["f1"] = macro_f1(totals["hits"], totals["chosen"], totals["held"])
        return {name: known[name] for name in self.measures}

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


def macro_f1(hits: torch.Tensor, chosen: torch.Tensor, held: torch.Tensor) -> float:
    """The mean over classes of 2 hits / (chosen + held); a class that is neither chosen nor held counts as 0."""
    return float((2.0 * hits.double() / (chosen + held).clamp(min=1)).mean())


class Regression(Task):
    """Numbers per sample: mean squared error; R² (mean over the outputs), mean absolute error, loss."""

    @property
    def averages_samples(self) -> bool:
        return True

    @property
    def directions(self) -> Mapping[str, Direction]:
        return {"r2": "max", "mae": "min", "loss": "min"}

    def loss(self, model: Model, batch: Batch) -> tuple[torch.Tensor, float]:
        outputs = called(model, batch.x)
        return functional.mse_loss(outputs, batch.y.view_as(outputs)), len(batch.y)

    def totals(self, outputs: torch.Tensor, targets: torch.Tensor) -> Totals:
        y = targets.double().reshape(len(targets), -1)
        error = outputs.double().reshape(len(targets), -1) - y
        return {
            "squares": (error**2).sum(0),
            "absolute": error.abs().sum(0),
            "y": y.sum(0),
            "y_squares": (y**2).sum(0),
            "count": len(y),
        }

    def metrics(self, totals: Totals) -> Mapping[str, float]:
        count = totals["count"]
        spread = (totals["y_squares"] - totals["y"] ** 2 / count).clamp(min=1e-12)
        return {
            "r2": float((1.0 - totals["squares"] / spread).mean()),
            "mae": float((totals["absolute"] / count).mean()),
            "loss": float((totals["squares"] / count).mean()),
        }

    def check(self, outputs: Any, targets: torch.Tensor, classes: int) -> None:
        if not targets.is_floating_point():
            raise InvalidInput("the targets are integers, but regression needs floating-point numbers: convert them.")
        if not (isinstance(outputs, torch.Tensor) and outputs.shape == (2, 1) and targets.ndim == 1):
            _check_shape(outputs, (2, *targets.shape[1:]), "regression", "as many numbers as each target has")


class MultiLabel(Task):
    """Any number of labels per sample: binary cross-entropy; micro F1 over all decisions, macro F1 over labels."""

    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The probability from which a label counts as predicted."""

    @property
    def averages_samples(self) -> bool:
        return True

    @property
    def directions(self) -> Mapping[str, Direction]:
        return {"micro_f1": "max", "macro_f1": "max", "loss": "min"}

    def loss(self, model: Model, batch: Batch) -> tuple[torch.Tensor, float]:
        outputs = called(model, batch.x).float()
        return functional.binary_cross_entropy_with_logits(outputs, batch.y.to(outputs.dtype)), len(batch.y)

    def totals(self, outputs: torch.Tensor, targets: torch.Tensor) -> Totals:
        outputs = outputs.float()
        held, chosen = targets > 0.5, torch.sigmoid(outputs) >= self.threshold
        loss = functional.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="sum")
        return {
            "hits": (held & chosen).sum(0),
            "chosen": chosen.sum(0),
            "held": held.sum(0),
            "loss": loss.item(),
            "count": targets.numel(),
        }

    def metrics(self, totals: Totals) -> Mapping[str, float]:
        hits, chosen, held = totals["hits"], totals["chosen"], totals["held"]
        return {
            "micro_f1": macro_f1(hits.sum(), chosen.sum(), held.sum()),
            "macro_f1": macro_f1(hits, chosen, held),
            "loss": totals["loss"] / totals["count"],
        }

    def check(self, outputs: Any, targets: torch.Tensor, classes: int) -> None:
        if targets.ndim != 2 or not bool(((targets == 0) | (targets == 1)).all()):
            raise InvalidInput("multi-label needs a row of zeros and ones as target of each sample.")
        _check_shape(outputs, tuple(targets.shape), "multi-label", "one number for each label")


class TokenSequence(Task):
    """A token at each position of a sequence (language modelling): cross-entropy per token, without padding."""

    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @property
    def directions(self) -> Mapping[str, Direction]:
        return {"token_accuracy": "max", "perplexity": "min", "loss": "min"}

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

    def totals(self, outputs: torch.Tensor, targets: torch.Tensor) -> Totals:
        loss, tokens = self._entropy(outputs, targets)
        correct = (outputs.argmax(-1) == targets) & (targets != IGNORED)
        return {"loss": loss.item(), "correct": int(correct.sum()), "tokens": tokens}

    def metrics(self, totals: Totals) -> Mapping[str, float]:
        tokens = max(totals["tokens"], 1)
        loss = totals["loss"] / tokens
        return {
            "token_accuracy": totals["correct"] / tokens,
            "perplexity": float(torch.tensor(loss, dtype=torch.float64).exp()),
            "loss": loss,
        }

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
