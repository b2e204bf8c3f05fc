"""Several algorithms tuned alike: one budget, winners on seeds that no search has seen, and what is left behind."""

import csv
from dataclasses import replace
from io import StringIO
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from offbeat.comparison.tuning import Trial, tune
from offbeat.comparison.tuning_figures import best_so_far, front_figure, search_figure
from offbeat.comparison.tuning_table import Tuning, pareto, tune_all
from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.results.criterion import Criterion


def experiment(**tables: Any) -> Experiment:
    plain: dict[str, Any] = {
        "stop": {"time": 9.0},
        "data": {"name": "digits", "devices": 6},
        "model": "logistic",
        "local": {"epochs": 1, "learning_rate": 0.03},
        "fleet": {"name": "ratio", "epoch_seconds": 0.3},
        "evaluation": {"every_seconds": 1.0},
        "execution": {"executor": "sequential", "save_model": False},
    }
    return Experiment.parse(plain | tables)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tuning, Path]:
    root = tmp_path_factory.mktemp("tuned") / "out"
    return tune_all(experiment(), ["fedavg", "fedbuff"], 2, out=root, seeds=2, tuning_seeds=[50]), root


def test_all_have_the_same_budget_and_the_same_number_of_devices_in_training(found: tuple[Tuning, Path]) -> None:
    tuning, root = found
    assert [each.trials for each in tuning.tuned] == [2, 2]
    average, buffered = (Experiment.load(root / f"{name}.toml").table()["algorithm"] for name in ("fedavg", "fedbuff"))
    assert average["cohort"] == buffered["concurrency"] == 6  # all of them


def test_winners_are_shown_for_seeds_that_no_search_has_seen(found: tuple[Tuning, Path]) -> None:
    tuning, root = found
    assert {name: list(measures) for name, measures in tuning.reported.items()} == {"fedavg": [0, 1], "fedbuff": [0, 1]}
    with (root / "tuning.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["algorithm"], row["tuning_seeds"], row["reported_seeds"]) for row in rows] == [
        ("fedavg", "50", "0 1"),
        ("fedbuff", "50", "0 1"),
    ]
    assert float(rows[0]["reported_median"]) == pytest.approx(sum(tuning.reported["fedavg"].values()) / 2)
    assert rows[0]["tuning_low"] == ""  # one seed has no interval
    assert all(float(row["tuning_median"]) >= float(row["own_median"]) for row in rows)
    assert tuning.rich_table().row_count == 2


def test_a_directory_is_gone_on_with_only_if_that_is_asked_for(found: tuple[Tuning, Path]) -> None:
    tuning, root = found
    again = tune_all(experiment(), ["fedavg", "fedbuff"], 2, out=root, seeds=2, tuning_seeds=[50], resume=True)
    assert again == tuning
    with pytest.raises(InvalidInput, match="already holds a search: pass resume=True"):
        tune_all(experiment(), ["fedavg", "fedbuff"], 2, out=root, seeds=2, tuning_seeds=[50])


def test_nothing_is_written_if_a_reported_seed_is_among_the_tuning_seeds(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="tuning seeds 1 are also reported"):
        tune_all(experiment(), ["fedavg"], 2, out=tmp_path / "out", seeds=2, tuning_seeds=[1])
    assert not (tmp_path / "out").exists()


def test_speed_ups_over_fedavg_are_paired_by_seed(found: tuple[Tuning, Path]) -> None:
    """8 / 4 and 9 / 3 times as fast."""
    times = {"fedavg": {0: 8.0, 1: 9.0}, "fedbuff": {0: 4.0, 1: 3.0}}
    tuning = replace(found[0], criterion=Criterion(kind="time", target=0.9), reported=times)
    shown = printed(tuning.rich_table())
    assert "speed-up over fedavg" in shown and "2.50 (range 2.00-3.00)" in shown and "3.5 s (3 s-4 s)" in shown
    never = replace(tuning, reported={"fedavg": {0: 8.0, 1: inf}, "fedbuff": {0: inf, 1: inf}})
    fedavg, fedbuff = (line.split("│")[2].strip() for line in printed(never.rich_table()).splitlines() if "│" in line)
    assert (fedavg, fedbuff) == ("not reached (8 s-not reached)", "not reached")


