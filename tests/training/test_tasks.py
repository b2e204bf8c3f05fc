"""Tasks: losses and metrics by hand, the same however the data are cut into batches, and what does not fit."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from offbeat.core.errors import InvalidInput
from offbeat.data.dataset import IGNORED
from offbeat.metrics import Metric, Totals
from offbeat.training.tasks import (
    Batch,
    Classification,
    Model,
    MultiLabel,
    Regression,
    Task,
    TokenSequence,
    added,
    check_fit,
)


def judged(task: Task, outputs: Sequence[object], targets: Sequence[object]) -> dict[str, float]:
    return dict(task.metrics(task.totals(torch.tensor(outputs), torch.tensor(targets))))


def same(x: torch.Tensor) -> torch.Tensor:
    """A model whose outputs are its inputs."""
    return x


def test_classification_by_hand() -> None:
    # Equal logits: each loss is ln 2; the first of equals is chosen: class 0, right for one sample of three.
    found = judged(Classification(), [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [1, 0, 1])
    assert found == {"accuracy": 1 / 3, "loss": pytest.approx(math.log(2))}
    assert list(found) == ["accuracy", "loss"]


def test_class_weights_make_a_weighted_mean() -> None:
    # logits (ln 3, 0): p = (3/4, 1/4). Losses ln 4/3 (weight 1) and ln 4 (weight 3): (0.2877 + 3 x 1.3863) / 4.
    task = Classification(class_weights=[1.0, 3.0])
    outputs = [[math.log(3), 0.0], [math.log(3), 0.0]]
    expected = (math.log(4 / 3) + 3 * math.log(4)) / 4
    assert judged(task, outputs, [0, 1])["loss"] == pytest.approx(expected)
    loss, weight = task.loss(same, Batch(torch.tensor(outputs), torch.tensor([0, 1])))
    assert [loss.item(), weight] == pytest.approx([expected, 4.0])


def test_a_batch_of_classes_without_weight_has_no_loss() -> None:
    task = Classification(class_weights=[0.0, 1.0])
    loss, weight = task.loss(same, Batch(torch.zeros(2, 2), torch.tensor([0, 0])))
    assert (loss.item(), weight) == (0.0, 0.0)
    assert judged(task, [[0.0, 0.0]], [0])["loss"] == 0.0


@pytest.mark.parametrize("task", [Classification(class_weights=[1.0, 3.3]), MultiLabel()])
def test_sums_over_outputs_in_half_precision_are_exact(task: Task) -> None:
    outputs = torch.tensor([[0.5, -1.0], [2.0, 1.0], [0.25, 0.5]]).repeat(101, 1)
    targets = torch.tensor([0, 1, 1]) if isinstance(task, Classification) else torch.tensor([[1, 0], [0, 1], [1, 1]])
    targets = targets.repeat(*([101] if targets.ndim == 1 else [101, 1]))
    half, whole = (dict(task.metrics(task.totals(each, targets))) for each in (outputs.bfloat16(), outputs))
    assert half == pytest.approx(whole, rel=1e-6)  # all of these outputs are numbers of half precision too


def test_label_smoothing_by_hand() -> None:
    # p = (3/4, 1/4), target 0 smoothed by 0.2: 0.9 ln 4/3 + 0.1 ln 4.
    task = Classification(label_smoothing=0.2)
    expected = 0.9 * math.log(4 / 3) + 0.1 * math.log(4)
    assert judged(task, [[math.log(3), 0.0]], [0])["loss"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("task", "outputs", "targets"),
    [
        (Classification(), [[0.5, -1.0], [2.0, 1.0]], [0, 1]),
        (Classification(class_weights=[1.0, 3.0], label_smoothing=0.1), [[0.5, -1.0], [2.0, 1.0]], [0, 1]),
        (Regression(), [[0.5, -1.0], [2.0, 1.0]], [[1.0, 1.0], [0.0, 3.0]]),
        (MultiLabel(), [[0.5, -1.0], [2.0, 1.0]], [[1, 0], [0, 0]]),
        (TokenSequence(label_smoothing=0.1), [[[0.5, -1.0], [2.0, 1.0]]], [[1, IGNORED]]),
    ],
)
def test_what_is_trained_is_the_loss_that_is_judged(task: Task, outputs: list[Any], targets: list[Any]) -> None:
    loss, _ = task.loss(same, Batch(torch.tensor(outputs), torch.tensor(targets)))
    assert loss.item() == pytest.approx(judged(task, outputs, targets)["loss"])


def test_f1_is_the_mean_over_classes() -> None:
    # Chosen 0, 0, 1; held 0, 1, 1. Class 0: hits 1 of chosen 2, held 1: 2/3. Class 1: hits 1 of 1, held 2: 2/3.
    # Class 2 is never chosen nor held: 0. The mean is 4/9.
    outputs = [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    assert judged(Classification(measures=["f1"]), outputs, [0, 1, 1]) == {"f1": pytest.approx(4 / 9)}


def test_regression_by_hand() -> None:
    # Errors 1, 0, -1 from targets 0, 1, 5 (mean 2): squares 2; spread 4 + 1 + 9 = 14.
    found = judged(Regression(), [[1.0], [1.0], [4.0]], [0.0, 1.0, 5.0])
    assert found == {"r2": pytest.approx(1 - 2 / 14), "mae": pytest.approx(2 / 3), "loss": pytest.approx(2 / 3)}


def test_every_regression_metric_and_loss_by_hand() -> None:
    # Errors 3, 0, -1 (delta 2). Huber: 2 (3 - 1) = 4, 0, 1/2; squares 9, 0, 1; absolute 3, 0, 1.
    outputs, targets = [[3.0], [1.0], [4.0]], [0.0, 1.0, 5.0]
    task = Regression(measures=["rmse", "mae", "huber", "loss"], error="huber", delta=2.0)
    found = judged(task, outputs, targets)
    assert found == pytest.approx({"rmse": math.sqrt(10 / 3), "mae": 4 / 3, "huber": 4.5 / 3, "loss": 4.5 / 3})
    trained, _ = task.loss(same, Batch(torch.tensor(outputs), torch.tensor(targets)))
    assert trained.item() == pytest.approx(4.5 / 3)
    assert judged(Regression(error="absolute"), outputs, targets)["loss"] == pytest.approx(4 / 3)


def test_area_under_the_curve_by_hand() -> None:
    # Scores of class 1: 0, 1, 1, 2 with labels 0, 0, 1, 1. Pairs (positive, negative): (1, 0) won, (1, 1) tied,
    # (2, 0) and (2, 1) won: 3.5 of 4. A class that all or no samples have does not count.
    outputs = [[0.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 2.0]]
    assert judged(Classification(measures=["auc"]), outputs, [0, 0, 1, 1]) == {"auc": pytest.approx(3.5 / 4)}
    # Label 0: the positive is second of three: 1 of 2 pairs. Label 1: positives above the negative: 1.
    found = judged(MultiLabel(measures=["auc"]), [[3.0, 0.0], [2.0, 1.0], [1.0, 2.0]], [[0, 0], [1, 1], [0, 1]])
    assert found == {"auc": pytest.approx((0.5 + 1.0) / 2)}
    assert math.isnan(judged(Classification(measures=["auc"]), outputs[:2], [0, 0])["auc"])


class WithinOne(Metric):
    share = True
    limits = (0.0, 1.0)

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, int]:
        return {"near": int(((outputs[:, 0] - targets).abs() <= 1).sum()), "count": len(targets)}

    def value(self, sums: Totals) -> float:
        return float(sums["near"] / sums["count"])


class OwnTask(Task):
    """A task that defines nothing but its loss."""

    def loss(self, model: Model, batch: Batch) -> tuple[torch.Tensor, float]:
        return (model(batch.x)[:, 0] - batch.y).abs().mean(), len(batch.y)


def test_an_own_metric_is_a_class_by_name_or_object_and_loss_alone_makes_a_task() -> None:
    for task in (
        Regression(measures=["loss", f"{__name__}:WithinOne"]),
        Regression(measures=["loss", WithinOne]),  # type: ignore[list-item]
        OwnTask(measures=["loss", f"{__name__}:WithinOne"]),
    ):
        found = judged(task, [[3.0], [1.0], [4.0]], [0.0, 1.0, 5.0])
        assert found["within_one"] == pytest.approx(2 / 3)
        assert task.directions == {"loss": "min", "within_one": "max"}
    assert found["loss"] == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    ("measures", "words"),
    [
        (["accurcy"], "unknown metric 'accurcy': did you mean 'accuracy'?"),
        (["r2"], "task.measures: 'r2' is no metric of the task 'classification', which has accuracy, auc, f1, loss"),
        (["loss", "loss"], "task.measures: two metrics are named 'loss'"),
        (["math:floor"], "task.measures: 'math:floor' is not a subclass of offbeat.metrics.Metric"),
    ],
)
def test_a_metric_that_cannot_be_used_is_one_sentence(measures: list[str], words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Classification(measures=measures)
    assert str(refused.value) == words


def test_multi_label_by_hand() -> None:
    # Label 0: chosen 1, 1, held 1, 0: hits 1, F1 = 2/3. Label 1: chosen 0, 1, held 1, 1: hits 1, F1 = 2/3.
    # All decisions: hits 2, chosen 3, held 3: 4/6. Loss of a logit of 0 is ln 2 whatever the label; here logits +-2.
    found = judged(MultiLabel(), [[2.0, -2.0], [2.0, 2.0]], [[1.0, 1.0], [0.0, 1.0]])
    right, wrong = math.log1p(math.exp(-2)), math.log1p(math.exp(2))
    assert found["micro_f1"] == pytest.approx(2 / 3)
    assert found["macro_f1"] == pytest.approx(2 / 3)
    assert found["loss"] == pytest.approx((2 * right + 2 * wrong) / 4)


@pytest.mark.parametrize(
    ("threshold", "micro", "macro"),
    [
        # sigmoid(2) = 0.88, sigmoid(-2) = 0.12: the first label is chosen twice, both times rightly, the second never.
        (0.5, 4 / 5, 1 / 2),  # 2 x 2 / (2 + 3); (1 + 0) / 2
        (0.95, 0.0, 0.0),  # nothing is chosen
        (0.1, 6 / 7, 5 / 6),  # everything is: 2 x 3 / (4 + 3); (1 + 2 / (2 + 1)) / 2
    ],
)
def test_a_label_counts_as_given_from_the_threshold_on(threshold: float, micro: float, macro: float) -> None:
    found = judged(MultiLabel(threshold=threshold), [[2.0, -2.0], [2.0, -2.0]], [[1.0, 0.0], [1.0, 1.0]])
    assert (found["micro_f1"], found["macro_f1"]) == pytest.approx((micro, macro))


def test_tokens_by_hand_and_padding_does_not_count() -> None:
    # Two places count: p = 3/4 for the right token, then 1/4. Loss (ln 4/3 + ln 4) / 2, perplexity its exponential.
    outputs = [[[math.log(3), 0.0], [math.log(3), 0.0], [9.0, -9.0]]]
    found = judged(TokenSequence(), outputs, [[0, 1, IGNORED]])
    loss = (math.log(4 / 3) + math.log(4)) / 2
    assert found == {
        "token_accuracy": 0.5,
        "perplexity": pytest.approx(math.exp(loss)),
        "loss": pytest.approx(loss),
    }
    trained, tokens = TokenSequence().loss(same, Batch(torch.tensor(outputs), torch.tensor([[0, 1, IGNORED]])))
    assert [trained.item(), tokens] == pytest.approx([loss, 2])


def test_a_batch_of_padding_alone_has_no_loss() -> None:
    loss, tokens = TokenSequence().loss(same, Batch(torch.zeros(1, 2, 3), torch.full((1, 2), IGNORED)))
    assert (loss.item(), tokens) == (0.0, 0)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 11))
def test_metrics_do_not_depend_on_how_the_data_are_cut(seed: int, size: int) -> None:
    random = np.random.default_rng(seed)
    outputs = torch.tensor(random.normal(size=(11, 3)), dtype=torch.float32)
    labels = torch.tensor(random.integers(0, 3, 11))
    tasks: list[tuple[Task, torch.Tensor, torch.Tensor]] = [
        (Classification(measures=["accuracy", "loss", "f1", "auc"], class_weights=[1.0, 2.0, 0.5]), outputs, labels),
        (
            Regression(measures=["r2", "rmse", "huber"]),
            outputs,
            torch.tensor(random.normal(size=(11, 3)), dtype=torch.float32),
        ),
        (MultiLabel(), outputs, torch.tensor(random.integers(0, 2, (11, 3)))),
        (TokenSequence(), outputs.view(11, 1, 3), torch.where(labels > 1, IGNORED, labels).view(11, 1)),
    ]
    for task, given_outputs, targets in tasks:
        sums: dict[str, object] = {}
        for start in range(0, 11, size):
            added(sums, task.totals(given_outputs[start : start + size], targets[start : start + size]))
        whole = task.metrics(task.totals(given_outputs, targets))
        assert dict(task.metrics(sums)) == pytest.approx(dict(whole), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("task", "x", "y", "classes", "words"),
    [
        (Classification(), torch.zeros(2, 3), torch.zeros(2), 3, "needs one integer label"),
        (Classification(), torch.zeros(2, 4), torch.tensor([0, 1]), 3, r"returns \(2, 4\) .* needs \(2, 3\)"),
        (Classification(class_weights=[1.0]), torch.zeros(2, 3), torch.tensor([0, 1]), 3, "has 1 values for 3 classes"),
        (Regression(), torch.zeros(2, 1), torch.tensor([0, 1]), 1, "needs floating-point numbers"),
        (Regression(), torch.zeros(2, 3), torch.zeros(2, 2), 2, r"needs \(2, 2\)"),
        (MultiLabel(), torch.zeros(2, 3), torch.tensor([[0, 1, 2], [0, 0, 1]]), 3, "zeros and ones"),
        (TokenSequence(), torch.zeros(2, 5, 7), torch.zeros(2, 5, dtype=torch.int64), 8, r"needs \(2, 5, 8\)"),
        (TokenSequence(), torch.zeros(2, 7), torch.tensor([0, 1]), 7, "a row of integer tokens"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    task: Task, x: torch.Tensor, y: torch.Tensor, classes: int, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        check_fit(task, nn.Identity(), Batch(x, y), classes)
    assert "\n" not in str(refused.value)


def test_a_task_that_fails_or_forgets_a_metric_is_told_so() -> None:
    with pytest.raises(InvalidInput, match=r"Task fails on .* NotImplementedError"):
        check_fit(Task(), nn.Identity(), Batch(torch.zeros(2, 1), torch.zeros(2)), 1)

    class Forgetful(Regression):
        def metrics(self, totals: object) -> dict[str, float]:
            return {"r2": 0.0, "loss": 0.0}

    with pytest.raises(InvalidInput, match="lists the metric 'mae' in `directions` but does not compute it"):
        check_fit(Forgetful(), nn.Identity(), Batch(torch.zeros(2, 1), torch.zeros(2)), 1)


def test_smoothed_labels_of_tokens_by_hand() -> None:
    # p = (3/4, 1/4), smoothing 1/2: half of the right token's loss, and a quarter of that of each of the two tokens.
    found = judged(TokenSequence(label_smoothing=0.5), [[[math.log(3), 0.0]]], [[0]])
    assert found["loss"] == pytest.approx(0.5 * math.log(4 / 3) + 0.25 * (math.log(4 / 3) + math.log(4)))


def test_in_which_direction_every_metric_is_better() -> None:
    assert Classification(measures=["accuracy", "loss", "f1"]).directions == {
        "accuracy": "max",
        "loss": "min",
        "f1": "max",
    }
    assert Regression().directions == {"r2": "max", "mae": "min", "loss": "min"}
    assert MultiLabel().directions == {"micro_f1": "max", "macro_f1": "max", "loss": "min"}
    assert TokenSequence().directions == {"token_accuracy": "max", "perplexity": "min", "loss": "min"}


def test_losses_of_single_samples_by_hand() -> None:
    # Two logits, 0 and ln 3: probabilities 1/4 and 3/4.
    logits, labels = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)]]), torch.tensor([1, 0])
    by_hand = [math.log(4 / 3), math.log(4)]
    assert Classification().sample_losses(logits, labels).tolist() == pytest.approx(by_hand)
    assert Classification(class_weights=[5.0, 1.0]).sample_losses(logits, labels).tolist() == pytest.approx(by_hand)
    assert Task.sample_losses(Classification(), logits, labels).tolist() == pytest.approx(by_hand)
    # Errors 1 and 3, squared.
    errors = Regression().sample_losses(torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 5.0]))
    assert errors.tolist() == pytest.approx([1.0, 9.0])
    # Two tokens of ln 2 and padding, which does not count.
    tokens = TokenSequence().sample_losses(torch.zeros(1, 3, 2), torch.tensor([[0, 1, IGNORED]]))
    assert tokens.tolist() == pytest.approx([math.log(2)])
