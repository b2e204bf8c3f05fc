"""The tables that drivers use as they are: when a run ends and when it is evaluated."""

from math import inf

import pytest

from offbeat.experiment.run_settings import EvaluationTable, Stop


def test_progress_is_that_of_the_nearest_condition_and_none_of_a_metric() -> None:
    stop = Stop(time=100.0, updates=10)
    assert stop.progress(time=20.0, versions=99, updates=5) == 0.5
    assert stop.progress(time=300.0, versions=0, updates=0) == 1.0
    assert Stop(accuracy=0.9).progress(time=20.0, versions=3, updates=5) == 0.0
    assert (stop.horizon, Stop(updates=1).horizon) == (100.0, inf)


@pytest.mark.parametrize(
    ("stop", "metric", "direction", "row", "reached"),
    [
        (Stop(accuracy=0.9), "accuracy", "max", {"accuracy": 0.9}, "accuracy"),
        (Stop(accuracy=0.9), "accuracy", "max", {"loss": 0.1}, None),
        (Stop(target=2.0), "loss", "min", {"loss": 2.0}, "loss"),
        (Stop(target=2.0), "loss", "min", {"loss": 2.1}, None),
        (Stop(target=2.0), "r2", "max", {"r2": 2.1}, "r2"),
        (Stop(time=1.0), "accuracy", "max", {"accuracy": 1.0}, None),
    ],
)
def test_a_metric_ends_a_run_in_its_own_direction(
    stop: Stop, metric: str, direction: str, row: dict[str, float], reached: str | None
) -> None:
    assert stop.reached(row, metric, "max" if direction == "max" else "min") == reached


def test_the_default_interval_depends_on_what_ends_the_run_and_is_not_written() -> None:
    by_time, by_version = EvaluationTable().scheduled(Stop(time=60.0)), EvaluationTable().scheduled(Stop(updates=9))
    assert (by_time.interval, by_time.every_versions) == (2.0, None)
    assert (by_version.interval, by_version.every_versions) == (inf, 10)
    given = EvaluationTable(every_versions=3)
    assert given.scheduled(Stop(time=60.0)) == given
