"""The picture of a partition shows every device while there is room, and says so when it cannot."""

import numpy as np
import pytest

from offbeat.results.partition_figure import columns_shown, partition_figure


def test_few_devices_stand_in_their_order_with_their_counts() -> None:
    counts = np.array([[3, 0], [1, 2]])
    figure = partition_figure(counts, counts.sum(axis=1), ["cat", "dog"], "two devices")
    upper, lower = figure.axes[0], figure.axes[1]
    assert [text.get_text() for text in upper.texts] == ["3", "1", "2"]
    assert [label.get_text() for label in upper.get_yticklabels()] == ["cat", "dog"]
    assert lower.get_xlabel() == "device"
    assert [patch.get_height() for patch in lower.patches] == [3, 3]  # type: ignore[attr-defined]


def test_many_devices_are_sorted_by_their_most_frequent_label() -> None:
    counts = np.eye(10, dtype=np.int64)[np.arange(1000) % 10]
    order, axis = columns_shown(counts)
    assert axis == "1,000 devices, sorted by their most frequent label"
    assert counts[order].argmax(axis=1).tolist() == np.repeat(np.arange(10), 100).tolist()
    assert not partition_figure(counts, counts.sum(axis=1), "0123456789", "").axes[0].texts


def test_more_devices_than_have_room_are_thinned_out_and_the_axis_says_so() -> None:
    order, axis = columns_shown(np.ones((100_000, 2), dtype=np.int64))
    assert len(set(order.tolist())) == 2000
    assert axis.startswith("2,000 of 100,000 devices")


@pytest.mark.parametrize("name", ["\n", "$x$", "a very long name of a class", ""])
def test_any_name_can_be_drawn(name: str) -> None:
    figure = partition_figure(np.array([[1, 2]]), np.array([3]), [name, "b"], "")
    figure.canvas.draw()
