"""The `[trust]` table: parsed, written, and refused before anything starts."""

from typing import Any

import pytest

import offbeat
from offbeat import Experiment, InvalidInput
from offbeat.core.combining import Combiner, Contributions, Movement
from offbeat.core.policy import View
from offbeat.experiment.shipped import load_experiment
from offbeat.trust.robust import TrimmedMean

TINY: dict[str, Any] = {
    "stop": {"versions": 3},
    "data": {"name": "digits", "devices": 10},
    "model": "logistic",
    "local": {"epochs": 1},
    "algorithm": {"name": "fedbuff", "buffer": 4, "concurrency": 5},
}


class First(Combiner):
    """The first movement of all."""

    def combine(self, contributions: Contributions, state: object, view: View) -> Movement:
        return lambda block: contributions.one(0, block)


def test_a_table_gives_a_rule_with_its_settings_and_survives_writing() -> None:
    experiment = Experiment(**TINY, trust={"combine": "trimmed-mean", "attackers": 0.3, "clip": "auto"})
    assert experiment.trust.combiner == TrimmedMean(attackers=0.3)
    assert experiment.table()["trust"] == {"combine": "trimmed-mean", "attackers": 0.3, "clip": "auto"}
    assert Experiment.parse(experiment.table()).table() == experiment.table()


def test_an_empty_table_leaves_no_trace() -> None:
    assert Experiment(**TINY, trust={}).toml() == Experiment(**TINY).toml()
    assert "trust" not in Experiment(**TINY).table()


@pytest.mark.parametrize("rule", ["median", "krum", "asyncfilter"])
def test_a_rule_that_can_withstand_nobody_in_a_small_buffer_is_refused(rule: str) -> None:
    small = TINY | {"algorithm": {"name": "fedbuff", "buffer": 2, "concurrency": 5}}
    with pytest.raises(InvalidInput, match=f"algorithm.buffer = 2: trust.combine = '{rule}' withstands no hostile"):
        Experiment(**small, trust={"combine": rule})
    for each in ("throttle", "centred-clipping", "zeno++"):
        assert Experiment(**small, trust={"combine": each}).trust.combiner is not None


def test_a_rule_of_the_user_is_named_like_any_other() -> None:
    experiment = Experiment(**TINY, trust={"combine": f"{__name__}:First"})
    assert offbeat.run(experiment).summary["versions"] == 3


@pytest.mark.parametrize("rule", ["aflguard", "zeno++"])
def test_the_server_trains_on_trusted_samples_that_it_does_not_evaluate_on(rule: str) -> None:
    experiment = Experiment(**TINY, trust={"combine": rule, "trusted_samples": 50})
    one, two = offbeat.run(experiment), offbeat.run(experiment)
    assert one.rows == two.rows and "rejected_updates" in one.rows[-1]
    with pytest.raises(InvalidInput, match=r"trust\.trusted_samples = 100000: there are only"):
        offbeat.run(experiment.replace({"trust.trusted_samples": 100_000}))


@pytest.mark.parametrize(
    ("trust", "message"),
    [
        ({"combine": "medain"}, "unknown value of trust.combine 'medain': did you mean 'median'"),
        ({"clip": "on"}, "trust.clip"),
        ({"clip": -1.0}, "trust.clip"),
        ({"combine": "krum", "attackers": 0.7}, "trust.attackers = 0.7"),
        ({"combine": "median", "buckets": 3}, "'buckets'"),
        ({"atackers": 0.1}, r"unknown key of \[trust\] without a combining rule, 'atackers': known: clip,"),
        ({"combine": "json:dumps"}, "must be a subclass of offbeat.policy.Combiner"),
    ],
)
def test_a_bad_table_is_refused_in_one_sentence(trust: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Experiment(**TINY, trust=trust)


def test_with_sums_only_a_run_is_the_same_and_survives_writing() -> None:
    plain, summed = Experiment(**TINY), Experiment(**TINY, trust={"sums_only": True, "most_samples": 10**6})
    assert summed.table()["trust"] == {"sums_only": True, "most_samples": 10**6}
    assert Experiment.parse(summed.table()).table() == summed.table()
    one, other = offbeat.run(plain), offbeat.run(summed)
    assert [row["accuracy"] for row in one.rows] == [row["accuracy"] for row in other.rows]
    assert "trust" not in Experiment(**TINY, trust={"sums_only": False}).table()


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"algorithm": "fedasync"}, r"'fedasync' needs individual updates with these settings; use one of fedavg, "),
        ({"algorithm": {"name": "fedbuff", "variant": "plato"}}, "'fedbuff' needs individual updates with these"),
        ({"trust": {"combine": "median"}}, r"trust.combine = 'median': needs individual updates, leave it out or set"),
        ({"trust": {"clip": "auto"}}, "trust.clip = 'auto': needs individual updates"),
        ({"trust": {"clip": 1.0}}, "trust.clip = 1.0: needs individual updates"),
        ({"trust": {"repeats": 0.5}}, "trust.repeats = 0.5: needs individual updates"),
        ({"privacy": {"noise_multiplier": 1.0}}, "privacy.level = 'device': needs individual updates"),
        ({"selection": "oort"}, "selection of Oort: needs individual updates"),
    ],
)
def test_what_needs_individual_updates_is_refused_with_sums_only(tables: dict[str, Any], message: str) -> None:
    trust = {"sums_only": True} | tables.get("trust", {})
    with pytest.raises(InvalidInput, match=message):
        Experiment(**(TINY | tables | {"trust": trust}))


