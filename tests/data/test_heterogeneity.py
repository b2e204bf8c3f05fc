"""Counts and measures of who holds what, against numbers worked out by hand."""

from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from offbeat.data import Dataset, Partition
from offbeat.data.heterogeneity import NUMBERS, ROWS, SEVERAL, TOKENS, LabelCounts, label_counts
from offbeat.data.samples import LazyDevices, Ragged, Samples


def dataset_of(y: Samples, classes: int = 0) -> Dataset:
    x = np.zeros((len(y), 2), dtype=np.float32)
    return Dataset(train_x=x, train_y=y, test_x=x, test_y=y, classes=classes)


def partition_of(*devices: list[int]) -> Partition:
    return Partition.of([np.array(own) for own in devices])


def test_distances_and_effective_classes_of_three_devices_by_hand() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    counted = label_counts(dataset_of(labels), partition_of([0, 1, 2, 3], [4, 5], [6, 7]))
    assert counted.counts.tolist() == [[3, 1, 0], [0, 2, 0], [0, 0, 2]]
    # All devices together: shares 3/8, 3/8, 2/8.
    # Device 0: 3/4, 1/4, 0. Half of |3/4 - 3/8| + |1/4 - 3/8| + |0 - 2/8| = (3 + 1 + 2) / 16 = 3/8.
    # Device 1: 0, 1, 0. Half of 3/8 + 5/8 + 2/8 = 5/8. Device 2: 0, 0, 1. Half of 3/8 + 3/8 + 6/8 = 3/4.
    assert counted.distances.tolist() == [3 / 8, 5 / 8, 3 / 4]
    # Device 0: exp(-(3/4 ln 3/4 + 1/4 ln 1/4)) = 1.7547...; the others have one class each.
    first = exp(-(0.75 * log(0.75) + 0.25 * log(0.25)))
    assert first == pytest.approx(1.75476535)
    np.testing.assert_allclose(counted.effective_classes, [first, 1, 1])
    assert counted.summary() == {
        "devices": 3,
        "samples": 8,
        "smallest device": 2,
        "median device": 2.0,
        "largest device": 4,
        "mean total-variation distance": pytest.approx((3 + 5 + 6) / 24),
        "mean effective number of classes": pytest.approx((first + 2) / 3),
    }


@given(arrays(np.int64, (4, 3), elements=st.integers(0, 50)))
def test_measures_stay_in_their_ranges_and_do_not_depend_on_the_order_of_labels(counts: np.ndarray) -> None:
    counts[:, 0] += 1
    one = LabelCounts(counts=counts, sizes=counts.sum(axis=1), names=("a", "b", "c"))
    other = LabelCounts(counts=counts[:, ::-1], sizes=counts.sum(axis=1), names=("c", "b", "a"))
    assert (one.distances >= 0).all()
    assert (one.distances < 1).all()
    assert (one.effective_classes >= 1 - 1e-9).all()
    assert (one.effective_classes <= np.count_nonzero(counts, axis=1) + 1e-9).all()
    np.testing.assert_allclose(one.distances, other.distances)
    np.testing.assert_allclose(one.effective_classes, other.effective_classes)


def test_numbers_are_counted_in_tenths_of_all_targets() -> None:
    counted = label_counts(dataset_of(np.arange(20, dtype=np.float32)), partition_of(list(range(10)), [10, 11, 18, 19]))
    # Held are 0 to 9 and 10, 11, 18, 19: 14 targets, whose tenths are between 1.3, 2.6, ..., 15.9.
    assert counted.remark == NUMBERS
    assert counted.counts.shape == (2, 10)
    assert counted.counts.sum(axis=1).tolist() == [10, 4]
    assert counted.counts[1].tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1, 2]


def test_a_number_at_the_border_of_two_tenths_is_in_the_upper_one() -> None:
    # Of 0 to 10 the borders are 1, 2, ..., 9: every number begins a tenth, and the last one has 9 and 10.
    counted = label_counts(dataset_of(np.arange(11, dtype=np.float32)), partition_of(list(range(11))))
    assert counted.counts.tolist() == [[1] * 9 + [2]]


def test_rows_of_numbers_are_counted_by_their_mean() -> None:
    targets = np.array([[0, 0], [0, 4], [9, 9]], dtype=np.float32)
    counted = label_counts(dataset_of(targets), partition_of([0], [1], [2]))
    assert counted.remark == ROWS
    assert counted.counts.argmax(axis=1).tolist() == sorted(counted.counts.argmax(axis=1))
    assert counted.counts.sum() == 3


def test_several_labels_of_a_sample_count_each() -> None:
    counted = label_counts(dataset_of(np.array([[1, 0, 1], [0, 0, 1]], dtype=np.float32)), partition_of([0, 1]))
    assert (counted.remark, counted.counts.tolist()) == (SEVERAL, [[1, 0, 2]])


def test_sequences_are_counted_by_token_without_padding() -> None:
    rows = np.array([[1, 2, -100], [2, 2, 2]], dtype=np.int64)
    counted = label_counts(dataset_of(rows, classes=3), partition_of([0], [1]))
    assert (counted.remark, counted.counts.tolist()) == (TOKENS, [[0, 1, 1], [0, 0, 3]])
    assert counted.sizes.tolist() == [1, 1]
    ragged = label_counts(dataset_of(Ragged.of([[1, 2], [2]]), classes=3), partition_of([0], [1]))
    assert (ragged.remark, ragged.counts.tolist()) == (TOKENS, [[0, 1, 1], [0, 0, 1]])


def test_devices_that_are_loaded_when_needed_are_counted_too() -> None:
    lazy = LazyDevices(np.array([2, 1]), lambda device: (np.zeros((2, 2)), np.array([[0, 1], [1]][device])))
    x, y = np.zeros((1, 2), dtype=np.float32), np.array([2])
    dataset = Dataset(train_x=lazy, test_x=x, test_y=y)
    assert dataset.devices is not None
    assert label_counts(dataset, Partition.of(dataset.devices)).counts.tolist() == [[1, 1, 0], [0, 1, 0]]
