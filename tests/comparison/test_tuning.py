"""The search for an algorithm's settings: one budget, seeds of its own, and no difference whether it was killed."""

import json
import zlib
from pathlib import Path
from typing import Any

import optuna
import pytest

from offbeat.comparison.fairness import SEEDS, check_seeds
from offbeat.comparison.planned import PlannedRun
from offbeat.comparison.race import best_part
from offbeat.comparison.tuning import STUDIES, Tuned, importance_of, tune
from offbeat.core.errors import InvalidInput, OffbeatError
from offbeat.experiment.schema import Experiment
from offbeat.results.criterion import Criterion
from offbeat.results.rows import Row


def experiment(**tables: Any) -> Experiment:
    plain: dict[str, Any] = {
        "stop": {"time": 18.0},
        "data": {"name": "digits", "devices": 6},
        "model": "logistic",
        "local": {"epochs": 1, "learning_rate": 0.03},
        "fleet": {"name": "ratio", "epoch_seconds": 0.3},
        "evaluation": {"every_seconds": 2.0},
        "execution": {"executor": "sequential", "save_model": False},
        "compare": {"in_training": 3},
    }
    return Experiment.parse(plain | tables)


def tried(root: Path) -> list[tuple[str, dict[str, Any], dict[int, float]]]:
    """What the study in a directory has tried: how it ended, its settings, what was reported."""
    storage = f"sqlite:///{root / STUDIES}"
    (name,) = optuna.get_all_study_names(storage)
    trials = optuna.load_study(study_name=name, storage=storage).get_trials()
    return [(each.state.name, each.params, each.intermediate_values) for each in trials]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tuned, Path]:
    root = tmp_path_factory.mktemp("tuned")
    return tune(experiment(), "fedasync", 9, out=root), root


def test_the_budget_is_kept_and_the_first_trial_is_the_experiments_own(found: tuple[Tuned, Path]) -> None:
    tuned, root = found
    trials = tried(root)
    assert tuned.trials == len(trials) == 9
    first = {"local.learning_rate": 0.03, "algorithm.alpha": 0.6, "algorithm.exponent": 0.5}
    assert trials[0][1] | first == trials[0][1]
    assert tuned.stopped_early == sum(state == "PRUNED" for state, _, _ in trials) > 0
    assert not tuned.failures
    assert len({str(values) for _, values, _ in trials}) == 9


def test_after_a_third_of_the_trials_proposals_follow_what_was_found(found: tuple[Tuned, Path]) -> None:
    """Before that they are drawn at random, by a stream of each trial's own."""
    storage = f"sqlite:///{found[1] / STUDIES}"
    (name,) = optuna.get_all_study_names(storage)
    trials = optuna.load_study(study_name=name, storage=storage).get_trials()

    def at_random(number: int) -> dict[str, Any]:
        sampler = optuna.samplers.TPESampler(seed=zlib.crc32(f"fedasync {number}".encode()), n_startup_trials=1000)
        trial = optuna.create_study(sampler=sampler).ask(trials[number].distributions)
        return trial.params

    assert trials[1].params == at_random(1)
    assert trials[8].params != at_random(8)


def test_only_the_best_part_goes_on_at_each_time(found: tuple[Tuned, Path]) -> None:
    """In the first batch of four one goes on (4 // 3), whatever comes later, and the experiment's own settings do."""
    trials = tried(found[1])
    assert all(1 in reported for _, _, reported in trials)
    first = [reported for _, _, reported in trials[:4]]
    best = min(range(4), key=lambda number: first[number][1])
    assert [3 in reported for reported in first] == [number in (0, best) for number in range(4)]


def test_a_trial_that_is_stopped_is_not_run_to_its_end(found: tuple[Tuned, Path]) -> None:
    tuned, root = found
    whole = sum(state == "COMPLETE" for state, _, _ in tried(root))
    assert len(list((root / "runs").glob("*/summary.json"))) == whole * len(tuned.measures)


def test_the_winner_has_the_best_score_of_all_that_came_to_the_end(found: tuple[Tuned, Path]) -> None:
    tuned, root = found
    ends = {reported[9]: values for state, values, reported in tried(root) if state == "COMPLETE"}
    best = ends[min(ends)]
    assert tuned.settings.keys() == best.keys()
    assert tuned.settings["local.learning_rate"] == float(f"{best['local.learning_rate']:.3g}")
    assert tuned.experiment.local.learning_rate == tuned.settings["local.learning_rate"]
    assert tuned.experiment.seed == 0
    assert tuned.experiment.table()["algorithm"]["concurrency"] == 3
    # The score of the area under the curve is minus its mean over the seeds.
    assert min(ends) == pytest.approx(-sum(tuned.measures.values()) / 2)
    assert tuple(tuned.measures) == SEEDS
    # The experiment's own settings were run to the end, and what was found is no worse.
    assert sum(tuned.measures.values()) >= sum(tuned.own_measures.values()) > 0


