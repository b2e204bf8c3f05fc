"""LEAF's users are devices: who holds what, in which files, and what is wrong in them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offbeat.core.errors import InvalidInput
from offbeat.data.leaf import CHARACTERS, Femnist, Shakespeare
from offbeat.experiment.schema import Experiment

Users = dict[str, tuple[list[Any], list[Any]]]


def write(path: Path, users: Users, **others: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.write_text(json.dumps(table | others))


def image(value: int) -> list[float]:
    return [value / 255] * 784


@pytest.fixture
def femnist(tmp_path: Path) -> Path:
    """Writer b comes before writer a, and c is in a file of his own."""
    first: Users = {"f_b": ([image(1), image(2)], [0, 61]), "f_a": ([image(3)], [10])}
    write(tmp_path / "train" / "all_data_0_niid.json", first)
    write(tmp_path / "train" / "all_data_1_niid.json", {"f_c": ([image(4)], [36])})
    test: Users = {"f_b": ([image(5)], [5]), "f_a": ([image(6)], [6]), "f_c": ([image(7)], [7])}
    write(tmp_path / "test" / "all_data_0_niid.json", test)
    return tmp_path


def test_each_writer_is_a_device_in_the_order_of_the_files(femnist: Path) -> None:
    dataset = Femnist(dir=str(femnist), devices=3).load(seed=0)
    assert dataset.devices is not None
    assert [own.tolist() for own in dataset.devices] == [[0, 1], [2], [3]]
    assert dataset.train_y.tolist() == [0, 61, 10, 36]
    assert (dataset.classes, dataset.input_shape) == (62, (1, 28, 28))
    assert [dataset.class_names[label] for label in dataset.train_y] == ["0", "z", "A", "a"]
    assert (dataset.train_x[:, 0, 0, 0] == (np.arange(1, 5) / 255).astype(np.float32)).all()


def test_fewer_devices_are_the_first_writers_with_their_own_test_samples(femnist: Path) -> None:
    (femnist / "train" / "all_data_1_niid.json").write_text("not read, because nobody needs it")
    stranger: Users = {"f_c": ([image(7)], [7])}  # in front of those who train
    write(femnist / "test" / "all_data_0_a.json", stranger)
    dataset = Femnist(dir=str(femnist), devices=2).load(seed=0)
    assert dataset.test_y.tolist() == [5, 6]
    assert len(dataset.train_y) == 3


def test_files_that_were_split_by_user_are_tested_on_all_other_users(femnist: Path) -> None:
    write(femnist / "test" / "all_data_0_niid.json", {"f_x": ([image(5)], [5]), "f_y": ([image(6)], [6])})
    assert Femnist(dir=str(femnist), devices=1).load(seed=0).test_y.tolist() == [5, 6]


def test_bytes_give_the_same_numbers_to_the_bit(femnist: Path) -> None:
    floats = Femnist(dir=str(femnist), devices=3).load(seed=0)
    pixels = Femnist(dir=str(femnist), devices=3, as_bytes=True).load(seed=0)
    assert pixels.train_x.dtype == np.uint8
    assert pixels.pipeline is not None
    np.testing.assert_array_equal(pixels.pipeline.evaluation(pixels.train_x), floats.train_x)


def test_an_experiment_takes_the_division_of_the_files_and_refuses_another(femnist: Path) -> None:
    table: dict[str, Any] = {"stop": {"versions": 1}, "data": {"name": "femnist", "dir": str(femnist), "devices": 3}}
    _, partition = Experiment.parse(table).load_data()
    assert partition.sizes.tolist() == [2, 1, 1]
    with pytest.raises(InvalidInput, match=r"assigns samples to devices itself.* or set data\.pool"):
        Experiment.parse(table | {"partition": {"name": "iid"}})
    with pytest.raises(InvalidInput, match=r"data\.devices = 4: .* has only 3 users"):
        Experiment.parse(table | {"data": table["data"] | {"devices": 4}}).load_data()


def test_pooled_writers_are_divided_by_a_partition_and_know_whose_sample_it_is(femnist: Path) -> None:
    data = {"name": "femnist", "dir": str(femnist), "pool": 3, "devices": 2}
    chosen = Experiment.parse({"stop": {"versions": 1}, "data": data, "partition": {"name": "iid"}})
    dataset, partition = chosen.load_data()
    assert dataset.devices is None
    assert partition.sizes.tolist() == [2, 2]  # the four samples of three writers
    assert sorted(partition.indices.tolist()) == [0, 1, 2, 3]
    assert dataset.columns["user"].tolist() == ["f_b", "f_b", "f_a", "f_c"]
    assert dataset.test_y.tolist() == [5, 6, 7]
    assert Experiment.parse(chosen.table()).table() == chosen.table()
    by_writer = chosen.changed({"partition": {"name": "column", "column": "user"}}).load_data()[1]
    # The first two of f_a, f_b, f_c in sorted order.
    assert [by_writer.samples(device).tolist() for device in (0, 1)] == [[2], [0, 1]]
    with pytest.raises(InvalidInput, match=r"data\.pool = 4: .* has only 3 users"):
        chosen.changed({"data": {"pool": 4}}).load_data()


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([image(1)[:-1]], [1], "user 'f_d': x must be images of 784 numbers"),
        ([image(1), image(300)], [1, 1], "user 'f_d', sample 1: x must be 784 numbers from 0 to 1"),
        ([image(1) + image(2)], [1], "user 'f_d': x must be images of 784 numbers"),
        ([["a"] * 784], [1], "user 'f_d': x must be images"),
        ([image(1), image(1)], [61, 62], "user 'f_d', sample 1: the label is 62; it must be 0 to 61"),
        ([image(1)], ["a"], "user 'f_d': y must be labels from 0 to 61"),
    ],
)
def test_wrong_samples_are_named_by_file_and_writer(femnist: Path, x: list[Any], y: list[Any], message: str) -> None:
    write(femnist / "train" / "all_data_2_niid.json", {"f_d": (x, y)})
    with pytest.raises(InvalidInput, match=rf"all_data_2_niid\.json, {message}"):
        Femnist(dir=str(femnist), devices=4).load(seed=0)


def test_damaged_files_are_named(femnist: Path) -> None:
    path = femnist / "train" / "all_data_1_niid.json"
    for users, others, message in [
        ({"f_c": ([image(1)], [1])}, {"num_samples": [2]}, "user 'f_c' declares 2 samples but has 1 inputs"),
        ({"f_c": ([image(1)], [1, 2])}, {}, "user 'f_c' declares 2 samples but has 1 inputs and 2 targets"),
        ({"f_b": ([image(1)], [1])}, {}, "user 'f_b' appears twice"),
    ]:
        write(path, users, **others)
        with pytest.raises(InvalidInput, match=rf"all_data_1_niid\.json: {message}"):
            Femnist(dir=str(femnist), devices=3).load(seed=0)
    path.write_text(path.read_text()[:-10])
    with pytest.raises(InvalidInput, match=r"all_data_1_niid\.json is not one of LEAF's files"):
        Femnist(dir=str(femnist), devices=3).load(seed=0)
    path.write_text('{"users": []}')
    with pytest.raises(InvalidInput, match=r"not one of LEAF's files: 'num_samples' is missing"):
        Femnist(dir=str(femnist), devices=3).load(seed=0)
    with pytest.raises(InvalidInput, match="has no JSON files of LEAF"):
        Femnist(dir=str(femnist / "nowhere")).load(seed=0)


LINE = "To be, or not to be: that is the question: Whether 'tis nobler in the mind to suffer the slings"
X, Y = LINE[:80], LINE[80]


def write_shakespeare(folder: Path, x: str = X, y: str = Y) -> Shakespeare:
    for part in ("train", "test"):
        write(folder / part / "data.json", {"HAMLET": ([x], [y])})
    return Shakespeare(dir=str(folder), devices=1)


def test_the_next_character_is_a_label_as_in_leaf(tmp_path: Path) -> None:
    dataset = write_shakespeare(tmp_path).load(seed=0)
    assert len(CHARACTERS) == len(set(CHARACTERS)) == dataset.classes == 80
    assert (dataset.train_x.shape, dataset.train_x.dtype) == ((1, 80), np.int64)
    assert "".join(dataset.class_names[token] for token in dataset.train_x[0]) == X
    assert dataset.class_names[dataset.train_y[0]] == Y


def test_every_character_can_be_predicted_from_those_before_it(tmp_path: Path) -> None:
    settings = write_shakespeare(tmp_path).model_copy(update={"predict": "every"})
    dataset = settings.load(seed=0)
    assert "".join(CHARACTERS[token] for token in dataset.train_y[0]) == LINE[1:81]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X[:-1], Y, "sample 0: x must be 80 characters and y the next one"),
        (X, "ab", "sample 0: x must be 80 characters and y the next one"),
        (X[:-1] + "é", Y, "sample 0: 'é' is not one of LEAF's 80 characters"),
    ],
)
def test_wrong_lines_are_named_by_file_and_role(tmp_path: Path, x: str, y: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=rf"data\.json, user 'HAMLET', {message}"):
        write_shakespeare(tmp_path, x, y).load(seed=0)
