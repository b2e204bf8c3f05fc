"""What a run is judged by: values between evaluations, areas, and scores of runs that did not get there."""

from math import inf, nan

import pytest

from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.results.criterion import WORST, Criterion, Kind, mean_until, value_at
from offbeat.results.metric import TargetMetric
from offbeat.results.result import Result
from offbeat.results.rows import Row

LOSS = TargetMetric("loss", "min")


def rows(*values: float, name: str = "accuracy") -> list[Row]:
    """Evaluations at 0, 10, 20 ... seconds."""
    return [{"time": 10.0 * number, name: value} for number, value in enumerate(values)]


def run(*values: float, name: str = "accuracy", stopped_by: str = "time") -> Result:
    """A run with these evaluations."""
    return Result(rows=rows(*values, name=name), summary={"stopped_by": stopped_by})


def test_between_evaluations_the_metric_goes_on_a_straight_line_and_after_the_last_it_stays() -> None:
    assert value_at(rows(0.1, 0.5, 0.7), 12.5) == pytest.approx(0.5 + 0.2 / 4)
    assert value_at(rows(0.1, 0.5, 0.7), 99.0) == 0.7


def test_the_area_is_that_of_trapezoids_by_the_time() -> None:
    """0.2 to 0.4 over 10 s, 0.4 to 0.8 up to half of the next 10 s, where it is 0.6: (3 + 5 x 0.5) / 15."""
    assert mean_until(rows(0.2, 0.4, 0.8), 15.0) == pytest.approx((10 * 0.3 + 5 * 0.5) / 15)
    assert mean_until(rows(0.2, 0.4), 0.0) == 0.2


def test_the_mean_of_a_curve_that_begins_later_counts_from_its_first_evaluation() -> None:
    later = rows(0.0, 0.2, 0.6)[1:]  # 0.2 at 10 s, 0.6 at 20 s, and 0.6 from there on
    # (10 x 0.4 + 10 x 0.6) / (30 - 10) = 0.5; divided by all 30 s it would be 1/3
    assert mean_until(later, 30.0) == pytest.approx(0.5)
    assert mean_until(later, 15.0) == pytest.approx(0.3)  # from 0.2 to 0.4 in 5 s
    assert mean_until(later, 5.0) == 0.2  # before the first evaluation there is only that one


def test_the_time_to_a_target_is_a_score_and_missing_it_costs_the_more_the_further_off() -> None:
    """The best is 0.5, so 0.3 short: 20 x (2 - 1 / 1.3)."""
    criterion = Criterion(kind="time", target=0.8)
    assert criterion.score(run(0.0, 0.4, 0.8, 0.9), 30.0) == 20.0
    assert criterion.score(run(0.0, 0.5, 0.4), 20.0) == pytest.approx(20 * (2 - 1 / 1.3))
    assert criterion.score(run(0.0, 0.4, 0.8), 10.0) == pytest.approx(10 * (2 - 1 / 1.4))  # not within the time


def test_costs_are_those_up_to_the_target_or_to_the_time() -> None:
    """0.8 is reached half-way between 10 s and 20 s: 100 + (300 - 100) / 2 device seconds, 2 + 4 / 2 MB both ways."""
    spent = [(0.0, 0.0), (100.0, 1e6), (300.0, 3e6)]
    costly = [
        row | {"busy_seconds": busy, "bytes_up": sent, "bytes_down": sent}
        for row, (busy, sent) in zip(rows(0.0, 0.6, 1.0), spent, strict=True)
    ]
    result = Result(rows=costly, summary={"stopped_by": "time"})
    reached = Criterion(kind="time", target=0.8)
    assert reached.cost(result, "device_seconds") == pytest.approx(200.0)
    assert reached.cost(result, "megabytes") == pytest.approx(4.0)
    assert Criterion(kind="area", at=15.0).cost(result, "device_seconds") == pytest.approx(200.0)
    assert Criterion(kind="time", target=1.1).cost(result, "device_seconds") == inf


