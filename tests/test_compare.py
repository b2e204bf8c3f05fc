"""Comparisons and sweeps: variants, labels, files, and what happens when they are stopped."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from matplotlib.figure import Figure

from offbeat import compare, run
from offbeat.comparison.compare import sweep
from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.results import plots
from offbeat.results.comparison import Comparison
from offbeat.results.lock import check_unlocked


def small(**changes: Any) -> Experiment:
    table: dict[str, Any] = {
        "stop": {"time": 40.0},
        "data": {"name": "digits", "devices": 8},
        "model": {"name": "logistic"},
        "local": {"epochs": 2, "learning_rate": 0.5},
        "algorithm": {"name": "seafl", "buffer": 2, "concurrency": 4},
        "evaluation": {"every_seconds": 5.0, "targets": [0.3]},
    }
    return Experiment.parse(table | changes)


def test_variants_of_one_algorithm_are_compared_under_their_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = {
        "tight": {"algorithm": {"name": "seafl2", "buffer": 2, "concurrency": 4, "staleness_limit": 1.0}},
        "loose": {"algorithm": {"name": "seafl2", "buffer": 2, "concurrency": 4, "staleness_limit": 9.0}},
        "fedavg": {"algorithm": {"cohort": 4}},
    }
    drawn = plots.accuracy_figure

    def drawn_while_nobody_else_may_write(comparison: Comparison) -> Figure:
        with pytest.raises(InvalidInput, match="another process is writing to"):
            check_unlocked(tmp_path / "out")
        return drawn(comparison)

    monkeypatch.setitem(plots.COMPARISON_FIGURES, "accuracy", drawn_while_nobody_else_may_write)
    comparison = compare(small(compare=variants), list(variants), [0, 1], tmp_path / "out", jobs=2)
    check_unlocked(tmp_path / "out")
    assert [results.algorithm for results in comparison.by_algorithm] == ["tight", "loose", "fedavg"]
    assert {entry.summary["algorithm"] for entry in comparison.entries} == {"seafl2", "fedavg"}
    pictures = [path / "metrics.png" for path in (tmp_path / "out").glob("*-seed*")]
    assert pictures and all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    assert sorted(path.name for path in (tmp_path / "out").glob("*-seed*")) == [
        "fedavg-seed0",
        "fedavg-seed1",
        "loose-seed0",
        "loose-seed1",
        "tight-seed0",
        "tight-seed1",
    ]


def test_a_sweep_runs_every_combination_and_draws_it(tmp_path: Path) -> None:
    over: dict[str, list[Any]] = {
        "algorithm.similarity_weight": [1.0, 0.0],
        "algorithm.buffer": [1, 2],
        "fleet.ratio": [2.0, 5.0],
    }
    comparison = sweep(small(), over, [0], tmp_path / "out", jobs=2)
    labels = [results.algorithm for results in comparison.by_algorithm]
    assert len(labels) == 8
    assert labels[0] == "1.0 / 1 / 2.0"
    assert labels[-1] == "0.0 / 2 / 5.0"
    assert (tmp_path / "out" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    again = sweep(small(), over, [0], tmp_path / "out", jobs=1, resume=True)
    assert again.csv_text() == comparison.csv_text()


@pytest.mark.parametrize("over", [{}, {"fleet.ratio": []}, {f"local.k{number}": [1] for number in range(4)}])
def test_a_sweep_needs_one_to_three_settings(tmp_path: Path, over: dict[str, list[Any]]) -> None:
    with pytest.raises(InvalidInput, match="one to three settings"):
        sweep(small(), over, [0], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_bad_value_in_a_sweep_is_found_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"fleet\.ratio = 0\.5"):
        sweep(small(), {"fleet.ratio": [5.0, 0.5]}, [0], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_comparison_never_goes_into_another_directory(tmp_path: Path) -> None:
    run(small(), tmp_path / "single")
    before = (tmp_path / "single" / "config.toml").read_bytes()
    for resume in (True, False):
        with pytest.raises(InvalidInput, match="holds a single run"):
            compare(small(), ["seafl"], [0], tmp_path / "single", resume=resume, overwrite=not resume)
    assert (tmp_path / "single" / "config.toml").read_bytes() == before
    (tmp_path / "thesis.txt").write_text("ten years of work")
    with pytest.raises(InvalidInput, match="not a run directory"):
        compare(small(), ["seafl"], [0], tmp_path, resume=True)


def test_a_comparison_is_checked_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"target = 0\.0"):
        compare(small(), ["seafl"], [0], tmp_path / "out", target=0.0)
    with pytest.raises(InvalidInput, match="did you mean 'fedavg'"):
        small(compare={"fedavgg": {"algorithm": {"cohort": 3}}})
    assert not (tmp_path / "out").exists()


def test_a_comparison_is_put_together_as_a_whole_before_its_first_run(tmp_path: Path) -> None:
    late = small(compare={"seafl": {}, "port": {"algorithm": {"buffer": 5, "concurrency": 4}}})
    with pytest.raises(InvalidInput, match=r"port: algorithm\.buffer = 5 exceeds algorithm\.concurrency"):
        compare(late, ["seafl", "port"], [0], tmp_path / "out")
    endless = small(stop={"versions": 3})
    with pytest.raises(InvalidInput, match="salf: the algorithm needs a time budget"):
        compare(endless, ["seafl", "salf"], [0], tmp_path / "out")
    assert not (tmp_path / "out").exists()


CRASHING = """
import os
from offbeat.algorithms import FedAvg


