"""Tables of Hugging Face from local files: columns become samples, a column says whose they are, mistakes are named."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from offbeat.core.errors import InvalidInput
from offbeat.data import Dataset
from offbeat.data.huggingface import HuggingFace
from offbeat.data.imdb import Imdb
from offbeat.data.samples import LazyDevices, Ragged
from offbeat.experiment.schema import Experiment

datasets = pytest.importorskip("datasets", reason="the extra offbeat[datasets] is not installed")

TABLE: dict[str, list[Any]] = {
    "height": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "width": [10, 20, 30, 40, 50, 60],
    "kind": ["tree", "bush", "tree", "bush", "tree", "tree"],
    "owner": ["eva", "bob", "eva", "ada", "bob", "eva"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Parquet files as the hub has them: two of the training split."""
    parts = {"train-00000-of-00002": slice(0, 4), "train-00001-of-00002": slice(4, 6), "test-00000-of-00001": slice(2)}
    for name, rows in parts.items():
        table = datasets.Dataset.from_dict({column: values[rows] for column, values in TABLE.items()})
        table.to_parquet(tmp_path / "data" / f"{name}.parquet")
    return tmp_path


def load(folder: Path, **settings: Any) -> Dataset:
    table = {"source": str(folder), "x": ["height", "width"], "y": "kind", "cache": str(folder / "cache")} | settings
    return HuggingFace.model_validate(table).load(seed=0)


def test_columns_of_numbers_stand_side_by_side_and_texts_are_labels_by_alphabet(folder: Path) -> None:
    dataset = load(folder)
    assert dataset.train_x.tolist() == [[1, 10], [2, 20], [3, 30], [4, 40], [5, 50], [6, 60]]
    assert dataset.train_x.dtype == np.float32
    assert dataset.train_y.tolist() == [1, 0, 1, 0, 1, 1]
    assert dataset.test_y.tolist() == [1, 0]
    assert (dataset.classes, dataset.class_names) == (2, ("bush", "tree"))
    assert dataset.devices is None


def test_a_column_says_whose_sample_it_is(folder: Path) -> None:
    dataset = load(folder, device="owner", devices=3)
    assert dataset.devices is not None
    # In sorted order: ada holds row 3, bob rows 1 and 4, eva the rest.
    assert [own.tolist() for own in dataset.devices] == [[3], [1, 4], [0, 2, 5]]
    with pytest.raises(
        InvalidInput, match=r"data\.devices = 4: column 'owner' has only 3 different values, one per device"
    ):
        load(folder, device="owner", devices=4)


def test_lazy_devices_hold_the_same_samples_and_can_be_sent_to_other_processes(folder: Path) -> None:
    whole, lazy = load(folder, device="owner", devices=3), load(folder, device="owner", devices=3, lazy=True)
    assert whole.devices is not None
    assert isinstance(lazy.train_x, LazyDevices)
    assert lazy.train_x.sizes.tolist() == [1, 2, 3]
    loader = pickle.loads(pickle.dumps(lazy.train_x.load))
    for device, own in enumerate(whole.devices):
        x, y = loader(device)
        np.testing.assert_array_equal(x, whole.train_x[own])
        np.testing.assert_array_equal(y, whole.train_y[own])
    with pytest.raises(InvalidInput, match=r"data\.device must name a column"):
        load(folder, lazy=True)


def experiment(folder: Path, partition: dict[str, Any], **data: Any) -> Experiment:
    table = {"name": "huggingface", "source": str(folder), "x": ["height", "width"], "y": "kind", "devices": 2}
    return Experiment.parse(
        {"stop": {"versions": 1}, "data": table | {"cache": str(folder / "cache")} | data, "partition": partition}
    )


def test_the_partition_column_divides_by_any_other_column(folder: Path) -> None:
    chosen = experiment(folder, {"name": "column", "column": "owner"})
    _, partition = chosen.load_data()
    assert [partition.samples(device).tolist() for device in (0, 1)] == [[3], [1, 4]]
    assert Experiment.parse(chosen.table()).table() == chosen.table()
    with pytest.raises(InvalidInput, match=r"partition\.column = 'colour'.*: kind, owner"):
        experiment(folder, {"name": "column", "column": "colour"}).load_data()
    with pytest.raises(InvalidInput, match="assigns samples to devices itself"):
        experiment(folder, {"name": "iid"}, device="owner")
    divided = experiment(folder, {}, device="owner")
    assert divided.load_data()[1].sizes.tolist() == [1, 2]
    assert Experiment.parse(divided.table()).table() == divided.table()


def test_without_a_test_split_every_fifth_sample_of_each_class_is_held_out(folder: Path) -> None:
    rows = {"a": list(range(10)), "b": [0, 1] * 5}
    datasets.Dataset.from_dict(rows).to_parquet(folder / "alone.parquet")
    dataset = load(folder / "alone.parquet", x="a", y="b", test="", cache=str(folder / "cache"))
    # Of class 0 the fifth is row 8, of class 1 row 9.
    assert dataset.test_x.tolist() == [[8], [9]]
    assert len(dataset.train_y) == 8


