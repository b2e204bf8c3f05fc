"""Named arrays of any type and one flat vector are made of each other, and nothing but the model passes."""

from io import BytesIO

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from offbeat.core.errors import DeviceFault, InvalidInput
from offbeat.flower.strategy.records import ModelArrays

TYPES = st.sampled_from([np.float16, np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_])


@st.composite
def array(draw: st.DrawFn) -> np.ndarray:
    dtype = draw(TYPES)
    shape = draw(arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    whole = st.integers(0, 1) if dtype is np.bool_ else st.integers(0, 100)
    made = draw(arrays.arrays(dtype, shape, elements=whole.map(lambda number: np.dtype(dtype).type(number))))
    return np.asfortranarray(made) if draw(st.booleans()) else made


@settings(max_examples=25, deadline=None)
@given(st.lists(array(), max_size=5))
def test_a_model_comes_back_as_it_was_with_its_names_order_shapes_and_types(given_arrays: list[np.ndarray]) -> None:
    named = {"first": np.array([1.5], np.float32)} | {f"a.{place}": each for place, each in enumerate(given_arrays)}
    record = ArrayRecord({name: Array(np.asarray(each)) for name, each in named.items()})
    model = ModelArrays(record)
    back = model.record(model.parameters, model.counts)
    assert list(back) == list(named)
    for name, each in named.items():
        assert back[name].dtype == str(each.dtype)
        assert back[name].numpy().shape == each.shape
        np.testing.assert_array_equal(back[name].numpy(), each)


def test_floats_are_mixed_in_float32_and_integers_travel_beside_them() -> None:
    model = ModelArrays(ArrayRecord({"n": Array(np.array(7)), "w": Array(np.array([1 / 3]))}))
    assert model.layout.size == 1
    assert model.parameters.tolist() == [float(np.float32(1 / 3))]
    sent = model.record(model.parameters, {"n": np.array(9)})
    assert sent["n"].numpy() == 9
    assert sent["w"].numpy().tolist() == [float(np.float32(1 / 3))]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({}, "no array of floats"),
        ({"n": np.array([1, 2])}, "no array of floats"),
        ({"w": np.zeros(2), "c": np.zeros(1, dtype=complex)}, r"initial_arrays\['c'\] has dtype complex128"),
        ({"w": np.array([np.inf])}, "the array 'w' is not finite"),
        ({"w": np.array([1e200])}, "the array 'w' is not finite"),
    ],
)
def test_a_first_model_that_cannot_be_trained_is_refused(record: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        ModelArrays(ArrayRecord({name: Array(each) for name, each in record.items()}))


def test_bytes_that_are_not_what_they_say_are_refused() -> None:
    model = ModelArrays(ArrayRecord({"w": Array(np.zeros((2, 2), np.float32))}))
    larger, stream = np.zeros(100, np.float32), BytesIO()
    np.save(stream, larger)
    for data in (b"", b"PK\x03\x04" + bytes(40), stream.getvalue(), Array(np.zeros(4, np.float32)).data):
        lie = ArrayRecord({"w": Array(dtype="float32", shape=(2, 2), stype="numpy.ndarray", data=data)})
        with pytest.raises(DeviceFault):
            model.read(lie)
