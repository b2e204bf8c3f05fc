"""What is kept of a run, and that a file gives back what was written."""

from math import inf, nan
from pathlib import Path

import pytest

from experiments.harness.measurements import (
    Measurement,
    identity,
    measured,
    read_measurements,
    slow_share,
    write_measurements,
)
from offbeat import Experiment, InvalidInput, Result


def result(directory: Path | None = None) -> Result:
    rows = [{"time": 0.0, "accuracy": 0.1}, {"time": 10.0, "accuracy": 0.5}, {"time": 20.0, "accuracy": 0.9}]
    summary = {
        "seed": 3,
        "final_accuracy": 0.9,
        "versions": 4.0,
        "updates_used": 8.0,
        "in_training": 2.0,
        "bytes_up": 3e6,
        "bytes_down": 5e6,
        "busy_seconds": 40.0,
        "wasted_seconds": 10.0,
    }
    return Result(rows=rows, summary=summary, directory=directory)


def test_the_measures_of_a_run() -> None:
    found = measured(result(), part="p", method="m", target=0.7)
    assert found.seed == 3
    assert found.values["time_to_target"] == 15.0  # half way from 0.5 at 10 s to 0.9 at 20 s
    assert found.values["mean_accuracy"] == 0.5  # (0.1 + 0.5) / 2 for 10 s, (0.5 + 0.9) / 2 for 10 s
    assert found.values["wasted_share"] == 0.25 and found.values["megabytes_up"] == 3.0
    assert measured(result(), part="p", method="m", target=0.95).values["time_to_target"] == inf


def test_a_run_that_diverged_says_so_and_is_averaged_over_the_time_that_it_should_have_had() -> None:
    broken = result()
    broken.summary |= {"stopped_by": "diverged: version 4 is not finite", "training_loss": nan}
    broken.experiment = Experiment(stop={"time": 40.0})
    found = measured(broken, part="p", method="m", target=0.7)
    assert found.values["diverged"] == 1 and found.values["training_loss"] == inf
    assert found.values["mean_accuracy"] == 0.7  # (0.3 x 10 s + 0.7 x 10 s + 0.9 x 20 s) / 40 s
    assert "diverged" not in measured(result(), part="p", method="m", target=0.7).values


def test_slow_devices_count_by_their_used_updates_and_samples(tmp_path: Path) -> None:
    (tmp_path / "devices.csv").write_text("device,samples,used\n0,10,3\n1,20,2\n2,30,1\n")
    assert slow_share(result(tmp_path), [2]) == pytest.approx(30 / 100)  # 3 x 10 + 2 x 20 + 1 x 30
    assert slow_share(result(tmp_path), [0, 1, 2]) == 1.0


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "results" / "x.csv"
    kept = [
        Measurement(part="a, b", method="m", seed=0, values={"final_accuracy": 0.25, "time_to_target": inf}),
        Measurement(
            part="a, b", method="m", seed=1, values={"final_accuracy": 0.5}, settings="local.learning_rate=0.1"
        ),
    ]
    write_measurements(path, kept)
    assert read_measurements(path) == kept
    assert read_measurements(tmp_path / "none.csv") == []


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidInput, match="not a file of measurements"):
        read_measurements(tmp_path / "x.csv")


def test_where_the_files_are_makes_no_difference_to_which_run_it_is() -> None:
    here, there = (
        Experiment(stop={"time": 1.0}, data={"name": "mnist", "dir": f"{place}/mnist"}) for place in ("a", "b/c")
    )
    assert identity(here) == identity(there) != identity(here.changed({"seed": 1}))
    assert identity(here) != identity(here.changed({"data": {"dir": "a/other"}}))
