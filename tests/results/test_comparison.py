"""Comparisons: numbers worked out by hand on small made-up runs."""

import csv
import io
from collections.abc import Sequence
from math import inf, nan
from statistics import stdev
from typing import Any, Literal

import pytest
from rich.console import Console

from offbeat.core.errors import InvalidInput
from offbeat.results.algorithm_results import AlgorithmResults
from offbeat.results.comparison import Comparison
from offbeat.results.metric import TargetMetric, summarise
from offbeat.results.result import Result
from offbeat.results.rows import Row


def row(time: float, accuracy: float, **others: float) -> Row:
    return {
        "time": time,
        "version": int(time / 10),
        "accuracy": accuracy,
        "loss": 2.0 - accuracy,
        "updates_used": 80,
        "updates_discarded": 15,
        "updates_lost": 5,
        "mean_staleness": 1.5,
        "max_staleness": 4,
        "bytes_up": 2_000_000,
        "bytes_down": 3_000_000,
        "in_flight": 10,
        "busy_seconds": 400.0,
        "wasted_seconds": 100.0,
    } | others


def entry(
    algorithm: str, seed: int, curve: Sequence[tuple[float, float]], reason: str = "time", **others: Any
) -> Result:
    rows = [row(time, accuracy, **others) for time, accuracy in curve]
    summary = summarise(rows, algorithm=algorithm, seed=seed, targets=[0.5, 0.8, 0.9], reason=reason, wall_seconds=1.0)
    return Result(rows=rows, summary={"label": algorithm, "seed": seed} | summary)


def three_algorithms() -> list[Result]:
    """fedavg reaches 80 % at 100, 120 and 200 s, fedbuff at 50, 60 and 80 s, fedasync in one seed of two."""
    return [
        entry("fedavg", 0, [(0, 0.1), (100, 0.8), (200, 0.80)]),
        entry("fedbuff", 0, [(0, 0.1), (50, 0.8), (200, 0.90)]),
        entry("fedavg", 1, [(0, 0.1), (120, 0.8), (200, 0.82)]),
        entry("fedbuff", 1, [(0, 0.1), (60, 0.8), (200, 0.85)]),
        entry("fedavg", 2, [(0, 0.1), (100, 0.7), (200, 0.84)]),
        entry("fedbuff", 2, [(0, 0.1), (80, 0.8), (200, 0.86)]),
        entry("fedasync", 0, [(0, 0.1), (70, 0.85), (200, 0.6)]),
        entry("fedasync", 1, [(0, 0.1), (70, 0.55), (90, 0.5)], "diverged: a loss that is not finite"),
    ]


def by_name(comparison: Comparison) -> dict[str, AlgorithmResults]:
    return {results.algorithm: results for results in comparison.by_algorithm}


