"""Runs from anywhere in one report: finished or not, alike or not, and a comparison's all at once."""

from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from offbeat import compare, run
from offbeat.comparison.gathered import comparison_of, gather, unlike
from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment


def small(**changes: Any) -> Experiment:
    table: dict[str, Any] = {
        "stop": {"time": 20.0},
        "data": {"name": "digits", "devices": 6},
        "model": {"name": "logistic"},
        "algorithm": {"name": "fedbuff", "buffer": 2, "concurrency": 3},
    }
    return Experiment.parse(table).changed(changes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run, the same on a less even fleet, the same again, one that never finished, one that is real."""
    root = tmp_path_factory.mktemp("runs")
    run(small(), root / "one")
    run(small(fleet={"ratio": 50.0}), root / "uneven")
    copytree(root / "one", root / "again")
    copytree(root / "one", root / "unfinished")
    (root / "unfinished" / "summary.json").unlink()
    copytree(root / "one", root / "real")
    summary = root / "real" / "summary.json"
    summary.write_text(summary.read_text().replace('"wall_seconds"', '"updates_refused": 0, "wall_seconds"'))
    return root


def labels(*directories: Path) -> list[str]:
    return [run.algorithm for run in gather(directories)]


def test_runs_of_one_algorithm_are_told_apart_by_what_was_set(runs: Path) -> None:
    assert labels(runs / "one") == ["fedbuff"]
    assert labels(runs / "one", runs / "uneven") == ["fedbuff ratio=5.0", "fedbuff ratio=50.0"]


def test_real_runs_stand_beside_simulated_ones(runs: Path) -> None:
    assert labels(runs / "one", runs / "real") == ["fedbuff", "fedbuff (real)"]
    comparison = comparison_of(gather([runs / "one", runs / "real"]), None)
    assert "Time (virtual in simulations) to" in comparison.caption


def test_what_cannot_be_told_apart_otherwise_is_by_its_directory_and_nothing_counts_twice(runs: Path) -> None:
    first, second = runs / "one", runs / "again"
    assert labels(first, second) == [f"fedbuff ({first})", f"fedbuff ({second})"]
    assert labels(first, first) == ["fedbuff"]


def test_a_run_that_has_not_finished_is_shown_as_far_as_it_came(runs: Path) -> None:
    (found,) = gather([runs / "unfinished"])
    assert not found.finished
    assert found.rows == gather([runs / "one"])[0].rows


def test_a_comparison_stands_for_its_runs(tmp_path: Path, runs: Path) -> None:
    compare(small(), ["fedavg", "fedbuff"], [0], tmp_path / "both")
    assert labels(tmp_path / "both") == ["fedavg", "fedbuff"]
    assert len(labels(tmp_path / "both", runs / "uneven")) == 3
    with pytest.raises(InvalidInput, match="holds no run"):
        gather([tmp_path / "nowhere"])


def test_a_run_that_cannot_be_read_is_left_out_with_a_sentence(tmp_path: Path, runs: Path) -> None:
    copytree(runs / "one", tmp_path / "cut")
    rows = tmp_path / "cut" / "metrics.jsonl"
    text = rows.read_text()
    rows.write_text(text[:100] + "\n" + text[150:])  # a line that is cut in the middle
    problems: list[str] = []
    (left,) = gather([runs / "one", tmp_path / "cut"], problems)
    assert left.directory == runs / "one"
    assert len(problems) == 1 and problems[0].startswith(f"Left out: the run in {tmp_path / 'cut'} cannot be read")
    with pytest.raises(InvalidInput, match="cannot be read"):
        gather([tmp_path / "cut"], [])


def test_runs_of_different_experiments_are_named_as_such(tmp_path: Path, runs: Path) -> None:
    run(small(data={"name": "digits", "devices": 7}), tmp_path / "other")
    assert unlike(comparison_of(gather([runs / "one", runs / "uneven"]), None)) == []
    assert unlike(comparison_of(gather([runs / "one", tmp_path / "other"]), None)) == [
        "These runs are of different experiments (data.devices): their curves are not comparable."
    ]


def test_all_runs_under_a_results_directory_are_gathered(runs: Path) -> None:
    assert len(gather([runs])) == 5
