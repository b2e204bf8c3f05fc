"""A fair comparison: one number of devices in training, which each algorithm translates, and notes on the rest."""

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from offbeat import compare, run
from offbeat.algorithms import POLICIES, FedAsync
from offbeat.algorithms.about import about_of
from offbeat.comparison.fairness import fair_experiments, known_by, note_on_sizes, notes_on, spread_settings
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Action, Event
from offbeat.core.parameters import Layout
from offbeat.core.policy import View
from offbeat.experiment.schema import Experiment
from offbeat.experiment.shipped import load_experiment, shipped
from offbeat.results.result import Result
from offbeat.running.sizing import algorithm_settings, order_seconds, shared_in_training, sized
from offbeat.testing import ScriptedSession


def experiment(**changes: Any) -> Experiment:
    table: dict[str, Any] = {
        "stop": {"time": 600.0},
        "data": {"name": "digits", "devices": 40},
        "model": {"name": "logistic"},
        "local": {"epochs": 2},
        "fleet": {"name": "ratio", "ratio": 5.0},
    }
    return Experiment.parse(table | changes)


def settings_of(base: Experiment, name: str) -> dict[str, Any]:
    (only,) = fair_experiments(base, [name], [0])
    return only.algorithm.policy.model_dump()


def tables(base: Experiment, names: list[str]) -> list[dict[str, Any]]:
    return [each.table() for each in fair_experiments(base, names, [0])]


def test_unless_somebody_says_otherwise_a_tenth_of_the_devices_is_in_training_and_at_least_ten() -> None:
    for devices, number in ((1, 1), (5, 5), (12, 10), (40, 10), (200, 20)):
        assert shared_in_training(experiment(data={"name": "digits", "devices": devices}), ["fedavg"]) == number


def test_fedbuff_beside_fedavg_on_twenty_devices_of_mnist5k_keeps_its_proportions() -> None:
    """It once had 2 devices in training and a buffer of 10, and lost to FedAvg."""
    base = Experiment.parse({"stop": {"time": 200.0}, "data": {"name": "mnist5k", "devices": 20}})
    assert settings_of(base, "fedavg")["cohort"] == 10
    for name in ("fedbuff", "seafl", "seafl2"):
        settings = settings_of(base, name)
        assert (settings["concurrency"], settings["buffer"]) == (10, 5)


@pytest.mark.parametrize("name", POLICIES)
def test_run_and_compare_have_the_same_settings(name: str) -> None:
    for base in (experiment(), experiment(compare={"in_training": 6}), experiment(compare={"in_training": False})):
        alone = sized(base.changed({"algorithm": {"name": name}, "seed": 3}))
        (fair,) = fair_experiments(base, [name], [3])
        assert alone.table()["algorithm"] == fair.table()["algorithm"]
        assert sized(fair) == fair  # nothing is left open


def test_a_run_writes_the_settings_that_it_chose(tmp_path: Path) -> None:
    small = {"data": {"name": "digits", "devices": 6}, "stop": {"time": 3.0}, "algorithm": {"name": "seafl2"}}
    ended = run(experiment(**small), tmp_path / "run")
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["algorithm"]["buffer"] == 3
    assert ended.summary["buffer"] == 3 and ended.summary["staleness_bound"] == 10.0
    with pytest.raises(InvalidInput, match=r"algorithm\.concurrency = 20: there are only 6 devices"):
        run(experiment(**small).changed({"algorithm": {"concurrency": 20}}))


def test_the_number_of_the_algorithm_in_the_file_is_everybodys() -> None:
    """The README's own example: FedBuff with 20 devices in training, the others with their default of 10."""
    base = experiment(algorithm={"name": "fedbuff", "buffer": 10, "concurrency": 20})
    assert settings_of(base, "fedavg")["cohort"] == 20
    assert settings_of(base, "fedasync")["concurrency"] == 20
    assert settings_of(base, "fedbuff")["concurrency"] == 20
    few = experiment(data={"name": "digits", "devices": 6}, algorithm={"name": "fedbuff", "concurrency": 20})
    assert shared_in_training(few, ["fedavg"]) == 6
    first = experiment(compare={"fedavg": {"algorithm": {"cohort": 7}}})
    assert shared_in_training(first, ["fedasync", "fedavg"]) == 7