@pytest.mark.parametrize("form", ["disk", "arrow"])
def test_arrow_files_and_what_save_to_disk_wrote_are_read_too(folder: Path, tmp_path: Path, form: str) -> None:
    saved = tmp_path / "saved"
    table = datasets.Dataset.from_dict(TABLE)
    if form == "disk":
        datasets.DatasetDict({"train": table, "test": table.select([0])}).save_to_disk(saved)
    else:
        for split in ("train", "test"):
            table.save_to_disk(tmp_path / f"{split}-table")
            (saved / split).mkdir(parents=True)
            next((tmp_path / f"{split}-table").glob("*.arrow")).rename(saved / split / "data-0.arrow")
    assert load(saved, cache=str(tmp_path / "cache")).train_y.tolist() == [1, 0, 1, 0, 1, 1]


def image_table(sizes: list[int], mode: str = "RGB") -> Any:
    images = [Image.new(mode, (size, 2), 7 if mode == "L" else (7, 8, 9)) for size in sizes]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["no", "yes"])})
    return datasets.Dataset.from_dict({"image": images, "label": [1] * len(sizes)}, features=features)


def test_images_become_pixels_and_the_names_of_labels_are_known(tmp_path: Path) -> None:
    for split in ("train", "test"):
        image_table([3, 3]).to_parquet(tmp_path / f"{split}.parquet")
    settings: dict[str, Any] = {"x": "image", "y": "label", "mean": [0.5, 0.0, 0.0], "std": [2.0, 1.0, 1.0]}
    dataset = load(tmp_path, **settings)
    assert (dataset.input_shape, dataset.class_names) == ((3, 2, 3), ("no", "yes"))
    # Red: (7 / 255 - 0.5) / 2; green 8 / 255; blue 9 / 255.
    np.testing.assert_allclose(dataset.train_x[0, :, 1, 2], [(7 / 255 - 0.5) / 2, 8 / 255, 9 / 255], rtol=1e-6)
    pixels = load(tmp_path, **settings, as_bytes=True)
    assert pixels.pipeline is not None
    np.testing.assert_array_equal(pixels.pipeline.evaluation(pixels.train_x), dataset.train_x)


def test_grey_images_have_one_channel_and_another_size_is_named(tmp_path: Path) -> None:
    image_table([3, 3], "L").to_parquet(tmp_path / "train.parquet")
    image_table([3, 4], "L").to_parquet(tmp_path / "test.parquet")
    with pytest.raises(InvalidInput, match=r"column 'image', row 1: the image has shape \(1, 2, 4\)"):
        load(tmp_path, x="image", y="label")
    image_table([3], "L").to_parquet(tmp_path / "test.parquet")
    assert load(tmp_path, x="image", y="label").input_shape == (1, 2, 3)


def test_texts_become_the_tokens_that_imdb_has(tmp_path: Path) -> None:
    texts = {"text": ["A bad film", "good film"], "label": [0, 1]}
    for split in ("train", "test"):
        table = datasets.Dataset.from_dict(texts)
        table.to_parquet(tmp_path / f"{split}.parquet")
        table.to_json(tmp_path / f"{split}.jsonl")
    ours = load(tmp_path, x="text", y="label", vocabulary=5, length=3)
    imdb = Imdb(dir=str(tmp_path), vocabulary=5, length=3).load(seed=0)
    assert ours.train_x.tolist() == imdb.train_x.tolist() == [[3, 4, 2], [1, 2, 0]]


def test_lists_stay_lists_and_numbers_are_targets_of_a_regression(tmp_path: Path) -> None:
    rows = {"even": [[1.0, 2.0], [3.0, 4.0]], "tokens": [[5], [6, 7]], "price": [1.5, 2.5]}
    for split in ("train", "test"):
        datasets.Dataset.from_dict(rows).to_parquet(tmp_path / f"{split}.parquet")
    dataset = load(tmp_path, x="even", y="price")
    assert dataset.train_x.tolist() == [[1, 2], [3, 4]]
    assert (dataset.train_y.tolist(), dataset.train_y.dtype) == ([1.5, 2.5], np.float32)
    tokens = load(tmp_path, x="tokens", y="price").train_x
    assert isinstance(tokens, Ragged)
    assert tokens.padded().tolist() == [[5, 0], [6, 7]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"x": "hight"}, r"data\.x = 'hight': split 'train' has the columns height, width, kind, owner"),
        ({"y": "sort"}, r"data\.y = 'sort'"),
        ({"device": "who"}, r"data\.device = 'who'"),
        ({"x": ["height", "kind"]}, "column 'kind' holds"),
        ({"test": "validation"}, "no parquet or arrow file has a name that begins with 'validation'"),
    ],
)
def test_wrong_columns_and_splits_are_named(folder: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        load(folder, **settings)


def test_damage_in_a_file_is_one_sentence_about_it(folder: Path) -> None:
    path = folder / "data" / "test-00000-of-00001.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InvalidInput, match=r"split 'test' cannot be loaded") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_missing_values_and_labels_that_training_never_saw_are_named_by_their_row(folder: Path) -> None:
    path = folder / "data" / "test-00000-of-00001.parquet"
    rows = {column: values[:2] for column, values in TABLE.items()}
    datasets.Dataset.from_dict(rows | {"kind": ["tree", "fern"]}).to_parquet(path)
    with pytest.raises(InvalidInput, match="column 'kind', row 1: 'fern' is not a label of the training split"):
        load(folder)
    datasets.Dataset.from_dict(rows | {"height": [1.0, None]}).to_parquet(path)
    with pytest.raises(InvalidInput, match="column 'height', row 1: the value is missing"):
        load(folder)
