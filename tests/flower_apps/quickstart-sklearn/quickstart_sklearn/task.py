"""Logistic regression of scikit-learn on handwritten digits."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression


def load_data(partition_id, num_partitions):
    """A client's digits, of which the last fifth are for testing."""
    x, y = load_digits(return_X_y=True)
    x, y = x[partition_id::num_partitions] / 16.0, y[partition_id::num_partitions]
    cut = int(0.8 * len(x))
    return x[:cut], x[cut:], y[:cut], y[cut:]


def get_model(penalty, local_epochs):
    """A model that goes on from where it was."""
    return LogisticRegression(l1_ratio={"l1": 1, "l2": 0}[penalty], max_iter=local_epochs, warm_start=True)


def get_model_params(model):
    """The coefficients and the intercept."""
    return [model.coef_, model.intercept_]


def set_model_params(model, params):
    """Give the model these parameters."""
    model.classes_ = np.arange(10)
    model.coef_, model.intercept_ = params
    return model


def set_initial_params(model):
    """All zero: before the first fit a model has none."""
    return set_model_params(model, [np.zeros((10, 64)), np.zeros(10)])
