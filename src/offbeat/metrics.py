"""Metrics: numbers computed from sums over samples, one small class each.

A task names its metrics (`task.measures = ["accuracy", "auc"]`); your own is a subclass of `Metric`, named
"module:MyMetric". Because a metric is computed from sums, the batch size of an evaluation does not change it. This
module does not import torch: tables, plots and `offbeat list metrics` read it.
"""

import re
from collections.abc import Mapping
from math import inf, nan, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import InvalidInput, unknown
from offbeat.data.dataset import IGNORED
from offbeat.references import resolve

if TYPE_CHECKING:
    from torch import Tensor

Direction = Literal["max", "min"]
Totals = Mapping[str, Any]
"""Sums over samples by name: anything that can be added with `+` (numbers, tensors, lists)."""


class Metric:
    """The base of all metrics. A subclass defines `sums` and `value`, and says what its values mean."""

    name: ClassVar[str] = ""
    """Its column in metrics.jsonl and its name in `evaluation.target_metric` (default: its class, in snake case)."""
    direction: ClassVar[Direction] = "max"
    """Whether a higher or a lower value is better."""
    share: ClassVar[bool] = False
    """Whether the values are shown in percent."""
    limits: ClassVar[tuple[float, float]] = (-inf, inf)
    """The lowest and highest possible value: a target outside is refused."""
    tasks: ClassVar[tuple[str, ...]] = ()
    """The built-in tasks that it can be used with (default: every task)."""

    def __init__(self, task: Any) -> None:
        self.task = task
        """The task with its settings."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    def sums(self, outputs: Any, targets: Any) -> Totals:
        """Sums over these samples; those of all batches are added up and passed to `value`."""
        raise NotImplementedError(f"{type(self).__name__} does not define sums")

    def value(self, sums: Totals) -> float:
        """The metric, from the sums over all samples."""
        raise NotImplementedError(f"{type(self).__name__} does not define value")


class Loss(Metric):
    """The task's loss, as it is trained: the mean over samples (or tokens)."""

    direction: ClassVar[Direction] = "min"
    limits = (0.0, inf)

    def sums(self, outputs: Any, targets: Any) -> Totals:
        loss, count = self.task.loss_sum(outputs, targets)
        return {"loss": loss.item(), "count": count}

    def value(self, sums: Totals) -> float:
        mean: float = sums["loss"] / (sums["count"] or 1)
        return mean


# Classification ------------------------------------------------------------------------------------------------------


class Accuracy(Metric):
    """The share of samples whose most probable class is the right one."""

    share = True
    limits = (0.0, 1.0)
    tasks = ("classification",)

    def sums(self, outputs: "Tensor", targets: "Tensor") -> Totals:
        return {"correct": int((outputs.argmax(1) == targets).sum()), "count": len(targets)}

    def value(self, sums: Totals) -> float:
        return float(sums["correct"] / sums["count"])


class _F1(Metric):
    """F1 from hits, predicted and actual members per class."""

    share = True
    limits = (0.0, 1.0)

    def value(self, sums: Totals) -> float:
        return macro_f1(sums["hits"], sums["chosen"], sums["held"])


class F1(_F1):
    """The mean of F1 over the classes (macro F1); a class that is neither predicted nor present counts as 0."""

    tasks = ("classification",)

    def sums(self, outputs: "Tensor", targets: "Tensor") -> Totals:
        classes, chosen = outputs.shape[1], outputs.argmax(1)
        return {
            "hits": targets[chosen == targets].bincount(minlength=classes),
            "chosen": chosen.bincount(minlength=classes),
            "held": targets.bincount(minlength=classes),
        }


def macro_f1(hits: "Tensor", chosen: "Tensor", held: "Tensor") -> float:
    """The mean over classes of 2 hits / (chosen + held); a class that is neither chosen nor held counts as 0."""
    return float((2.0 * hits.double() / (chosen + held).clamp(min=1)).mean())


class Auc(Metric):
    """Area under the ROC curve: of two classes, or the mean over classes against the rest, or over labels."""

    limits = (0.0, 1.0)
    tasks = ("classification", "multi-label")

    def sums(self, outputs: "Tensor", targets: "Tensor") -> Totals:
        scores = (outputs.float().softmax(1) if targets.ndim == 1 else outputs).cpu().numpy()
        held = targets.cpu().numpy()
        return {"scores": [scores], "held": [np.eye(scores.shape[1])[held] if held.ndim == 1 else held]}

    def value(self, sums: Totals) -> float:
        scores, held = np.concatenate(sums["scores"]), np.concatenate(sums["held"]) > 0.5
        areas = [_area(score, of_class) for score, of_class in zip(scores.T, held.T, strict=True)]
        defined = [area for area in areas if area == area]
        return sum(defined) / len(defined) if defined else nan


