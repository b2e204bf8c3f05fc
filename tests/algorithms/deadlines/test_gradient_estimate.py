"""Measured constants, by hand and against gradients of known variance."""

import numpy as np
import numpy.typing as npt
import pytest

from offbeat.algorithms.deadlines.adel import estimate


def vector(*values: float) -> npt.NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def test_by_hand() -> None:
    # Device 0, batch 4: gradients (1, 0) and (3, 0), mean (2, 0), spread 1 + 1 = 2: sigma^2 = 4 2 / 1 = 8.
    # Device 1 gave one gradient only, (0, 2): it counts for G^2 = (1 + 9 + 4) / 3.
    gradients = {0: [vector(1, 0), vector(3, 0)], 1: [vector(0, 2)]}
    found = estimate(gradients, {0: 4, 1: 4})
    assert found is not None
    assert found.gradient_variance == pytest.approx(8.0)
    assert found.gradient_bound == pytest.approx(14 / 3)


def test_it_is_unbiased() -> None:
    # A batch of S samples of variance 2 in each of 50 elements: sigma^2 = 100, whatever S.
    random = np.random.default_rng(0)
    sizes = {device: 2 + device % 7 for device in range(400)}
    gradients = {
        device: [random.normal(1.0, np.sqrt(2.0 / size), 50).astype(np.float32) for _ in range(3)]
        for device, size in sizes.items()
    }
    found = estimate(gradients, sizes)
    assert found is not None
    assert found.gradient_variance == pytest.approx(100.0, rel=0.03)


def test_nothing_can_be_said_from_single_or_empty_gradients() -> None:
    assert estimate({0: [np.ones(2, dtype=np.float32)]}, {0: 4}) is None
    assert estimate({0: [np.zeros(2, dtype=np.float32)] * 2}, {0: 4}) is None
    assert estimate({}, {}) is None
