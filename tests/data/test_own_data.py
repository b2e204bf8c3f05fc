"""A user's own function gives the data; what is wrong with it is said with the reference that the user wrote."""

from pathlib import Path

import pytest

from offbeat.core.errors import InvalidInput
from offbeat.data import load_own
from offbeat.references import resolve

MODULE = """
import numpy as np
from offbeat.data import Dataset

def arrays(seed):
    return [[seed, 1], [2, 3]], [0, 2], np.zeros((1, 2)), np.array([1], dtype=np.uint8)

def dataset(seed):
    x = np.full((2, 3), seed, dtype=np.float32)
    y = np.array([0, 1])
    return Dataset(train_x=x, train_y=y, test_x=x, test_y=y, classes=5, devices=(np.array([0]), np.array([1])))

def nothing(seed):
    pass

def three(seed):
    return [1], [2], [3]

def too_large(seed):
    return [[1e300]], [0], [[1.0]], [0]

def ragged(seed):
    return [[1, 2], [3]], [0, 0], [[1, 2]], [0]

def fractions(seed):
    return [[1.0]], [0.5], [[1.0]], [0]

def empty(seed):
    return np.zeros((0, 2)), np.zeros(0, dtype=int), [[1, 2]], [0]

number = 3
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_data_module.py").write_text(MODULE)
    (tmp_path / "own_data_broken.py").write_text("import a_module_that_nobody_has")
    (tmp_path / "own_data_refusing.py").write_text("raise ImportError('install the blue one')")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_tuple_becomes_a_dataset_with_as_many_classes_as_labels() -> None:
    dataset = load_own("own_data_module:arrays", seed=7)
    assert dataset.train_x.tolist() == [[7, 1], [2, 3]]
    assert dataset.train_y.tolist() == [0, 2]
    assert dataset.test_y.tolist() == [1]
    assert dataset.classes == 3


def test_a_dataset_is_taken_as_it_is() -> None:
    dataset = load_own("own_data_module:dataset", seed=4)
    assert dataset.classes == 5
    assert dataset.train_x[0, 0] == 4
    assert dataset.devices is not None
    assert len(dataset.devices) == 2


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("number", "is a int: it must be a Dataset or a function of the seed"),
        ("nothing", "it returned a NoneType: it must return a Dataset or"),
        ("three", "it returned a tuple"),
        ("too_large", "train_x holds values that are not finite"),
        ("ragged", "train_x cannot be made an array of float32"),
        ("empty", r"train_x has shape \(0, 2\)"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_reference(function: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"'own_data_module:{function}'.*{message}"):
        load_own(f"own_data_module:{function}", seed=0)


def test_a_reference_leads_to_the_object() -> None:
    assert resolve("own_data_module:number") == 3
    assert resolve("os.path:join")("a", "b") == str(Path("a") / "b")


@pytest.mark.parametrize(
    "reference", ["", "math", "math:", ":floor", "math:floor:ceil", "a b:c", ".math:floor", "a..b:c"]
)
def test_a_bad_form_is_refused(reference: str) -> None:
    with pytest.raises(InvalidInput, match='is not a reference of the form "module:attribute"'):
        resolve(reference)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_such_module_at_all:x", "no module 'no_such_module_at_all' on the Python path"),
        ("no_such_module_at_all.part:x", "no module 'no_such_module_at_all' on the Python path"),
        ("own_data_module.part:x", r"no module 'own_data_module\.part'"),
        ("own_data_module:absent", "module 'own_data_module' has no attribute 'absent'"),
        ("own_data_broken:x", "importing 'own_data_broken' failed: No module named 'a_module_that_nobody_has'"),
        ("own_data_refusing:x", "importing 'own_data_refusing' failed: install the blue one"),
    ],
)
def test_what_cannot_be_found_is_told_apart(reference: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        resolve(reference)
