"""Untuned over tuned times, worked out by hand."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from experiments import defaults
from experiments.harness.measurements import Measurement, write_measurements


def runs(part: str, method: str, *times: float) -> list[Measurement]:
    return [
        Measurement(part=part, method=method, seed=seed, values={"time_to_target": time})
        for seed, time in enumerate(times)
    ]


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Measurement]:
    """Tuned times of a leaderboard: FedBuff's medians are 100 s and 50 s, and FedAsync never gets there once."""
    found = runs("ratio 5", "fedbuff", 90.0, 100.0, 130.0) + runs("Pareto", "fedbuff", 50.0)
    found += runs("ratio 5", "fedasync", inf) + runs("Pareto", "fedasync", 40.0)
    found += runs("Pareto", "seafl", 60.0)
    write_measurements(tmp_path / "leaderboard.csv", found)
    monkeypatch.setattr(defaults, "TUNED", tmp_path / "leaderboard.csv")
    return found


def test_a_ratio_is_that_of_the_medians_on_the_same_fleet(tuned: list[Measurement]) -> None:
    untuned = runs("ratio 5, the rate", "fedbuff", 110.0, 120.0)  # tuned, these seeds take 90 and 100 s
    untuned += runs("Pareto, the rate", "fedbuff", 125.0) + runs("Pareto, three times the rate", "fedbuff", inf)
    untuned += runs("ratio 5, the rate", "fedasync", 80.0)  # no ratio: tuned, it never reaches the target
    untuned += runs("Pareto, polyak from the rate", "fedbuff", 40.0)
    assert defaults.ratios(untuned, tuned, "fedbuff") == {
        "ratio 5, the rate": 115 / 95,
        "Pareto, the rate": 125 / 50,
        "Pareto, three times the rate": inf,
        "Pareto, polyak from the rate": 40 / 50,
    }
    assert defaults.ratios(untuned, tuned, "fedasync") == {}
    # SGD, over the two fleets: median (1.21 + 2.5) / 2, largest 2.5. Polyak from the rate: one fleet, 0.8.
    assert "| fedbuff | - | 1.86 (2.50) | never (never) | - | 0.80 (0.80) | - |" in defaults.table(untuned)


def test_a_method_is_fine_untuned_only_if_median_and_worst_fleet_are(tuned: list[Measurement]) -> None:
    fine = runs("ratio 5, the rate", "fedbuff", 108.0) + runs("Pareto, the rate", "fedbuff", 70.0)  # 1.2 and 1.4
    slow = runs("Pareto, the rate", "fedasync", 81.0)  # 2.025
    said = defaults.findings(fine + slow)
    assert "; SGD, the rate: 1 of 2 (fedbuff); SGD, three" in said
    assert "as shipped" not in said
    shipped = runs("Pareto, polyak from the rate", "fedavg", 40.0) + runs("Pareto, polyak from the rate", "seafl", 50.0)
    tuned_too = [*tuned, *runs("Pareto", "fedavg", 10.0)]  # fedavg takes 4 times as long untuned, seafl 5/6
    write_measurements(defaults.TUNED, tuned_too)
    found = defaults.findings([*fine, *shipped])
    assert "all algorithms as shipped (polyak from the rate): 1 of 2 (seafl)." in found
    another = runs("Pareto, the rate", "seafl", 40.0)
    assert "SGD, the rate: 2 of 3 (not fedasync)" in defaults.findings([*fine, *slow, *another])


def test_auto_is_held_against_the_best_other_algorithm_with_as_many_devices(tuned: list[Measurement]) -> None:
    busy = [replace(each, values=each.values | {"in_training": 90.0}) for each in runs("Pareto", "psurdg", 10.0)]
    rivals = [*tuned, *busy, *runs("Pareto", "auto", 20.0)]  # Pareto: fedbuff 50, fedasync 40, others do not count
    untuned = runs("Pareto, the rate", "auto", 44.0) + runs("ratio 5, the rate", "auto", 80.0, inf, inf)
    assert defaults.over_best_tuned(untuned, rivals) == {"Pareto, the rate": 1.1, "ratio 5, the rate": inf}
    fixed = [
        run
        for rate, time in (("a third of the rate", 66.0), ("the rate", 66.0), ("three times the rate", inf))
        for run in runs(f"Pareto, {rate}", "auto with a fixed step", time) + runs(f"Pareto, {rate}", "auto", 44.0)
    ]
    said = "\n".join(defaults.auto_findings(untuned + fixed, rivals))
    assert "; SGD, the rate: never (1.10 to never)" in said
    assert (
        "fixed step over `auto`: SGD, a third of the rate: 1.50; SGD, the rate: 1.50; SGD, three times the rate: never."
        in said
    )


def test_auto_is_also_held_against_the_best_other_algorithm_as_shipped(tuned: list[Measurement]) -> None:
    shipped = "Pareto, polyak from the rate"
    untuned = runs(shipped, "auto", 30.0) + runs(shipped, "fedbuff", 25.0) + runs(shipped, "seafl", 28.0)
    untuned += runs(shipped, "auto with a fixed step", 10.0)  # no rival
    untuned += runs("Pareto, the rate", "auto", 50.0) + runs("Pareto, the rate", "fedbuff", 10.0)  # not as shipped
    assert defaults.over_best_shipped(untuned) == {shipped: 30 / 25}
    assert "`auto` over the best other algorithm, both as shipped: 1.20 (1.20 to 1.20)" in "\n".join(
        defaults.auto_findings(untuned, tuned)
    )
