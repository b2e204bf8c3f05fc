"""Softmax regression on handwritten digits, in plain NumPy."""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

Array = npt.NDArray[Any]
CLASSES = 10


@cache
def digits() -> tuple[Array, Array]:
    """All digits, in an order that is always the same."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return (x[order] / 16.0).astype(np.float32), y[order]


def load_data(partition_id: int, num_partitions: int) -> tuple[Array, Array]:
    """The part of the digits that a client holds; the last 300 are for testing."""
    x, y = digits()
    return x[:-300][partition_id::num_partitions], y[:-300][partition_id::num_partitions]


def test_data() -> tuple[Array, Array]:
    """The digits that no client holds."""
    x, y = digits()
    return x[-300:], y[-300:]


def new_model() -> list[Array]:
    """Weights and biases, all zero."""
    return [np.zeros((64, CLASSES), np.float32), np.zeros(CLASSES, np.float32)]


def probabilities(model: list[Array], x: Array) -> Array:
    """What the model says of each image."""
    scores = x @ model[0] + model[1]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def train(model: list[Array], x: Array, y: Array, epochs: int, lr: float) -> float:
    """Gradient descent in batches; returns the last loss."""
    loss = 0.0
    for _ in range(epochs):
        order = np.random.permutation(len(y))
        for batch in np.array_split(order, max(1, len(y) // 16)):
            wrong = probabilities(model, x[batch])
            loss = float(-np.log(wrong[np.arange(len(batch)), y[batch]] + 1e-9).mean())
            wrong[np.arange(len(batch)), y[batch]] -= 1.0
            model[0] -= lr * (x[batch].T @ wrong) / len(batch)
            model[1] -= lr * wrong.mean(axis=0)
    return loss


def evaluate(model: list[Array], x: Array, y: Array) -> tuple[float, float]:
    """Loss and accuracy."""
    said = probabilities(model, x)
    loss = float(-np.log(said[np.arange(len(y)), y] + 1e-9).mean())
    return loss, float((said.argmax(axis=1) == y).mean())