def _area(score: npt.NDArray[Any], positive: npt.NDArray[np.bool_]) -> float:
    """The probability that a positive sample scores above a negative one, ties counted half; nan without both."""
    pairs = int(positive.sum()) * int((~positive).sum())
    if not pairs:
        return nan
    _, place, counts = np.unique(score, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[place]
    above = ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
    return float(above / pairs)


# Regression ----------------------------------------------------------------------------------------------------------


class _OfErrors(Metric):
    """A mean over samples of a function of the error, averaged over the outputs."""

    direction: ClassVar[Direction] = "min"
    limits = (0.0, inf)
    tasks = ("regression",)

    def sums(self, outputs: "Tensor", targets: "Tensor") -> Totals:
        error = outputs.double().reshape(len(targets), -1) - targets.double().reshape(len(targets), -1)
        return {"errors": self.of(error).sum(0), "count": len(targets)}

    def of(self, error: "Tensor") -> "Tensor":
        """The number to average, for each error."""
        raise NotImplementedError

    def value(self, sums: Totals) -> float:
        return float((sums["errors"] / sums["count"]).mean())


class Mae(_OfErrors):
    """Mean absolute error."""

    def of(self, error: "Tensor") -> "Tensor":
        return error.abs()


class Rmse(_OfErrors):
    """Root of the mean squared error."""

    def of(self, error: "Tensor") -> "Tensor":
        return error**2

    def value(self, sums: Totals) -> float:
        return sqrt(super().value(sums))


class Huber(_OfErrors):
    """Mean Huber loss: half the squared error up to `task.delta`, linear beyond."""

    def of(self, error: "Tensor") -> "Tensor":
        delta = getattr(self.task, "delta", 1.0)
        size = error.abs()
        return (0.5 * size**2).where(size <= delta, delta * (size - 0.5 * delta))


class R2(_OfErrors):
    """Coefficient of determination, mean over the outputs."""

    direction: ClassVar[Direction] = "max"
    limits = (-inf, 1.0)

    def sums(self, outputs: "Tensor", targets: "Tensor") -> Totals:
        y = targets.double().reshape(len(targets), -1)
        return {**super().sums(outputs, targets), "y": y.sum(0), "y_squares": (y**2).sum(0)}

    def of(self, error: "Tensor") -> "Tensor":
        return error**2

    def value(self, sums: Totals) -> float:
        spread = (sums["y_squares"] - sums["y"] ** 2 / sums["count"]).clamp(min=1e-12)
        return float((1.0 - sums["errors"] / spread).mean())


# Labels and tokens ---------------------------------------------------------------------------------------------------


class MacroF1(_F1):
    """The mean of F1 over labels."""

    tasks = ("multi-label",)

    def sums(self, outputs: "Tensor", targets: "Tensor") -> Totals:
        held, chosen = targets > 0.5, outputs.float().sigmoid() >= self.task.threshold
        return {"hits": (held & chosen).sum(0), "chosen": chosen.sum(0), "held": held.sum(0)}


class MicroF1(MacroF1):
    """F1 over all decisions, of every sample and label."""

    def value(self, sums: Totals) -> float:
        return macro_f1(sums["hits"].sum(), sums["chosen"].sum(), sums["held"].sum())


class TokenAccuracy(Metric):
    """The share of tokens predicted right, without padding."""

    share = True
    limits = (0.0, 1.0)
    tasks = ("sequence",)

    def sums(self, outputs: "Tensor", targets: "Tensor") -> Totals:
        counted = targets != IGNORED
        correct = (outputs.argmax(-1) == targets) & counted
        return {"correct": int(correct.sum()), "tokens": int(counted.sum())}

    def value(self, sums: Totals) -> float:
        return float(sums["correct"] / max(sums["tokens"], 1))


class Perplexity(Loss):
    """Exponential of the loss per token."""

    tasks = ("sequence",)

    def value(self, sums: Totals) -> float:
        import torch

        return float(torch.tensor(super().value(sums), dtype=torch.float64).exp())


METRICS: dict[str, type[Metric]] = {
    each.name: each
    for each in (
        Accuracy,
        Auc,
        F1,
        Huber,
        Loss,
        MacroF1,
        Mae,
        MicroF1,
        Perplexity,
        R2,
        Rmse,
        TokenAccuracy,
    )
}
"""The registered metrics. A new one is a subclass of `Metric` and a line here."""


def check_target(target: float | None, metric: type[Metric] | None, key: str = "target") -> None:
    """Raise InvalidInput if the metric cannot have this value, or always has one at least as good."""
    if target is None or metric is None:
        return
    lowest, highest = metric.limits
    if metric.direction == "max":
        possible, bounds = lowest < target <= highest, (f"above {lowest:g}", f"at most {highest:g}")
    else:
        possible, bounds = lowest <= target < highest, (f"at least {lowest:g}", f"below {highest:g}")
    if not possible:
        said = [text for text, limit in zip(bounds, metric.limits, strict=True) if abs(limit) != inf]
        raise InvalidInput(f"{key} = {target}: must be {' and '.join(said)} for {metric.name}")


def metric_class(name: str) -> type[Metric]:
    """The metric of this name: a registered one, or the user's own as "module:Class"."""
    if ":" not in name:
        if name not in METRICS:
            raise unknown("metric", name, METRICS)
        return METRICS[name]
    found: Any = resolve(name)
    if not (isinstance(found, type) and issubclass(found, Metric)):
        raise InvalidInput(f"task.measures: {name!r} is not a subclass of offbeat.metrics.Metric")
    return found