def printed(comparison: Comparison, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(comparison.rich_table())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_algorithms_keep_the_order_of_their_first_appearance_with_their_seeds() -> None:
    algorithms = Comparison(three_algorithms(), 0.8).by_algorithm
    assert [(results.algorithm, results.seeds) for results in algorithms] == [
        ("fedavg", [0, 1, 2]),
        ("fedbuff", [0, 1, 2]),
        ("fedasync", [0, 1]),
    ]


def test_the_automatic_target_is_the_highest_that_all_algorithms_reach_in_all_seeds() -> None:
    # 90 % is reached by one seed of fedbuff only, 80 % by all but one seed of fedasync.
    assert Comparison(three_algorithms()).target == 0.5
    assert Comparison(three_algorithms()[:6]).target == 0.8


def test_where_no_listed_target_is_reached_by_all_it_is_the_highest_whole_percent_that_is() -> None:
    late = entry("fedasync", 0, [(0, 0.1), (100, 0.327)])
    later = entry("fedavg", 0, [(0, 0.1), (100, 0.45)])
    assert Comparison([later, late]).target == 0.32
    assert Comparison([late]).target == 0.32


def test_the_automatic_target_is_never_near_the_start_of_the_curves() -> None:
    """With 14 % on ten classes one algorithm was once "9.44 times as fast"."""
    slow = entry("fedavg", 0, [(0, 0.1), (100, 0.14)])
    fast = entry("fedbuff", 0, [(0, 0.1), (50, 0.3), (100, 0.45)])
    comparison = Comparison([slow, fast])
    assert comparison.target == 0.45  # at least half-way from 10 % to 45 %, which one of them reaches
    assert comparison.cells(comparison.by_algorithm[0])["time to 45 %"] == "not reached"
    near = [entry("fedavg", 0, [(0, 0.12), (100, 0.18)]), entry("fedbuff", 0, [(0, 0.12), (100, 0.219)])]
    assert Comparison(near).target == 0.21  # 18 % is half-way, but near chance: less than 12 % + 8.8 %
    assert Comparison([slow]).target is None  # 10 % + 9 %, a tenth of the way to 100 %, were not reached
    assert "Target: the best value that as many algorithms" in comparison.caption
    assert "Target:" not in Comparison([slow, fast], 0.3).caption
    halves = [entry(f"method {n}", 0, [(0, 0.1), (100, end)]) for n, end in enumerate((0.1, 0.31, 0.35, 0.5))]
    assert Comparison(halves).target == 0.31  # three of four reach it; a listed target, 50 %, only one


def test_an_algorithm_that_never_learns_does_not_take_the_target_from_the_others() -> None:
    stuck = entry("fedasync", 0, [(0, 0.1), (100, 0.1)])
    comparison = Comparison([*three_algorithms()[:6], stuck])
    assert comparison.target == 0.8
    assert comparison.cells(comparison.by_algorithm[2])["time to 80 %"] == "not reached"


def test_a_listed_target_that_untrained_models_reach_is_never_taken() -> None:
    assert Comparison([entry("fedavg", 0, [(0, 0.85), (100, 0.871)])]).target == 0.87
    assert Comparison([entry("fedavg", 0, [(0, 0.85), (100, 0.84)])]).target is None


def judged_by(metric: TargetMetric, algorithm: str, values: Sequence[float]) -> Result:
    """A run with these values of a metric, one every 10 s, and a target that none of them reaches."""
    beyond = 9e9 if metric.direction == "max" else -9e9
    others: Row = {"updates_used": 1, "in_flight": 1}
    rows = [{"time": 10.0 * n, "version": n, metric.name: value} | others for n, value in enumerate(values)]
    summary = summarise(
        rows, algorithm=algorithm, seed=0, targets=[beyond], reason="time", wall_seconds=1.0, metric=metric
    )
    return Result(rows=rows, summary=summary)


@pytest.mark.parametrize(
    ("direction", "curves", "target"),
    [
        # The worse of the two comes to 12.34, which is on the easier side of 12: 13.
        ("min", [[50.0, 20.0, 12.34], [50.0, 8.0, 9.0]], 13.0),
        ("min", [[50.0, 50.0], [50.0, 8.04]], 8.1),  # one learns nothing
        ("min", [[41.33, 41.2]], None),  # hardly learned
        ("min", [[41.33, 35.2]], 36.0),
        ("min", [[50.0, 45.0], [50.0, 8.04]], 8.1),  # 45 is near the start
        ("min", [[inf, nan, 20.0]], 20.0),
        ("max", [[-2.0, 0.5, -0.374], [-3.0, -0.374, -0.4]], -0.38),
        ("max", [[0.0, 0.0], [0.0, -1.0]], None),
        ("min", [[nan, nan]], None),
        ("min", [[50.0, nan, nan], [50.0, 8.04]], 8.1),  # what one knew untrained is all that everybody came to
        ("min", [[inf, nan], [50.0, 8.04]], 8.1),  # one has no finite value
        ("max", [[-inf, nan], [-3.0, -0.374]], -0.38),
    ],
)
def test_of_a_metric_that_is_no_share_the_automatic_target_is_a_number_of_two_digits(
    direction: Literal["max", "min"], curves: list[list[float]], target: float | None
) -> None:
    metric = TargetMetric("score", direction)
    comparison = Comparison([judged_by(metric, f"method {n}", values) for n, values in enumerate(curves)])
    assert comparison.target == target
    if target == 13.0:  # from 20 at 10 s to 12.34 at 20 s; from 50 at 0 s to 8 at 10 s
        times = [results.median_time for results in comparison.by_algorithm]
        assert times == pytest.approx([10 + 10 * 7 / 7.66, 10 * 37 / 42])
    if target == 20.0:  # there is no straight line from infinity
        assert comparison.by_algorithm[0].median_time == 20.0


def test_there_is_no_automatic_target_if_nobody_learns() -> None:
    comparison = Comparison([entry("fedavg", 0, [(0, 0.1), (100, 0.1)])])
    assert comparison.target is None
    assert comparison.fastest == []
    assert "time to" not in "\n".join(printed(comparison))
    assert (
        "No target: no algorithm came a tenth of the way from its first evaluation to a perfect accuracy"
        in comparison.caption
    )


def test_a_given_target_near_the_untrained_model_is_remarked_on() -> None:
    start = max(each.rows[0]["accuracy"] for each in three_algorithms())
    note = f"The target is too near the untrained model's {100 * start:.1f} % to compare times: choose a better one."
    near, far = start + 0.09 * (1 - start), start + 0.11 * (1 - start)
    assert note in Comparison(three_algorithms(), near).brief_caption
    assert "too near" not in Comparison(three_algorithms(), far).caption


def test_the_devices_in_training_are_in_the_table_and_in_the_csv() -> None:
    comparison = Comparison(three_algorithms(), 0.8)
    assert comparison.cells(comparison.by_algorithm[0])["in training"] == "10.0"
    assert "in_training_mean" in comparison.csv_text()
    known = [Result(rows=each.rows, summary=each.summary | {"in_training": 7.25}) for each in three_algorithms()]
    assert Comparison(known).by_algorithm[0].in_training == 7.25


def test_notes_stand_under_the_table() -> None:
    text = " ".join(
        " ".join(printed(Comparison(three_algorithms(), 0.8, notes=["Only fedasync: a proximal term."]))).split()
    )
    assert text.endswith("Only fedasync: a proximal term.")


def test_a_caption_has_at_most_five_lines_and_the_whole_one_everything() -> None:
    notes = [f"Only fedbuff: difference {number} of many." for number in range(40)]
    comparison = Comparison(three_algorithms(), 0.8, notes=[*notes, "Not the same for all: a = 1 (x), 2 (y)."])
    table = printed(comparison)
    assert len(table) - table.index(next(line for line in table if line.startswith("Virtual time"))) <= 5
    assert "Not the same for all: a = 1" in comparison.brief_caption  # what matters most comes first
    assert "† fedasync, seed 1: training diverged." in comparison.brief_caption
    assert all(note in comparison.caption for note in notes)
    sizes = "Devices in training: 10 of 20 (a tenth of the devices, at least 10); unset buffers follow in proportion."
    assert sizes in Comparison(three_algorithms(), 0.8, notes=[*notes, sizes]).brief_caption  # below every table
    several = [entry("fedavg", seed, [(0, 0.1), (9, 0.9)], "diverged: not finite") for seed in range(30)]
    assert "more notes." in Comparison(several, 0.8).brief_caption and len(Comparison(several, 0.8).brief_caption) < 420


def test_a_given_target_need_not_be_one_of_the_runs_targets() -> None:
    # Seed 1: from 0.8 at 120 s to 0.82 at 200 s, half of 80 s. Seed 2: 0.7 to 0.84 in 100 s, 0.11 / 0.14 of them.
    times = by_name(Comparison(three_algorithms(), 0.81))["fedavg"].times
    assert times == [None, pytest.approx(160.0), pytest.approx(100 + 100 * 11 / 14)]


def test_times_to_the_target_and_speed_up_over_fedavg() -> None:
    comparison = Comparison(three_algorithms(), 0.8)
    fedavg, fedbuff, fedasync = comparison.by_algorithm
    # Seed 2 of fedavg: 0.7 at 100 s, 0.84 at 200 s, so 0.8 after 0.1 / 0.14 of the 100 s between.
    third = pytest.approx(100 + 100 * 10 / 14)
    assert fedavg.times == [100, 120, third]
    assert (fedavg.first_time, fedavg.median_time) == (100, 120)
    assert fedavg.last_time == third
    # 0.1 at 0 s, 0.85 at 70 s: 0.7 / 0.75 of them.
    assert fedasync.times == [pytest.approx(70 * 70 / 75), None]
    assert fedasync.reached_by_all is False
    # Seed by seed: 100 / 50, 120 / 60 and 171.43 / 80.
    speed_up = comparison.speed_up(fedbuff)
    assert speed_up is not None and (speed_up.median, speed_up.low, speed_up.seeds) == (2.0, 2.0, 3)
    assert speed_up.high == pytest.approx((100 + 100 * 10 / 14) / 80)
    assert comparison.cells(fedbuff)["speed-up"] == "2.00 (2.00-2.14)"
    assert comparison.cells(fedavg)["speed-up"] == "1.00"
    assert comparison.speed_up(fedasync) is None and comparison.cells(fedasync)["speed-up"] == "-"
    assert comparison.fastest == [fedbuff]
    assert comparison.finishers == [fedbuff, fedavg]


def test_a_speed_up_whose_interval_includes_1_is_marked() -> None:
    """Seed by seed 100 / 110, 120 / 60 and 80 / 50: 0.91, 2 and 1.6; the medians alone would say 100 / 60."""
    runs = [entry("fedavg", seed, [(0, 0.1), (time, 0.8)]) for seed, time in enumerate((100, 120, 80))]
    runs += [entry("fedbuff", seed, [(0, 0.1), (time, 0.8)]) for seed, time in enumerate((110, 60, 50))]
    comparison = Comparison(runs)
    assert comparison.cells(comparison.by_algorithm[1])["speed-up"] == "1.60 (0.91-2.00) ~"
    assert "~: includes 1: not distinguishable from fedavg with these seeds." in comparison.caption
    assert "~" not in Comparison(three_algorithms(), 0.8).caption
    one_seed = Comparison([runs[1], runs[4]])
    assert one_seed.cells(one_seed.by_algorithm[1])["speed-up"] == "2.00" and "~" not in one_seed.caption


def test_the_spread_of_a_time_is_a_range_of_few_seeds_and_an_interval_of_five() -> None:
    """The times double from seed to seed: the interval of five is worked out in `statistics.median_of`."""
    runs = [entry("fedavg", seed, [(0, 0.1), (10 * 2**seed, 0.8)]) for seed in range(5)]
    few, enough = Comparison(runs[:4], 0.8), Comparison(runs, 0.8)
    assert few.cells(few.by_algorithm[0])["time to 80 %"] == "30.0 s (10.0-80.0) *"
    assert "median (range) of 4 seeds" in few.caption and "A range is not a confidence interval" in few.caption
    assert enough.cells(enough.by_algorithm[0])["time to 80 %"] == "40.0 s (10.3-156) *"
    assert "median (95 % interval) of 5 seeds" in enough.caption and "range" not in enough.caption


def test_algorithms_without_a_common_seed_have_no_speed_up() -> None:
    comparison = Comparison([entry("fedavg", 0, [(0, 0.1), (50, 0.8)]), entry("fedbuff", 1, [(0, 0.1), (20, 0.8)])])
    assert comparison.speed_up(comparison.by_algorithm[1]) is None


def test_there_is_no_speed_up_unless_fedavg_reached_the_target_in_all_seeds() -> None:
    missed = Comparison(three_algorithms(), 0.82)
    assert by_name(missed)["fedbuff"].reached_by_all
    assert missed.speed_up(by_name(missed)["fedbuff"]) is None
    absent = Comparison([each for each in three_algorithms() if each.algorithm != "fedavg"])
    assert absent.speed_up(absent.by_algorithm[0]) is None


def test_a_tie_has_several_fastest() -> None:
    comparison = Comparison([entry(name, 0, [(0, 0.1), (50, 0.8)]) for name in ("fedavg", "fedbuff")])
    assert comparison.fastest == comparison.by_algorithm


def test_accuracies_costs_and_shares_are_over_seeds() -> None:
    fedavg = Comparison(three_algorithms(), 0.8).by_algorithm[0]
    assert fedavg.final_value == pytest.approx(0.82)
    assert fedavg.final_spread == pytest.approx(0.02)
    assert fedavg.final_spread == stdev([0.80, 0.82, 0.84])
    assert fedavg.mean("best_accuracy") == pytest.approx(0.82)
    assert fedavg.mean("versions") == 20
    # (15 discarded + 5 lost) of 100 updates; 100 of 400 seconds.
    assert fedavg.unused_share == pytest.approx(0.2)
    assert fedavg.wasted_share == pytest.approx(0.25)


def test_shares_of_nothing_are_zero_and_one_seed_has_no_spread() -> None:
    nothing: dict[str, Any] = {
        "updates_used": 0,
        "updates_discarded": 0,
        "updates_lost": 0,
        "busy_seconds": 0.0,
        "wasted_seconds": 0.0,
    }
    results = Comparison([entry("fedavg", 0, [(0, 0.1)], **nothing)]).by_algorithm[0]
    assert (results.unused_share, results.wasted_share, results.final_spread) == (0.0, 0.0, None)


def test_a_divergence_in_any_seed_marks_the_algorithm() -> None:
    comparison = Comparison(three_algorithms(), 0.8)
    assert [results.diverged for results in comparison.by_algorithm] == [False, False, True]
    assert comparison.cells(comparison.by_algorithm[2])["algorithm"] == "fedasync †"
    assert "† fedasync, seed 1: training diverged." in comparison.caption


def test_the_table_says_times_misses_and_the_fastest_in_80_columns() -> None:
    late = [entry("fedasmu", seed, [(0, 0.1), (200, 0.3)]) for seed in range(3)]
    comparison = Comparison(three_algorithms() + late, 0.8)
    lines, text = printed(comparison), " ".join(" ".join(printed(comparison, width=100)).split())
    assert max(len(line.rstrip()) for line in lines) <= 80
    names = ["fedavg", "fedbuff", "fedasync", "fedasmu"]
    firsts = [(line.split() or [""])[0] for line in lines if not line.startswith(" ")]
    assert [word for word in firsts if word in names] == names
    assert "120 s (100-171)" in text
    assert "60.0 s (50.0-80.0) *" in text
    assert "1 of 2 seeds" in text
    assert "not reached" in text
    assert "2.00 (2.00-2.14)" in text
    assert "80 % accuracy" in text
    assert text.count(" 5.00") == 4, "2 MB up and 3 MB down are 5 MB sent"
    assert "2 to 3 seeds" in text


def test_names_are_not_read_as_markup() -> None:
    comparison = Comparison([entry("[bold]x", 0, [(0, 0.9)])], notes=["[compare] says otherwise"])
    shown = " ".join(" ".join(printed(comparison)).split())
    assert "[bold]x" in shown and "[compare] says otherwise" in shown


def test_the_csv_has_plain_numbers_and_leaves_empty_what_does_not_exist() -> None:
    lines = list(csv.DictReader(io.StringIO(Comparison(three_algorithms(), 0.8).csv_text())))
    fedavg, fedbuff, fedasync = lines
    assert [line["algorithm"] for line in lines] == ["fedavg", "fedbuff", "fedasync"]
    assert float(fedbuff["time_to_target_median"]) == 60
    assert float(fedbuff["speed_up_over_fedavg"]) == float(fedbuff["speed_up_over_fedavg_low"]) == 2
    assert float(fedbuff["speed_up_over_fedavg_high"]) == pytest.approx(171.43 / 80, abs=1e-3)
    assert float(fedavg["final_accuracy_std"]) == pytest.approx(0.02)
    assert fedavg["seeds"] == "0 1 2"
    assert (fedasync["seeds_reached"], fedasync["speed_up_over_fedavg"], fedasync["diverged"]) == ("1", "", "true")
    _, alone = csv.DictReader(io.StringIO(Comparison(three_algorithms()[:2], 0.8).csv_text()))
    names = ("speed_up_over_fedavg", "speed_up_over_fedavg_low", "speed_up_over_fedavg_high")
    assert [alone[name] for name in names] == ["2.0", "", ""], "one seed has no interval"
    _, pair = csv.DictReader(io.StringIO(Comparison(three_algorithms()[:4], 0.8).csv_text()))
    assert [alone[name] for name in names] != [pair[name] for name in names] == ["2.0", "2.0", "2.0"]


def test_what_cannot_be_compared_is_refused_in_a_sentence() -> None:
    with pytest.raises(InvalidInput, match="no finished run"):
        Comparison([])
    with pytest.raises(InvalidInput, match=r"target = 80: must be above 0 and at most 1"):
        Comparison(three_algorithms(), 80)
    with pytest.raises(InvalidInput, match="two runs are of fedavg with seed 0"):
        Comparison([*three_algorithms(), three_algorithms()[0]])
