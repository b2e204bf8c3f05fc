"""Snapshots: what goes in comes out, shared arrays once, and nothing foreign is trusted."""

import dataclasses
import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import KnownOutcome, Order, Outcome, Progress, Update
from offbeat.core.parameters import Mask
from offbeat.core.snapshot import decode, encode

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
NESTED = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.sets(st.integers())
    ),
    max_leaves=20,
)


@dataclass
class State:
    """A policy's state as a user would write it."""

    best: float = 0.0
    history: list[Update] = field(default_factory=list)
    weights: dict[int, Any] = field(default_factory=dict)


def through_json(value: Any, *types: type[Any]) -> Any:
    """As a checkpoint does it: the tree becomes text and is read again."""
    tree, arrays = encode(value)
    return decode(json.loads(json.dumps(tree)), arrays, types)


def an_update(outcome: Any, mask: Mask | None = None) -> Update:
    base = np.zeros(2, dtype=np.float32)
    progress = Progress(slices=2, steps=6, seconds=1.5)
    return Update(
        device=3, ticket=7, base=1, base_parameters=base, samples=5, progress=progress, outcome=outcome, mask=mask
    )


@given(NESTED)
def test_nested_plain_data_comes_back_equal_and_of_the_same_kinds(value: Any) -> None:
    again = through_json(value)
    assert again == value
    assert type(again) is type(value)


def test_floats_that_are_not_finite_come_back() -> None:
    inf, minus, nan = through_json([float("inf"), float("-inf"), float("nan")])
    assert (inf, minus) == (float("inf"), float("-inf"))
    assert nan != nan


def test_numpy_scalars_become_plain_numbers_and_deques_lists() -> None:
    again = through_json({"a": np.int64(3), "b": np.float32(0.5), "c": np.bool_(True), "d": deque([1, 2])})
    assert again == {"a": 3, "b": 0.5, "c": True, "d": [1, 2]}
    assert [type(each) for each in again.values()] == [int, float, bool, list]


def test_messages_and_the_readers_own_dataclasses_come_back() -> None:
    order = Order(slices=3, unit="layer", batch_size=None, rule="x:y", arguments={"slot": 2})
    assert through_json(order) == order
    again = through_json(State(best=0.5, weights={4: (1, 2)}), State)
    assert again == State(best=0.5, weights={4: (1, 2)})


def test_an_array_that_occurs_twice_is_stored_once_and_is_one_array_again() -> None:
    shared, other = np.arange(3, dtype=np.float32), np.arange(3, dtype=np.float32)
    tree, arrays = encode({"a": shared, "b": [shared], "c": other})
    assert len(arrays) == 2
    again = decode(tree, arrays)
    assert again["a"] is again["b"][0]
    assert again["a"] is not again["c"]


def test_an_update_whose_numbers_do_not_exist_yet_is_saved_with_its_numbers() -> None:
    calls = []

    def outcome() -> Outcome:
        calls.append(1)
        return Outcome(parameters=np.array([1.0, 2.0], dtype=np.float32), loss=0.25, extras={"slot": 3})

    lazy = an_update(outcome, Mask(np.array([True, False])))
    again = through_json(State(history=[lazy]), State).history[0]
    assert calls == [1]
    assert isinstance(again.outcome, KnownOutcome)
    assert again.parameters.tolist() == [1.0, 2.0]
    assert (again.loss, again.extras) == (0.25, {"slot": 3})
    assert again.mask is not None
    assert again.mask.chosen.tolist() == [True, False]
    plain = ("device", "ticket", "base", "samples", "progress")
    assert [getattr(again, name) for name in plain] == [getattr(lazy, name) for name in plain]
    assert again.base_parameters.tolist() == [0.0, 0.0]


def test_what_cannot_be_saved_is_refused_when_it_is_saved() -> None:
    for value in (object(), open, {"a": lambda: 1}, Order, b"bytes", 1j):
        with pytest.raises(TypeError, match="a snapshot cannot hold"):
            encode(value)


def test_a_mapping_by_numpy_integers_comes_back_by_integers() -> None:
    assert through_json({np.int64(3): 1.0}) == {3: 1.0}


def test_a_mapping_by_tuples_is_refused_when_it_is_saved() -> None:
    with pytest.raises(TypeError, match=r"the key \(1, 2\)"):
        encode({(1, 2): 3.0})


@pytest.mark.parametrize(
    "tree",
    [
        {"array": "array-9"},
        {"array": 3},
        {"type": "os.system", "fields": {}},
        {"type": "State", "fields": {}},
        {"type": "Order", "fields": {"no_such_field": 1}},
        {"type": "Update", "fields": {}},
        {"tuple": 3},
        {"set": [[1]]},
        {"map": [1, 2]},
        {"map": [[1, 2, 3]]},
        {"map": [[[1], 2]]},
        {"what": "ever"},
        {},
        [{"deep": {"down": 1}}],
    ],
    ids=str,
)
def test_a_foreign_tree_is_refused_in_one_sentence(tree: Any) -> None:
    with pytest.raises(InvalidInput, match="the snapshot cannot be read"):
        decode(tree, {})


def test_a_foreign_tree_whose_fields_are_no_mapping_is_refused_in_one_sentence() -> None:
    with pytest.raises(InvalidInput, match="the snapshot cannot be read"):
        decode({"type": "Order", "fields": 3}, {})


def test_no_type_is_known_by_being_a_dataclass_alone() -> None:
    tree, arrays = encode(State())
    assert dataclasses.is_dataclass(State)
    with pytest.raises(InvalidInput, match="State"):
        decode(tree, arrays)
