"""Tables in the formats of papers, and at the width of a terminal."""

import csv
import io

import pytest
from rich.console import Console
from rich.table import Table

from offbeat.core.errors import InvalidInput
from offbeat.results.comparison import Comparison
from offbeat.results.metric import duration, summarise
from offbeat.results.result import Result
from offbeat.results.rows import COMMON_COLUMNS
from offbeat.results.tables import table_text


@pytest.fixture
def table() -> Table:
    table = Table("name", "final\naccuracy", caption="A & B.")
    table.add_row("my_policy:Mine", "50.1 ± 2 %")
    return table


def test_a_table_for_each_kind_of_paper(table: Table) -> None:
    latex = table_text(table, "latex")
    assert r"my\_policy:Mine & 50.1 $\pm$ 2 \% \\" in latex and r"name & final accuracy \\" in latex
    assert r"\caption{A \& B.}" in latex and latex.count("rule\n") == 3
    assert list(csv.reader(io.StringIO(table_text(table, "csv")))) == [
        ["name", "final accuracy"], ["my_policy:Mine", "50.1 ± 2 %"],
    ]  # fmt: skip
    assert table_text(table, "markdown").splitlines()[2] == "| my_policy:Mine | 50.1 ± 2 % |"
    with pytest.raises(InvalidInput, match="markdown, latex, csv"):
        table_text(table, "word")


def test_no_number_and_no_name_is_cut_at_80_columns() -> None:
    rows = [dict.fromkeys(COMMON_COLUMNS, 0.0) | {"time": time, "accuracy": time / 20_000} for time in (0.0, 14_400.0)]
    names = ["fedavg", "buffer = 5 / concurrency = 20 / staleness_limit = 3", "my_module:[bold]Policy"]
    runs = [
        Result(rows=rows, summary=summarise(rows, algorithm=name, seed=seed, targets=[0.72], reason="", wall_seconds=1))
        for name in names
        for seed in (0, 1)
    ]
    text = io.StringIO()
    Console(file=text, width=80, markup=False).print(Comparison(runs).rich_table())
    said = text.getvalue()
    assert "…" not in said and max(map(len, said.splitlines())) <= 80
    assert "4.00 h" in said
    Console(file=text, width=200, markup=False).print(Comparison(runs).rich_table())
    assert "my_module:[bold]Policy " in text.getvalue()


def test_durations_read_like_durations() -> None:
    assert [duration(each) for each in (12.34, 600.0, 6001.0, 14_400.0)] == ["12.3 s", "600 s", "100 min", "4 h"]
    assert duration(float("inf")) == "inf s"