def test_every_best_setting_stands_beside_its_importance(found: tuple[Tuning, Path]) -> None:
    shares = {"local.learning_rate": 0.75, "algorithm.server_learning_rate": 0.25}
    fedavg, fedbuff = found[0].tuned
    shown = printed(replace(found[0], tuned=[replace(fedavg, importance=shares), fedbuff]).settings_table())
    rate, server = (fedavg.settings[path] for path in shares)
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    assert cells[:2] == [
        ["fedavg", "local.learning_rate", str(rate), "75 %"],
        ["", "algorithm.server_learning_rate", str(server), "25 %"],
    ]
    assert cells[2][0] == "fedbuff" and {each[3] for each in cells[2:]} == {"too few trials"}


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), max_size=8))
def test_a_front_holds_exactly_the_points_that_none_betters(points: list[tuple[int, ...]]) -> None:
    front = pareto(points)
    for number, point in enumerate(points):
        better = [
            other for other in points if other != point and all(a <= b for a, b in zip(other, point, strict=True))
        ]
        assert (number in front) == (not better)


def test_a_front_of_two_algorithms_by_hand(found: tuple[Tuning, Path]) -> None:
    """10 s for 50 and 8 s for 90 device seconds are the front; 11 s for 60 is worse than the first in both."""
    criterion = Criterion(kind="time", target=0.9)

    def trial(number: int, measure: float, spent: float, *, best: bool) -> Trial:
        settings = {"algorithm.buffer": number}
        return Trial(number=number, settings=settings, measure=measure, costs={"device_seconds": spent}, best=best)

    fedavg, fedbuff = found[0].tuned
    slow = [trial(0, 11.0, 60.0, best=True), trial(2, 10.0, 50.0, best=True), trial(3, inf, inf, best=False)]
    fast = [trial(0, 8.0, 90.0, best=True)]
    tuned = [
        replace(fedavg, finished=slow, settings=slow[1].settings, trials=5),
        replace(fedbuff, finished=fast, settings=fast[0].settings, trials=5),
    ]
    tuning = replace(found[0], criterion=criterion, tuned=tuned, costs=["device_seconds"])
    assert [(name, each.measure) for name, each in tuning.front] == [("fedbuff", 8.0), ("fedavg", 10.0)]
    shown = printed(tuning.front_table())
    assert "fedbuff *" in shown and "fedavg *" in shown and "algorithm.buffer=2" in shown and "11 s" not in shown
    assert best_so_far(tuned[0]) == [(1, 11.0), (3, 10.0), (4, 10.0), (5, 10.0)]
    assert [len(each(tuning).axes) for each in (search_figure, front_figure)] == [1, 1]


def test_a_search_for_several_objectives_stops_no_trial_and_goes_on_where_it_was(tmp_path: Path) -> None:
    given: dict[str, Any] = {"seeds": [50], "costs": ["device_seconds"]}
    first = tune(experiment(), "fedbuff", 5, out=tmp_path, **given)
    assert len(first.finished) == 5 and first.stopped_early == 0
    assert first == tune(experiment(), "fedbuff", 5, out=tmp_path, **given) == tune(experiment(), "fedbuff", 5, **given)
    assert all(each.costs["megabytes"] > 0 for each in first.finished)
    with pytest.raises(InvalidInput, match="did you mean 'device_seconds'"):
        tune(experiment(), "fedbuff", 2, costs=["device_second"])


def test_the_search_is_kept_as_a_table_and_as_figures(found: tuple[Tuning, Path]) -> None:
    tuning, root = found
    with (root / "search.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["algorithm"] for row in rows] == [each.algorithm for each in tuning.tuned for _ in each.finished]
    assert rows[0]["best_so_far"] == "true" and float(rows[0]["device_seconds"]) > 0
    assert (root / "search.pdf").read_bytes().startswith(b"%PDF") and not (root / "front.csv").exists()


def printed(table: Table) -> str:
    console = Console(width=120, file=StringIO())
    console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()