def test_each_algorithm_translates_the_number_in_its_own_way() -> None:
    base = experiment(compare={"in_training": 6})
    for name in ("fedavg", "fedssmu"):
        assert settings_of(base, name)["cohort"] == 6
    for name in ("fedasync", "fedbuff", "seafl", "seafl2", "port"):
        assert settings_of(base, name)["concurrency"] == 6
    assert settings_of(base, "fedbuff")["buffer"] == settings_of(base, "seafl")["buffer"] == 3
    assert settings_of(base, "safa")["share"] == 6 / 40
    for name in ("sfl", "audg", "adel", "salf", "drop-stragglers", "wait-stragglers", "heterofl"):
        assert about_of(POLICIES[name]).trains_all_devices
        assert settings_of(base, name) == POLICIES[name]().model_dump()


@pytest.mark.parametrize("name", POLICIES)
def test_every_algorithm_keeps_the_number_in_training_or_everybody(name: str) -> None:
    (fair,) = fair_experiments(experiment(compare={"in_training": 6}), [name], [0])
    about = about_of(fair.algorithm.policy)
    if not about.trains_all_devices and name != "fedasmu":  # which has a test of its own
        assert about.in_training is not None
        assert getattr(fair.algorithm.policy, about.in_training) == 6


@pytest.mark.parametrize(("ratio", "seconds"), [(1.0, 100.0), (20.0, 600.0)])
def test_fedasmu_keeps_the_number_in_training_on_average(ratio: float, seconds: float) -> None:
    """40 devices, 8 of them wanted in training; orders go out in eights, and the first come all at once."""
    base = experiment(fleet={"name": "ratio", "ratio": ratio}, compare={"in_training": 8}, stop={"time": seconds})
    (fair,) = fair_experiments(base, ["fedasmu"], [0])
    assert run(fair).summary["in_training"] == pytest.approx(8, rel=0.1)
    assert settings_of(base, "fedasmu")["cohort"] == 8
    given = base.changed({"compare": {"fedasmu": {"algorithm": {"period": 3.0}}}})
    assert run(fair_experiments(given, ["fedasmu"], [0])[0]).summary["in_training"] == pytest.approx(8, rel=0.25)


def test_an_order_takes_its_way_there_its_training_and_its_way_back() -> None:
    # Epochs of 1 s, two of them; 650 numbers of a logistic model are 2,600 bytes or 20.8 kbit: 0.0208 s down at
    # 1 Mbit/s and 0.208 s up at 0.1 Mbit/s, each with 0.5 s of latency.
    base = experiment(fleet={"name": "ratio", "ratio": 1.0, "epoch_seconds": 1.0})
    slow = base.changed({"network": {"downlink_mbps": 1.0, "uplink_mbps": 0.1, "latency": 0.5}})
    assert order_seconds(slow) == pytest.approx([2 + 0.5 + 0.0208 + 0.5 + 0.208] * 40)


def test_what_is_said_of_one_algorithm_goes_before_the_file_s_own() -> None:
    base = experiment(
        algorithm={"name": "fedbuff", "concurrency": 20, "buffer": 3},
        compare={"fedbuff": {"algorithm": {"concurrency": 4}}},
    )
    assert algorithm_settings(base, "fedbuff") == ("fedbuff", {"concurrency": 4, "buffer": 3})
    assert shared_in_training(experiment(compare={"in_training": 40}), ["fedavg"]) == 40  # all of them


