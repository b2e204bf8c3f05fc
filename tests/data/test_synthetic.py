"""Synthetic(alpha, beta): each device generates its own data from its own model, reproducibly."""

import numpy as np
import pytest

from offbeat.core.errors import InvalidInput
from offbeat.core.streams import stream
from offbeat.data import Dataset, Partition
from offbeat.data.synthetic import Synthetic


def spread_of_inputs(dataset: Dataset) -> float:
    assert dataset.devices is not None
    return float(np.std([dataset.train_x[own].mean() for own in dataset.devices]))


def test_each_device_has_its_samples_and_a_share_is_held_out() -> None:
    dataset = Synthetic(devices=7, samples_per_device=20, test_fraction=0.25).load(seed=0)
    assert dataset.train_x.shape == (7 * 15, 60)
    assert dataset.test_x.shape == (7 * 5, 60)
    assert dataset.classes == 10
    assert dataset.devices is not None
    partition = Partition.of(dataset.devices)
    assert partition.sizes.tolist() == [15] * 7
    assert sorted(partition.indices) == list(range(7 * 15))


def test_the_labels_of_a_device_follow_its_published_model() -> None:
    """Device 2, drawn again by hand in the order u, B, W, b, v, x of the module's docstring."""
    dataset = Synthetic(devices=3, samples_per_device=10, features=4, classes=3, alpha=4.0, beta=9.0).load(seed=5)
    generator = stream(5, "synthetic", 2)
    u, B = generator.normal(0, 2), generator.normal(0, 3)
    W, b = generator.normal(u, 1, (3, 4)), generator.normal(u, 1, 3)
    v = generator.normal(B, 1, 4)
    x = v + generator.normal(0, 1, (10, 4)) * np.sqrt([1, 2**-1.2, 3**-1.2, 4**-1.2])
    np.testing.assert_allclose(dataset.train_x[16:24], x[:8], rtol=1e-5)
    np.testing.assert_allclose(dataset.test_x[4:6], x[8:], rtol=1e-5)
    assert dataset.train_y[16:24].tolist() == [int(np.argmax(W @ row + b)) for row in x[:8]]


def test_the_seed_decides_everything() -> None:
    settings = Synthetic(devices=3, samples_per_device=10)
    np.testing.assert_array_equal(settings.load(seed=1).train_x, settings.load(seed=1).train_x)
    assert not np.array_equal(settings.load(seed=1).train_x, settings.load(seed=2).train_x)


def test_a_device_keeps_its_data_when_others_join() -> None:
    few, many = (Synthetic(devices=devices, samples_per_device=10).load(seed=0) for devices in (2, 5))
    np.testing.assert_array_equal(few.train_x, many.train_x[:16])
    np.testing.assert_array_equal(few.train_y, many.train_y[:16])


def test_beta_moves_the_devices_inputs_apart() -> None:
    near, far = (Synthetic(devices=40, samples_per_device=10, beta=beta).load(seed=0) for beta in (0.0, 25.0))
    assert spread_of_inputs(far) > 3 * spread_of_inputs(near)


@pytest.mark.parametrize("samples", [2, 3])
@pytest.mark.parametrize("fraction", [0.01, 0.99])
def test_neither_part_is_ever_empty(samples: int, fraction: float) -> None:
    dataset = Synthetic(devices=2, samples_per_device=samples, test_fraction=fraction).load(seed=0)
    assert len(dataset.train_y) >= 2
    assert len(dataset.test_y) >= 2


@pytest.mark.parametrize("bad", [{"alpha": -1.0}, {"beta": float("nan")}, {"devices": 0}, {"test_fraction": 1.0}])
def test_values_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        Synthetic.model_validate(bad)
