"""The flat vector: layouts, masks, freezing and weighted means."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from offbeat.core.parameters import Layout, Vector, dot, frozen, weighted_mean

FINITE = st.floats(-1e3, 1e3, width=32)


def test_entries_lie_one_behind_the_other_in_forward_order() -> None:
    layout = Layout.of([("a.weight", (2, 3), True), ("a.bias", (2,), True), ("b.weight", (1, 2), True)])
    assert [(entry.name, entry.offset, entry.size, entry.layer) for entry in layout.entries] == [
        ("a.weight", 0, 6, 0),
        ("a.bias", 6, 2, 0),
        ("b.weight", 8, 2, 1),
    ]
    assert (layout.size, layout.trained_size, layout.layers, layout.bytes) == (10, 10, 2, 40)


def test_running_statistics_stand_behind_all_trained_entries_and_keep_their_layer() -> None:
    layout = Layout.of(
        [
            ("conv.weight", (3,), True),
            ("norm.weight", (2,), True),
            ("norm.running_mean", (2,), False),
            ("head.weight", (4,), True),
        ]
    )
    assert [entry.name for entry in layout.entries] == [
        "conv.weight",
        "norm.weight",
        "head.weight",
        "norm.running_mean",
    ]
    assert [entry.layer for entry in layout.entries] == [0, 1, 2, 1]
    assert (layout.size, layout.trained_size, layout.layers) == (11, 9, 3)


def test_the_head_is_the_last_module_whatever_else_belongs_to_its_layer() -> None:
    shapes = [
        ("a.weight", (3, 2), True),
        ("norm.weight", (3,), True),
        ("b.weight", (2, 3), True),
        ("b.bias", (2,), True),
    ]
    for groups in ((), (("a",), ("norm", "b")), (("a",), ("norm",), ("b.weight",), ("b.bias",))):
        assert [entry.name for entry in Layout.of(shapes, groups).head] == ["b.weight", "b.bias"]
    behind = Layout.of([shapes[2], shapes[3], shapes[0], ("a_norm.weight", (3,), True)], (("b",), ("a", "a_norm")))
    assert [entry.name for entry in behind.head] == ["a.weight"], "a vector is no head where there is a matrix"
    assert Layout(()).head == ()


def test_scalars_and_empty_layouts_have_a_size() -> None:
    assert Layout.of([("a.scale", (), True)]).size == 1
    assert (Layout(()).size, Layout(()).layers, Layout(()).bytes) == (0, 0, 0)


def test_a_mask_of_layers_takes_all_entries_of_those_layers() -> None:
    layout = Layout.of([("a.weight", (2,), True), ("b.weight", (3,), True), ("a.mean", (1,), False)])
    mask = layout.mask([0])
    assert mask.chosen.tolist() == [True, True, False, False, False, True]
    assert (mask.count, mask.bytes) == (3, 12)
    assert layout.mask([]).count == 0
    assert layout.mask(range(layout.layers)).bytes == layout.bytes


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.booleans()), max_size=8))
def test_spans_tile_the_vector_and_layers_tile_the_mask(parts: list[tuple[str, int, bool]]) -> None:
    layout = Layout.of(
        [(f"{module}.{number}", (size,), trained) for number, (module, size, trained) in enumerate(parts)]
    )
    covered = [place for entry in layout.entries for place in range(layout.size)[entry.span]]
    assert covered == list(range(layout.size))
    assert sum(layout.mask([layer]).count for layer in range(layout.layers)) == layout.size
    assert all(
        entry.trained for entry in layout.entries if entry.offset + entry.size <= layout.trained_size and entry.size
    )


def test_a_frozen_vector_refuses_to_be_written() -> None:
    vector = frozen(np.zeros(2, dtype=np.float32))
    with pytest.raises(ValueError, match="read-only"):
        vector[0] = 1.0


def test_freezing_an_array_that_others_own_copies_it() -> None:
    owner = np.zeros(4, dtype=np.float32)
    vector = frozen(owner[:2])
    owner[0] = 7.0
    assert vector.tolist() == [0.0, 0.0]


def test_freezing_twice_costs_nothing() -> None:
    vector = frozen([1.0, 2.0])
    assert vector.dtype == np.float32
    assert frozen(vector) is vector


def test_freezing_a_read_only_view_protects_against_its_owner() -> None:
    owner = np.zeros(2, dtype=np.float32)
    view = owner.view()
    view.flags.writeable = False
    vector = frozen(view)
    owner[0] = 7.0
    assert vector.tolist() == [0.0, 0.0]


def test_the_weighted_mean_by_hand() -> None:
    # (1 * [0, 2] + 3 * [4, 6]) / 4 = [3, 5]
    mean = weighted_mean([np.array([0, 2], dtype=np.float32), np.array([4, 6], dtype=np.float32)], [1.0, 3.0])
    assert mean.dtype == np.float32
    assert mean.tolist() == [3.0, 5.0]


@given(
    vectors=st.lists(hnp.arrays(np.float32, 3, elements=FINITE), min_size=1, max_size=5),
    weights=st.lists(st.integers(1, 1000), min_size=5, max_size=5),
    scale=st.integers(1, 1000),
)
def test_the_weighted_mean_lies_between_its_vectors_and_only_ratios_count(
    vectors: list[Vector], weights: list[int], scale: int
) -> None:
    used = [float(weight) for weight in weights[: len(vectors)]]
    mean = weighted_mean(vectors, used)
    stacked = np.stack(vectors)
    assert (mean >= stacked.min(axis=0) - 1e-2).all()
    assert (mean <= stacked.max(axis=0) + 1e-2).all()
    assert weighted_mean(vectors, [weight * scale for weight in used]) == pytest.approx(mean, abs=1e-2)


def test_the_weighted_mean_of_many_does_not_lose_the_small_ones() -> None:
    # In float32, 2^24 + 1 = 2^24: a float32 sum would never see the thousand ones.
    vectors = [np.array([2.0**24], dtype=np.float32)] + [np.ones(1, dtype=np.float32)] * 1000
    exact = (2.0**24 + 1000) / 1001
    assert weighted_mean(vectors, [1.0] * 1001)[0] == pytest.approx(exact, rel=1e-6)


def test_the_inner_product_does_not_depend_on_the_number_of_threads() -> None:
    limits = pytest.importorskip("threadpoolctl").threadpool_limits
    one, other = np.random.default_rng(0).normal(size=(2, 200_000)).astype(np.float32)
    with limits(1):
        alone = dot(one, other)
    with limits(2):
        assert dot(one, other) == alone
    assert alone == pytest.approx(float(one.astype(np.float64) @ other.astype(np.float64)), rel=1e-12)