def test_devices_that_protect_their_examples_may_be_summed() -> None:
    private = {"noise_multiplier": 1.0, "level": "example"}
    assert Experiment(**TINY, privacy=private, trust={"sums_only": True}).trust.sums_only


@pytest.mark.parametrize(
    "changes",
    [
        ["algorithm.name=fedbuff", "privacy.noise_multiplier=1.0"],
        ["trust.combine=multi-krum"],
        ["trust.sums_only=true"],
    ],
)
def test_overrides_of_a_run_need_not_suit_the_algorithms_that_a_file_compares(changes: list[str]) -> None:
    """`offbeat run demo`, whose file compares FedASMU and others that take none of this."""
    with pytest.raises(InvalidInput):
        load_experiment("demo", changes)
    assert load_experiment("demo", changes, alone=True).compare == {}
    with pytest.raises(InvalidInput, match="'fedasync' needs individual updates"):
        load_experiment("demo", ["algorithm.name=fedasync", "trust.sums_only=true"], alone=True)
    assert load_experiment("demo", ["fleet.ratio=110"], alone=True) == load_experiment("demo", ["fleet.ratio=110"])


def test_a_private_run_refuses_rules_that_mix_devices() -> None:
    private = {"noise_multiplier": 1.0, "clip": 1.0}
    with pytest.raises(InvalidInput, match=r"trust.combine = 'median': with \[privacy\]"):
        Experiment(**TINY, privacy=private, trust={"combine": "median"})
    with pytest.raises(InvalidInput, match=r"trust.clip = 'auto': with \[privacy\]"):
        Experiment(**TINY, privacy=private, trust={"clip": "auto"})


@pytest.mark.parametrize("name", ["feddyn", "ca2fl", "adel"])
def test_an_algorithm_without_a_mean_refuses_a_rule_but_not_clipping(name: str) -> None:
    others = {key: value for key, value in TINY.items() if key != "algorithm"} | {"stop": {"time": 10.0}}
    with pytest.raises(InvalidInput, match=f"trust.combine = 'median': '{name}' does not make its versions"):
        Experiment(**others, algorithm=name, trust={"combine": "median"})
    assert Experiment(**others, algorithm=name, trust={"clip": "auto"}).trust.screen is not None


@pytest.mark.parametrize("name", ["fedasync", "fedasmu", "fedssmu"])
def test_an_algorithm_that_uses_one_update_at_a_time_takes_only_rules_that_judge_single_updates(name: str) -> None:
    tables = TINY | {"algorithm": name, "stop": {"updates": 30}}
    with pytest.raises(
        InvalidInput, match=f"'krum': '{name}' uses one update at a time, .* use throttle, aflguard, zeno"
    ):
        Experiment(**tables, trust={"combine": "krum"})
    for rule, metric in (("throttle", "clip_radius"), ("aflguard", "rejected_updates"), ("zeno++", "rejected_updates")):
        row = offbeat.run(Experiment(**tables, trust={"combine": rule})).rows[-1]
        assert row["updates_used"] == 30 and metric in row
