"""Samples of any structure: taken, padded, and turned into numbers."""

import numpy as np
import pytest

from offbeat.data.samples import Ragged, count, numbers, shapes, taken


def test_rows_are_padded_to_the_longest_that_was_taken() -> None:
    rows = Ragged.of([[1, 2, 3, 4], [5], [6, 7]], padding=-1)
    assert rows.take(np.array([2, 1])).padded().tolist() == [[6, 7], [5, -1]]
    assert count(rows) == 3


def test_a_structure_is_taken_part_by_part() -> None:
    samples = (np.arange(4), {"rows": Ragged.of([[1], [2, 3], [], [4]])})
    first, second = taken(samples, np.array([3, 1]))
    assert first.tolist() == [3, 1]
    assert second["rows"].padded().tolist() == [[4, 0], [2, 3]]
    assert shapes(samples) == ((), {"rows": (2,)})


@pytest.mark.parametrize(
    ("given", "kind"), [("float64", "float32"), ("int32", "int64"), ("uint8", "float32"), ("bool", "float32")]
)
def test_tokens_stay_integers_and_the_rest_becomes_float32(given: str, kind: str) -> None:
    assert numbers(np.zeros(2, dtype=given)).dtype == kind
    assert numbers(np.zeros(2, dtype=np.uint8), pixels=True).dtype == np.uint8
    assert numbers(np.zeros(2, dtype=np.uint8), integers="iub").dtype == np.int64
