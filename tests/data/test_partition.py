"""However samples are divided: none is given out twice, every device gets one, and the seed alone decides which."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.core.errors import InvalidInput
from offbeat.data import PARTITIONS, Partition, PartitionSettings
from offbeat.data.partition import Dirichlet, DirichletEqual, Iid, LabelSets, Same, Shards, Sizes, _fill_empty

Case = tuple[PartitionSettings, np.ndarray[Any, Any], int, int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """(settings, labels, devices, seed) with enough samples; for `Sizes`, sizes that use all of them."""
    devices = draw(st.integers(1, 12))
    way = draw(
        st.sampled_from(["iid", "dirichlet", "dirichlet-equal", "shards", "sizes"])
    )  # those that give out every sample once
    shards = draw(st.integers(1, 3)) if way == "shards" else 1
    spare = draw(st.integers(0, 60))
    labels = np.array(draw(st.lists(st.integers(0, 5), min_size=devices * shards, max_size=devices * shards + spare)))
    chosen: PartitionSettings
    match way:
        case "iid":
            chosen = Iid()
        case "dirichlet":
            chosen = Dirichlet(alpha=draw(st.sampled_from([1e-300, 1e-3, 0.3, 1.0, 1e6])))
        case "dirichlet-equal":
            chosen = DirichletEqual(alpha=draw(st.sampled_from([1e-3, 0.3, 1e6])))
        case "shards":
            chosen = Shards(labels_per_device=shards)
        case _:
            cuts = np.sort(draw(st.permutations(range(1, len(labels))))[: devices - 1])
            sizes = np.diff([0, *cuts, len(labels)]).tolist()
            chosen = Sizes(sizes=sizes, disjoint_labels=draw(st.booleans()))
    return chosen, labels, devices, draw(st.integers(0, 2**32))


@given(cases())
@settings(max_examples=200, deadline=None)
def test_every_sample_is_used_exactly_once_and_no_device_is_empty(case: Case) -> None:
    way, labels, devices, seed = case
    partition = way.split(labels, devices, seed)
    assert partition.devices == devices
    assert sorted(partition.indices) == list(range(len(labels)))
    assert partition.sizes.min() >= 1
    assert partition.sizes.sum() == len(labels)
    assert partition.indices.dtype == partition.offsets.dtype == np.int64


@given(cases())
@settings(max_examples=50, deadline=None)
def test_the_seed_alone_decides(case: Case) -> None:
    way, labels, devices, seed = case
    before = labels.copy()
    first, second = way.split(labels, devices, seed), way.split(labels, devices, seed)
    np.testing.assert_array_equal(first.indices, second.indices)
    np.testing.assert_array_equal(first.offsets, second.offsets)
    np.testing.assert_array_equal(labels, before)


@pytest.mark.parametrize("way", [Iid(), Dirichlet(), Shards(), Sizes(sizes=[50, 50])])
def test_another_seed_divides_otherwise(way: PartitionSettings) -> None:
    labels = np.arange(100) % 10
    assert not np.array_equal(way.split(labels, 2, 0).indices, way.split(labels, 2, 1).indices)


def test_a_device_sees_its_samples_as_a_view() -> None:
    partition = Partition.of([np.array([3, 1]), np.array([0]), np.array([2, 4, 5])])
    assert partition.indices.tolist() == [3, 1, 0, 2, 4, 5]
    assert partition.offsets.tolist() == [0, 2, 3, 6]
    assert [partition.samples(device).tolist() for device in range(3)] == [[3, 1], [0], [2, 4, 5]]
    assert partition.samples(2).base is partition.indices


def test_iid_sizes_differ_by_one_at_most() -> None:
    # 11 samples, 4 devices: cuts at 0, 11/4, 22/4, 33/4, 11 rounded down = 0, 2, 5, 8, 11
    assert Iid().split(np.zeros(11, dtype=np.int64), 4, 0).offsets.tolist() == [0, 2, 5, 8, 11]


def test_a_large_alpha_gives_every_device_every_class_evenly() -> None:
    labels = np.repeat(np.arange(4), 100)
    partition = Dirichlet(alpha=1e8).split(labels, 5, 0)
    for device in range(5):
        np.testing.assert_allclose(np.bincount(labels[partition.samples(device)], minlength=4), 20, atol=1)


def test_a_small_alpha_gives_each_class_to_one_device() -> None:
    labels = np.repeat(np.arange(3), 100)
    partition = Dirichlet(alpha=1e-6).split(labels, 2, 0)
    owners = [np.flatnonzero([label in labels[partition.samples(device)] for device in range(2)]) for label in range(3)]
    # A class is whole on one device, but for the one sample that fills a device which would else be empty.
    assert sum(len(own) for own in owners) <= 4


def test_an_empty_device_is_filled_from_the_largest() -> None:
    # Sizes 5, 0, 3, 0, 0. Taken one by one from the largest: 5 -> 4 from device 0, 4 -> 3 from device 0,
    # then devices 0 and 2 have 3 each and one of them gives: sizes 3 or 2 and 2 or 3.
    filled = _fill_empty(np.array([0, 0, 0, 0, 0, 2, 2, 2]), 5)
    sizes = np.bincount(filled, minlength=5)
    assert sizes[[1, 3, 4]].tolist() == [1, 1, 1]
    assert sorted(sizes[[0, 2]]) == [2, 3]


def test_as_many_devices_as_samples_get_one_each() -> None:
    assert Dirichlet(alpha=0.01).split(np.zeros(30, dtype=np.int64), 30, 0).sizes.tolist() == [1] * 30


def test_a_device_with_k_shards_sees_k_labels_at_most_where_shards_do_not_cross_classes() -> None:
    labels = np.tile(np.arange(10), 40)  # 400 samples; 20 devices x 2 shards of 10, four shards to each class
    partition = Shards(labels_per_device=2).split(labels, 20, 0)
    assert partition.sizes.tolist() == [20] * 20
    assert max(len(np.unique(labels[partition.samples(device)])) for device in range(20)) == 2


def test_more_shards_than_samples_are_refused() -> None:
    with pytest.raises(
        InvalidInput, match=r"devices = 4 with partition.labels_per_device = 3 needs 12 shards.* only 10"
    ):
        Shards(labels_per_device=3).split(np.zeros(10, dtype=np.int64), 4, 0)


def test_sizes_are_given_as_asked_and_the_rest_is_left() -> None:
    partition = Sizes(sizes=[5, 1, 3]).split(np.zeros(20, dtype=np.int64), 3, 0)
    assert partition.sizes.tolist() == [5, 1, 3]
    assert len(np.unique(partition.indices)) == 9


def test_disjoint_labels_give_contiguous_blocks_of_the_sorted_labels() -> None:
    labels = np.array([2, 0, 1, 0, 2, 1, 0, 2])  # sorted: 0 0 0 1 1 2 2 2
    partition = Sizes(sizes=[3, 2, 3], disjoint_labels=True).split(labels, 3, 0)
    assert [labels[partition.samples(device)].tolist() for device in range(3)] == [[0, 0, 0], [1, 1], [2, 2, 2]]


def test_disjoint_labels_leave_over_something_of_every_class() -> None:
    labels = np.repeat(np.arange(10), 100)
    partition = Sizes(sizes=[350, 50, 50, 50], disjoint_labels=True).split(labels, 4, 0)
    assert set(labels[partition.indices]) == set(range(10))


@pytest.mark.parametrize(
    ("sizes", "devices", "message"),
    [
        ([5, 6], 2, "sizes add up to 11, but there are only 10 training samples"),
        ([5, 5], 3, "partition.sizes lists 2 devices, but data.devices = 3"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: list[int], devices: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Sizes(sizes=sizes).split(np.zeros(10, dtype=np.int64), devices, 0)


def test_label_sets_give_each_device_so_many_samples_of_its_labels_and_none_twice() -> None:
    labels = np.repeat(np.arange(4), 10)
    partition = LabelSets(labels=[[0, 1], [1, 2], [3]], sizes=[12, 10, 4]).split(labels, 3, 0)
    assert partition.sizes.tolist() == [12, 10, 4]
    held = [set(labels[partition.samples(device)].tolist()) for device in range(3)]
    assert held == [{0, 1}, {1, 2}, {3}]
    assert len(np.unique(partition.indices)) == 26
    other = LabelSets(labels=[[0, 1], [1, 2], [3]], sizes=[12, 10, 4]).split(labels, 3, 1)
    assert not np.array_equal(partition.indices, other.indices)


@pytest.mark.parametrize(
    ("labels", "sizes", "message"),
    [
        ([[0], [1]], [3, 3, 3], r"sizes lists 3 devices and partition.labels 2, but data.devices = 2"),
        ([[0], [1, 7]], [3, 6], r"sizes\[1\] = 6: only 5 training samples with its labels \[1, 7\] are left"),
        ([[0], [0]], [3, 3], r"sizes\[1\] = 3: only 2 training samples with its labels \[0\] are left"),
    ],
)
def test_label_sets_that_do_not_fit_are_refused(labels: list[list[int]], sizes: list[int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        LabelSets(labels=labels, sizes=sizes).split(np.repeat(np.arange(2), 5), 2, 0)


def test_the_same_samples_for_all_are_the_same_in_the_same_order() -> None:
    partition = Same(samples=6).split(np.zeros(10, dtype=np.int64), 3, 0)
    assert partition.sizes.tolist() == [6, 6, 6]
    assert len(np.unique(partition.samples(0))) == 6
    for device in (1, 2):
        np.testing.assert_array_equal(partition.samples(device), partition.samples(0))
    assert Same().split(np.zeros(10, dtype=np.int64), 30, 0).sizes.tolist() == [10] * 30
    with pytest.raises(InvalidInput, match="samples = 11: there are only 10 training samples"):
        Same(samples=11).split(np.zeros(10, dtype=np.int64), 3, 0)


@pytest.mark.parametrize("way", [Iid(), Dirichlet(), Shards(), Sizes(sizes=[1] * 11)])
def test_fewer_samples_than_devices_are_refused_with_both_numbers(way: PartitionSettings) -> None:
    with pytest.raises(InvalidInput, match=r"devices = 11: .* only 10 training samples"):
        way.split(np.zeros(10, dtype=np.int64), 11, 0)


@pytest.mark.parametrize("way", [Iid(), Dirichlet(), Shards(), Same()])
def test_no_device_at_all_is_refused(way: PartitionSettings) -> None:
    with pytest.raises(InvalidInput, match="devices = 0"):
        way.split(np.zeros(10, dtype=np.int64), 0, 0)


def test_a_million_devices_are_arrays() -> None:
    partition = Iid().split(np.zeros(2_000_000, dtype=np.int64), 1_000_000, 0)
    assert partition.devices == 1_000_000
    assert partition.samples(999_999).size == 2


def test_ten_thousand_devices_are_all_given_something_by_a_skewed_split() -> None:
    partition = Dirichlet(alpha=0.05).split(np.arange(20_000) % 10, 10_000, 0)
    assert partition.sizes.min() == 1
    assert partition.sizes.sum() == 20_000


def test_dirichlet_equal_gives_all_devices_as_many_samples_and_few_classes_if_alpha_is_small() -> None:
    labels = np.arange(1000) % 10
    skewed, even = (DirichletEqual(alpha=alpha).split(labels, 20, 0) for alpha in (0.05, 1000.0))
    assert set(skewed.sizes) == set(even.sizes) == {50}
    classes = [np.mean([len(set(labels[p.samples(d)])) for d in range(20)]) for p in (skewed, even)]
    assert classes[0] < 4.0 and classes[1] > 9.0


def test_the_options_are_those_of_the_table() -> None:
    assert {name: list(way.model_fields)[1:] for name, way in PARTITIONS.items()} == {
        "iid": [],
        "dirichlet": ["alpha"],
        "dirichlet-equal": ["alpha"],
        "shards": ["labels_per_device"],
        "sizes": ["sizes", "disjoint_labels"],
        "labels": ["labels", "sizes"],
        "same": ["samples"],
        "column": ["column"],
    }
    assert (Dirichlet().alpha, Shards().labels_per_device) == (0.3, 2)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dirichlet", {"alpha": 0.0}),
        ("dirichlet", {"alpha": float("inf")}),
        ("shards", {"labels_per_device": 0}),
        ("sizes", {"sizes": []}),
        ("sizes", {"sizes": [3, 0]}),
        ("labels", {"labels": [[]], "sizes": [1]}),
        ("labels", {"labels": [[-1]], "sizes": [1]}),
        ("same", {"samples": 0}),
        ("iid", {"alpha": 0.3}),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        PARTITIONS[name].model_validate(options)