def test_importances_are_shares_of_every_setting_that_was_varied(found: tuple[Tuned, Path]) -> None:
    tuned, _ = found
    assert tuned.importance.keys() == tuned.settings.keys()
    assert sum(tuned.importance.values()) == pytest.approx(1.0)


class Killed(Exception):
    pass


@pytest.mark.parametrize("rows", [5, 60])
def test_a_search_that_was_killed_goes_on_and_ends_with_the_same_trials(
    rows: int, found: tuple[Tuned, Path], tmp_path: Path
) -> None:
    seen = 0

    def watch(_: PlannedRun, __: float, row: Row | None) -> None:
        nonlocal seen
        seen += row is not None
        if seen == rows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(experiment(), "fedasync", 9, out=tmp_path, watch=watch)
    assert len(tried(tmp_path)) < 9
    assert tune(experiment(), "fedasync", 9, out=tmp_path) == found[0]
    assert tried(tmp_path) == tried(found[1])


def test_a_finished_search_computes_nothing(found: tuple[Tuned, Path]) -> None:
    def watch(_: PlannedRun, __: float, ___: Row | None) -> None:
        raise AssertionError("a run was computed")

    assert tune(experiment(), "fedasync", 9, out=found[1], watch=watch) == found[0]


def test_seeds_that_are_reported_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="tuning seeds 3, 4 are also reported: tune on seeds other than"):
        tune(experiment(), "fedavg", 1, out=tmp_path, seeds=[3, 4, 9])
    with pytest.raises(InvalidInput, match="tuning seeds 9 are also reported"):
        check_seeds(experiment(), [9], reported=[8, 9])
    with pytest.raises(InvalidInput, match="each only once"):
        check_seeds(experiment(), [9, 9])
    assert not list(tmp_path.iterdir())


def test_settings_that_cannot_work_are_failed_trials(tmp_path: Path) -> None:
    broken = experiment(fleet={"name": "ratio", "epoch_seconds": 1.0}, network={"latency": 5.0})
    with pytest.raises(OffbeatError, match=r"all trials of salf failed: .* too short"):
        tune(broken, "salf", 1, out=tmp_path)


def test_with_a_target_runs_end_when_they_reach_it(tmp_path: Path) -> None:
    wanted = Criterion.of(experiment(), target=0.3)
    tuned = tune(experiment(), "fedavg", 1, out=tmp_path, seeds=[7], criterion=wanted)
    assert 0 < tuned.measures[7] < 18.0
    assert tuned.experiment.stop.target is None
    (summary,) = (tmp_path / "runs").glob("*/summary.json")
    assert json.loads(summary.read_text())["time"] < 18.0


def test_of_few_values_the_best_goes_on() -> None:
    assert best_part([3.0, 1.0, 2.0]) == 1.0


def test_the_setting_that_decides_is_the_most_important() -> None:
    """The score is the distance of `a` from 0.2; `b` does nothing."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    for _ in range(40):
        trial = study.ask()
        a = trial.suggest_float("a", 0.0, 1.0)
        trial.suggest_float("b", 0.0, 1.0)
        trial.report(abs(a - 0.2), 1)
        study.tell(trial, abs(a - 0.2))
    shares = importance_of(study.trials)
    assert next(iter(shares)) == "a" and shares["a"] > 0.8
    assert importance_of(study.trials[:3]) == {}


def test_a_trial_that_came_further_counts_as_better_whatever_its_score() -> None:
    """All with `a` up to 0.2 came to the second step, with the worst scores; `b` decides only among the others."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=2))
    for _ in range(40):
        trial = study.ask()
        a, b = trial.suggest_float("a", 0.0, 1.0), trial.suggest_float("b", 0.0, 1.0)
        trial.report(b if a > 0.2 else 2.0, 1)
        if a <= 0.2:
            trial.report(5.0, 3)
        study.tell(trial, 1.0)
    shares = importance_of(study.trials)
    assert shares["a"] > 0.8