def test_settings_that_somebody_gave_stay_and_it_can_be_switched_off() -> None:
    base = experiment(compare={"in_training": 6, "fedavg": {"algorithm": {"cohort": 3}}})
    assert settings_of(base, "fedavg")["cohort"] == 3
    off = experiment(compare={"in_training": False})
    assert shared_in_training(off, ["fedavg"]) is False
    assert settings_of(off, "fedbuff") == POLICIES["fedbuff"]().model_dump()


@pytest.mark.parametrize("name", POLICIES)
def test_what_orders_ask_beyond_the_plain_work_is_noted(name: str) -> None:
    policy, layers = POLICIES[name](), Layout.of([("a.weight", (2, 1), True), ("b.weight", (1, 2), True)])
    session = ScriptedSession(policy, devices=24, start=[0.0] * 4, layout=layers, speeds=[100.0] * 24, horizon=1e4)
    plain = session.local.order(0)
    if any(given.order != plain for given in session.first.orders):
        assert about_of(policy).local_differences(policy, session.local)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (0, "compare.in_training = 0: must be a number of devices"),
        (2.5, "compare.in_training = 2.5: must be a number of devices"),
        (True, "compare.in_training = True: must be a number of devices"),
        (41, "compare.in_training = 41: there are only 40 devices"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(value: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        fair_experiments(experiment(compare={"in_training": value}), ["fedavg"], [0])


def test_the_shipped_comparisons_run_as_their_files_say() -> None:
    compared = [each for each in map(load_experiment, shipped()) if each.compared and not each.in_training]
    assert len(compared) >= 4
    for base in compared:
        for name, fair in zip(base.compared, fair_experiments(base, list(base.compared), [0]), strict=True):
            own = base.for_algorithm(name, 0)
            assert fair.algorithm.policy == own.algorithm.policy or base.in_training is None, name
            assert {**fair.table(), "algorithm": {}} == {**own.table(), "algorithm": {}}


def test_what_is_written_down_of_a_comparison_gives_it_again() -> None:
    base = experiment(algorithm={"name": "fedbuff", "buffer": 3})
    again = Experiment.parse(base.given_table())
    assert tables(again, ["fedavg", "fedbuff"]) == tables(base, ["fedavg", "fedbuff"])
    assert tables(base, ["fedavg"])[0]["algorithm"]["cohort"] == 10


def test_a_setting_reaches_every_algorithm_that_knows_it_and_says_which() -> None:
    base = experiment(compare={"mine": {"algorithm": {"name": "fedbuff", "concurrency": 9}}})
    names = {"fedavg": "fedavg", "mine": "fedbuff", "seafl": "seafl"}
    spread = spread_settings(base, list(names), {"buffer": 5})
    assert [settings_of(spread, name).get("buffer") for name in names] == [None, 5, 5]
    assert settings_of(spread, "mine")["concurrency"] == 9
    assert known_by({"buffer": 5}, names) == ["algorithm.buffer = 5: set for mine, seafl; no such setting in fedavg."]
    with pytest.raises(InvalidInput, match=r"algorithm\.buffer = 5: no such setting in fedavg, fedasync"):
        known_by({"buffer": 5}, {"fedavg": "fedavg", "fedasync": "fedasync"})


def notes_of(base: Experiment, names: list[str], in_training: Sequence[float] = ()) -> list[str]:
    """The notes on runs in which these numbers of devices were in training."""
    results = [
        Result(rows=[], summary={"label": name, "in_training": number})
        for name, number in zip(names, in_training or [4.0] * len(names), strict=True)
    ]
    return notes_on(dict(zip(names, fair_experiments(base, names, [0]), strict=True)), results)


class Greedy(FedAsync):
    """Takes twice as many devices as its setting says."""

    def react(self, event: Event, state: Any, view: View) -> Iterator[Action]:
        yield from self.model_copy(update={"concurrency": 2 * self.concurrency}).inherited(event, state, view)

    def inherited(self, event: Event, state: Any, view: View) -> Iterator[Action]:
        return super().react(event, state, view)


def test_the_note_on_devices_in_training_is_about_what_was_measured() -> None:
    base = experiment(stop={"time": 4.0}, data={"name": "digits", "devices": 12}, compare={"in_training": 3})
    compared = compare(base, ["fedasync", Greedy], seeds=1, jobs=1)
    greedy = compared[1].algorithm
    assert f"Not the same for all: devices in training = 3.0 (fedasync), 6.0 ({greedy}), measured." in compared.notes


def test_the_table_says_how_many_devices_are_in_training_and_why() -> None:
    follow = "unset buffers, cohorts, periods and staleness bounds follow in proportion."
    default = "a tenth of the devices, at least 10"
    assert note_on_sizes(experiment(), ["fedavg"]) == f"Devices in training: 10 of 40 ({default}); {follow}"
    own = experiment(algorithm={"name": "fedbuff", "concurrency": 7})
    assert note_on_sizes(own, ["fedavg"]) == f"Devices in training: 7 of 40 (as set); {follow}"
    given = experiment(compare={"in_training": 6})
    assert note_on_sizes(given, ["fedavg"]) == f"Devices in training: 6 of 40 (compare.in_training); {follow}"
    own = experiment(compare={"in_training": False})
    assert note_on_sizes(own, []).startswith("Each algorithm has its own number of devices in training")


def test_notes_say_what_is_not_the_same_for_all() -> None:
    base = experiment(
        compare={
            "fedavg": {"local": {"learning_rate": 0.5}, "algorithm": {"cohort": 3}},
            "fedbuff": {"algorithm": {"concurrency": 4}},
        }
    )
    names = ["fedavg", "fedasync", "fedbuff", "safa"]
    notes = notes_of(base, names, in_training=[2.1, 3.0, 4.0, 40.0])
    assert "Not the same for all: local.learning_rate = 0.5 (fedavg), 0.1 (fedasync, fedbuff, safa)." in notes
    assert (
        "Not the same for all: devices in training = 2.1 (fedavg), 3.0 (fedasync), 4.0 (fedbuff), 40 (safa), measured; "
        "rounds of fedavg wait for their slowest device." in notes
    )
    assert "All devices train all the time in safa." in notes
    assert "Only fedasync: a proximal term in the local loss (prox = 0.005)." in notes
    terms = notes_of(experiment(), ["aso-fed", "fedprox", "moon"])
    for note in (
        "Only aso-fed: a proximal term in the local loss (prox = 0.1).",
        "Only aso-fed: larger learning rates on slower devices.",
        "Only fedprox: a proximal term in the local loss (prox = 0.01).",
        "Only moon: a contrastive term in the local loss (mu = 1, temperature = 0.5).",
    ):
        assert note in terms
    everybody = notes_of(experiment(), ["safa", "sfl"])
    assert not any(note.startswith("All devices are in training") for note in everybody)
    ours = notes_of(experiment(), ["fedavg", "fedsa", "port"])
    assert "Rules that are our reading (see `offbeat list algorithms`): fedsa." in ours
    alike = experiment(local={"prox": 0.01})
    assert notes_of(alike, ["fedasync", "fedbuff"]) == [
        "Rules that are restated (see `offbeat list algorithms`): fedasync."
    ]
    alike = experiment(algorithm={"name": "fedbuff", "concurrency": 4})
    assert notes_of(alike, ["fedavg", "fedbuff"], in_training=[3.8, 4.0]) == []


def test_changing_something_else_leaves_the_number_in_training_to_be_shared_out() -> None:
    base = Experiment(stop={"time": 1.0}, data={"devices": 50}, algorithm="fedavg", compare={"in_training": 20})
    for each in (base, base.changed({"fleet": {"name": "ratio", "ratio": 7.0}}), base.changed({}).changed({"seed": 3})):
        assert fair_experiments(each, ["fedavg"], [0])[0].algorithm.resolved()["cohort"] == 20
    given = base.changed({"algorithm": {"cohort": 5}}).changed({"seed": 3})
    assert fair_experiments(given, ["fedavg"], [0])[0].algorithm.resolved()["cohort"] == 5