def test_scores_are_better_the_lower_whatever_the_metric() -> None:
    accuracy, loss = Criterion(kind="value", at=10.0), Criterion(kind="value", metric=LOSS, at=10.0)
    assert accuracy.score(run(0.1, 0.9), 10.0) < accuracy.score(run(0.1, 0.8), 10.0)
    assert loss.score(run(2.0, 0.4, name="loss"), 10.0) < loss.score(run(2.0, 0.5, name="loss"), 10.0)
    assert loss.score(run(2.0, nan, name="loss"), 10.0) == WORST


def test_of_two_measures_the_lower_is_better_for_times_and_losses() -> None:
    assert Criterion(kind="time", target=0.9).lower_is_better
    assert Criterion(kind="area", metric=LOSS).lower_is_better
    assert not Criterion(kind="area").lower_is_better


def test_a_diverged_metric_does_not_hide_that_the_target_was_reached() -> None:
    assert Criterion(kind="time", metric=LOSS, target=1.0).score(run(2.0, 1.0, nan, name="loss"), 30.0) == 10.0


def test_a_run_that_diverged_measures_infinitely_bad() -> None:
    value = Criterion(kind="value", metric=LOSS, at=20.0)
    assert value.measure(run(2.0, 0.5, nan, name="loss")) == inf and value.text(inf) == "diverged"
    gain = Criterion(kind="value", metric=TargetMetric("gain", "max"), at=20.0)
    assert gain.measure(run(0.0, nan, nan, name="gain")) == -inf
    again = run(2.0, nan, 1.0, name="loss")  # on a straight line from 2 at 0 s to 1 at 20 s
    assert Criterion(kind="time", metric=LOSS, target=1.5).measure(again) == 10.0


@pytest.mark.parametrize("kind", ["value", "area", "time"])
def test_a_run_that_diverged_is_the_worst_however_good_it_was_before(kind: Kind) -> None:
    """It ends after 10 s with 70 %, which is more than the other ever has."""
    criterion = Criterion(kind=kind, at=40.0, target=0.9 if kind == "time" else None)
    broken = run(0.1, 0.7, stopped_by="diverged: version 10 is not finite")
    slow = run(0.1, 0.1, 0.2, 0.3, 0.4)
    assert criterion.score(broken, 40.0) == WORST > criterion.score(slow, 40.0)
    assert criterion.measure(broken) == (inf if kind == "time" else -inf)
    # Up to 10 s it had not diverged, and a target that it had reached by then it had reached.
    assert criterion.score(broken, 10.0) < criterion.score(slow, 10.0)
    assert Criterion(kind="time", target=0.7).score(broken, 40.0) == 10.0


def test_measures_are_what_people_say() -> None:
    measured = run(0.1, 0.5)
    assert Criterion(kind="time", target=0.3).measure(measured) == pytest.approx(5.0)
    assert Criterion(kind="time", target=0.6).measure(measured) == inf
    assert Criterion(kind="time", target=0.3, at=4.0).measure(measured) == inf  # too late
    assert Criterion(kind="value", at=5.0).measure(measured) == pytest.approx(0.3)
    assert Criterion(kind="time", target=0.6).text(inf) == "not reached"
    assert Criterion(kind="value", at=5.0).text(0.3) == "30.0 %"


def test_what_an_experiment_wants() -> None:
    experiment = Experiment(stop={"time": 60.0})
    assert Criterion.of(experiment).title == "mean accuracy until 60 s"
    assert Criterion.of(experiment, target=0.9).title == "time to 90 % accuracy"
    assert Criterion.of(experiment, kind="value").title == "accuracy at 60 s"
    with pytest.raises(InvalidInput, match="needs a target"):
        Criterion.of(experiment, kind="time")
    with pytest.raises(InvalidInput, match="takes no target"):
        Criterion.of(experiment, kind="area", target=0.9)
    assert Criterion.of(experiment, kind="value", at=30.0).title == "accuracy at 30 s"
    for at in (0.0, 61.0):
        with pytest.raises(InvalidInput, match=r"at most stop\.time, which is 60"):
            Criterion.of(experiment, kind="value", at=at)
    with pytest.raises(InvalidInput, match=r"stop\.time is missing"):
        Criterion.of(Experiment(stop={"versions": 3}))
