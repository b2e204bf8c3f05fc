"""A table of one's own: columns, split, standardisation and what is refused, with the numbers worked out by hand."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offbeat.core.errors import InvalidInput
from offbeat.data.csv_table import CsvTable
from offbeat.data.dataset import Dataset

ROWS = """site,age,kind,code,y
b,10,x,1,yes
b,30,y,2,no
b,20,x,1,yes
a,40,x,2,no
a,20,y,1,no
a,30,x,1,yes
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "table.csv").write_text(ROWS)
    return tmp_path / "table.csv"


def loaded(path: Path, **settings: Any) -> Dataset:
    given: dict[str, Any] = {"path": str(path), "target": "y", "device": "site", "devices": 2, "test": 0.34} | settings
    return CsvTable(**given).load(0)


def test_columns_devices_and_the_held_out_part(table: Path) -> None:
    data = loaded(table, categorical=["code"])
    assert data.class_names == ("no", "yes") and data.device_names == ("a", "b")
    assert data.devices is not None and data.test_devices is not None
    # A third of each device's three rows is held out.
    assert [len(own) for own in data.devices] == [2, 2] and [len(own) for own in data.test_devices] == [1, 1]
    assert data.train_x.shape == (4, 1 + 2 + 2)  # age, kind in {x, y}, code in {1, 2}
    # Standardised by the training part alone: there the mean is 0 and the deviation 1.
    assert data.train_x[:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert data.train_x[:, 0].std() == pytest.approx(1)
    assert (data.train_x[:, 1:3].sum(1) == 1).all()
    # The raw values of a column are there to partition by.
    assert sorted(data.columns["site"].tolist()) == ["a", "a", "b", "b"]


def test_a_packed_file_and_other_separators_hold_the_same(table: Path, tmp_path: Path) -> None:
    (tmp_path / "packed.csv.gz").write_bytes(gzip.compress(ROWS.replace(",", ";").encode()))
    assert np.array_equal(loaded(table).train_x, loaded(tmp_path / "packed.csv.gz").train_x)


def test_parquet_holds_the_same(table: Path, tmp_path: Path) -> None:
    pyarrow_csv = pytest.importorskip("pyarrow.csv")
    from pyarrow import parquet

    parquet.write_table(pyarrow_csv.read_csv(table), tmp_path / "table.parquet")
    assert np.array_equal(loaded(table).train_x, loaded(tmp_path / "table.parquet").train_x)
    assert np.array_equal(loaded(table).train_y, loaded(tmp_path / "table.parquet").train_y)


@pytest.mark.parametrize(
    ("settings", "kind", "classes"),
    [
        ({"target": "y"}, np.int64, 2),
        ({"target": "code"}, np.int64, 2),  # few integers are labels
        ({"target": "code", "predict": "numbers"}, np.float32, 1),
        ({"target": "age", "predict": "classes"}, np.int64, 4),
    ],
)
def test_the_target_decides_what_is_predicted(table: Path, settings: Any, kind: type[Any], classes: int) -> None:
    data = loaded(table, **settings)
    assert data.train_y.dtype == kind and data.classes == classes


def test_numeric_targets_may_be_standardised(table: Path) -> None:
    y = loaded(table, target="age", predict="numbers", standardise_target=True).train_y
    assert [y.mean(), y.std()] == pytest.approx([0, 1], abs=1e-6)


def test_missing_cells_become_the_mean_or_a_category(tmp_path: Path) -> None:
    (tmp_path / "gaps.csv").write_text(ROWS.replace("b,30,y", "b,,y").replace("a,20,y", "a,20,NA"))
    data = loaded(tmp_path / "gaps.csv", missing="fill")
    x = np.concatenate([data.train_x, data.test_x])
    assert (x[:, 0] == 0).sum() >= 1 and np.isfinite(x).all()


@pytest.mark.parametrize(
    ("text", "settings", "words"),
    [
        (ROWS, {"target": "z"}, "unknown column in data.target, 'z'"),
        (ROWS, {"device": "sit"}, "unknown column in data.device, 'sit': did you mean 'site'?"),
        (ROWS, {"drop": ["agee"]}, "did you mean 'age'?"),
        (ROWS, {"devices": 3}, "column 'site' has only 2 different values"),
        (ROWS, {"target": "kind", "predict": "numbers"}, "column 'kind' of .* holds text"),
        (ROWS.replace("b,30", "b,"), {}, r"column 'age' .* 1 missing values, the first in row 2 below the header"),
        (ROWS.replace("x,2,no", "x,2,"), {}, "column 'y' .* fill it or remove the row"),
        (ROWS.replace("x,2,no", "x,2"), {}, "line 5 of .* has 4 columns, the header 5"),
        (ROWS.replace("age", "site"), {}, "two columns of .* are named 'site'"),
        (ROWS.replace("yes", "no"), {}, "all rows have the same value, no"),
        ("site,age,y\n", {}, "has no rows"),
        ("y,site\n" + "".join(f"{row % 2},{row % 2}\n" for row in range(9)), {}, "no column besides target and device"),
        (
            "y,site,id\n" + "".join(f"{row % 2},{row % 2},k{row}\n" for row in range(400)),
            {},
            r"column 'id' has 2\d\d different texts.* data.drop",
        ),
    ],
)
def test_what_cannot_be_used_is_one_sentence(tmp_path: Path, text: str, settings: Any, words: str) -> None:
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(InvalidInput, match=words) as refused:
        loaded(tmp_path / "table.csv", **settings)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"data.path: the file .*none.csv does not exist"):
        loaded(tmp_path / "none.csv")