class Raises(FedAvg):
    def react(self, event, state, view):
        yield from super().react(event, state, view)
        if view.version == 2:
            raise ZeroDivisionError("division by zero")


class Dies(FedAvg):
    def react(self, event, state, view):
        yield from super().react(event, state, view)
        if view.version == 2:
            os._exit(9)
"""


def test_a_policy_that_crashes_ends_its_own_runs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crashing.py").write_text(CRASHING)
    monkeypatch.syspath_prepend(tmp_path)
    variants = {
        "raises": {"algorithm": {"name": "crashing:Raises"}},
        "dies": {"algorithm": {"name": "crashing:Dies"}},
    }
    names = ["raises", "seafl", "dies", "fedavg"]
    comparison = compare(small(compare=variants), names, [0], tmp_path / "out", jobs=2)
    assert [results.algorithm for results in comparison.by_algorithm] == ["seafl", "fedavg"]
    raised, died = comparison.failures
    file = tmp_path / "out" / "raises-seed0" / "error.txt"
    assert raised == f"raises, seed 0 failed: ZeroDivisionError: division by zero (traceback: {file})"
    assert died == "dies, seed 0 failed: its process died 2 times, possibly for lack of memory"
    assert "in react" in file.read_text()
    assert (tmp_path / "out" / "report.html").is_file()


def test_the_processes_of_a_killed_comparison_end_and_it_can_be_resumed(tmp_path: Path) -> None:
    execution = {"executor": "sequential", "checkpoint_seconds": 0.2}
    experiment = small(stop={"time": 1500.0}, execution=execution)
    whole = compare(experiment, ["seafl"], [0, 1], tmp_path / "whole", jobs=2)
    (tmp_path / "e.toml").write_text(experiment.toml())
    script = "import sys; from offbeat.cli import main; sys.argv[0] = 'offbeat'; main()"
    words = ["compare", "e.toml", "--algorithms", "seafl", "--seeds", "2", "--jobs", "2", "--out", "cut"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    process = subprocess.Popen([sys.executable, "-c", script, *words], **quiet)  # type: ignore[call-overload]
    while process.poll() is None and not list((tmp_path / "cut").glob("*/checkpoint/latest.safetensors")):
        time.sleep(0.02)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    assert children
    assert not psutil.wait_procs(children, timeout=60)[1], "a child of the killed comparison lives on"
    resumed = compare(experiment, ["seafl"], [0, 1], tmp_path / "cut", jobs=2, resume=True)
    assert [entry.rows for entry in resumed.entries] == [entry.rows for entry in whole.entries]
