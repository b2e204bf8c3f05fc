"""Where a search looks: every algorithm says so, and what it says can be run."""

from typing import Any

import pytest

from offbeat.algorithms import POLICIES
from offbeat.algorithms.about import Choice, Range, about_of
from offbeat.comparison.fairness import fair_experiments
from offbeat.comparison.tuning import own_space, own_values, settings_of, space_of, with_values
from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment


def experiment(**tables: Any) -> Experiment:
    return Experiment.parse(
        {"stop": {"time": 60.0}, "data": {"name": "digits", "devices": 40}, "model": "logistic"} | tables
    )


@pytest.mark.parametrize("name", POLICIES)
def test_every_algorithm_says_where_to_look(name: str) -> None:
    assert about_of(POLICIES[name]).search
    (own,) = fair_experiments(experiment(), [name], [0])
    space = space_of(own)
    assert len(space) > 1 and "local.learning_rate" in space
    assert own_values(own, space).keys() == space.keys()  # the defaults are among what is tried


@pytest.mark.parametrize("name", POLICIES)
def test_both_ends_of_every_range_can_be_set(name: str) -> None:
    (own,) = fair_experiments(experiment(), [name], [0])
    space = space_of(own)
    for end in ("low", "high"):
        values = {
            key: each.values[0] if isinstance(each, Choice) else getattr(each, end) for key, each in space.items()
        }
        changed = with_values(own, values)
        changed.algorithm.policy.check(40)
        assert changed.table()["local"]["learning_rate"] == pytest.approx(values["local.learning_rate"])


def test_ranges_follow_the_experiment() -> None:
    own = experiment(local={"learning_rate": 0.5}, algorithm={"name": "seafl", "buffer": 4, "concurrency": 6})
    space = space_of(own)
    assert space["local.learning_rate"] == Range(0.05, 5.0, log=True)
    assert space["algorithm.buffer"] == Range(2, 6, log=True)  # no more than could ever fill it
    assert "algorithm.concurrency" not in space
    rounds = space_of(experiment(algorithm={"name": "salf", "rounds": 10}))["algorithm.rounds"]
    assert rounds == Range(3, 30, log=True) and isinstance(rounds, Range) and rounds.whole
    assert space_of(experiment(algorithm={"name": "salf", "rounds": 1}))["algorithm.rounds"] == Range(1, 3, log=True)


def test_a_search_keeps_the_optimiser_that_was_chosen_by_default() -> None:
    values = {"local.learning_rate": 0.2, "algorithm.buffer": 4}
    own = experiment(algorithm={"name": "fedbuff"})
    assert own.local.optimiser == with_values(own, values).local.optimiser == "polyak"
    assert settings_of(own, values) == {"local.optimiser": "polyak"} | values  # as `--set` takes them
    given = experiment(algorithm={"name": "fedbuff"}, local={"learning_rate": 0.1})
    assert with_values(given, values).local.optimiser == "sgd" and settings_of(given, values) == values
    with_momentum = values | {"local.momentum": 0.9}  # which polyak does not take
    assert with_values(own, with_momentum).local.optimiser == "sgd" and settings_of(own, with_momentum) == with_momentum
    assert with_values(own, {"local.momentum": 0.9}).local.optimiser == "sgd"


def test_what_the_fleet_says_as_well_is_not_varied() -> None:
    fleet = {"name": "bernoulli", "iteration_seconds": 2.0, "success": 0.5}
    own = experiment(fleet=fleet, algorithm={"name": "audg", "iteration_seconds": 2.0})
    assert space_of(own).keys() == {"local.learning_rate"}


def test_a_number_that_is_left_to_the_algorithm_is_not_varied() -> None:
    assert "algorithm.rounds" not in space_of(experiment(algorithm={"name": "adel", "rounds": "auto"}))


def test_the_own_buffer_of_a_large_fleet_is_in_the_space() -> None:
    """100 of 1000 devices are in training: the buffer is 50, beyond the published range of 2 to 20."""
    (own,) = fair_experiments(experiment().changed({"data": {"devices": 1000}}), ["fedbuff"], [0])
    assert space_of(own)["algorithm.buffer"] == Range(2, 50, log=True)
    assert own_values(own, space_of(own))["algorithm.buffer"] == 50


@pytest.mark.parametrize("name", ["oort", "pisces", "refl", "tifl"])
def test_a_search_varies_the_settings_of_the_selection(name: str) -> None:
    own = experiment(algorithm={"name": "fedbuff"}, selection={"name": name})
    space = {key: each for key, each in space_of(own).items() if key.startswith("selection.")}
    assert space and own_values(own, space).keys() == space.keys()
    for end in ("low", "high"):
        values = {
            key: each.values[0] if isinstance(each, Choice) else getattr(each, end) for key, each in space.items()
        }
        changed = with_values(own, values)
        assert changed.selection.name == name
        assert {key: changed.table()["selection"][key.removeprefix("selection.")] for key in values} == values
    key, each = next(iter(space.items()))
    assert own_space(own, {key: each}) == {key: each}
    with pytest.raises(InvalidInput, match=f"range of '{key}': there is no such setting"):
        own_space(experiment(), {key: each})
