"""A recommendation: who may race, who goes on, what is said of the winner, and that it can be deployed."""

import csv
import json
import re
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from loopback import LoopbackGrid, deploy, run_config

from offbeat.comparison.race import Entry, best_first, edge, entries_of, finalists
from offbeat.comparison.recommendation import (
    Candidate,
    Recommendation,
    against,
    answer,
    at_edges,
    cost,
    falls_back,
    first_sentence,
    other_wishes,
    recommend,
    slow_share,
    variants,
)
from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.results.criterion import Criterion
from offbeat.results.result import Result
from offbeat.results.statistics import median_of


def experiment(**tables: Any) -> Experiment:
    plain: dict[str, Any] = {
        "stop": {"time": 18.0},
        "data": {"name": "digits", "devices": 8},
        "model": "logistic",
        "local": {"epochs": 1, "learning_rate": 0.03},
        "fleet": {"name": "ratio", "ratio": 5.0, "epoch_seconds": 0.3},
        "evaluation": {"every_seconds": 2.0},
        "execution": {"executor": "sequential", "save_model": False},
    }
    return Experiment.parse(plain | tables)


NAMES = ["fedavg", "fedasync", "fedbuff", "salf"]
FEW = experiment(compare={"in_training": 2})
STAGES: list[tuple[str, int, float]] = []
ANSWERS: list[str] = []
"""What was said of the progress of the recommendation below."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recommendation, Path]:
    root = tmp_path_factory.mktemp("recommended") / "out"
    answer = recommend(
        FEW, NAMES, out=root, seeds=3, on_stage=lambda *stage: STAGES.append(stage), on_answer=ANSWERS.append
    )
    return answer, root


def test_each_algorithm_that_suits_the_experiment_enters_with_its_learning_rate() -> None:
    slow = experiment(network={"latency": 2.0})  # rounds of 18 s / 100 are too short for that
    entries, unsuited = entries_of(slow, ["fedavg", "salf"])
    assert [(each.algorithm, each.rate) for each in entries] == [("fedavg", 0.03)]
    assert entries[0].with_rate(3.0).rate == 0.09
    assert unsuited.keys() == {"salf"} and "too short" in unsuited["salf"]


def test_a_name_that_nobody_knows_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="fedavgg"):
        recommend(experiment(compare={"in_training": 2}), ["fedavg", "fedavgg"], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_who_came_further_is_better_and_the_baseline_is_always_among_the_finalists() -> None:
    (own,), _ = entries_of(experiment(), ["fedavg"])
    names = ("a", "b", "c", "fedavg")
    one, two, three, four = (
        Entry(own.experiment.changed({"algorithm": {"label": name}}), scores)
        for name, scores in zip(names, ({1: 1.0}, {1: 9.0, 3: 5.0}, {1: 3.0, 3: 4.0}, {1: 8.0}), strict=True)
    )
    ranked = best_first([one, two, three, four])
    assert [each.algorithm for each in ranked] == ["c", "b", "a", "fedavg"]
    assert [each.algorithm for each in finalists(ranked, 2, "fedavg")] == ["c", "b", "fedavg"]


def test_a_rate_at_the_edge_of_those_that_were_tried_is_known() -> None:
    (own,), _ = entries_of(experiment(), ["fedavg"])
    own.scores[1] = 1.0
    low, high = own.with_rate(1 / 3), own.with_rate(3.0)
    assert edge(own, [own, low, high]) is None  # no other rate has run
    low.scores[1] = high.scores[1] = 2.0
    rates = [own, low, high]
    assert [edge(each, rates) for each in rates] == [None, 1 / 3, 3.0]
    plain = candidate({0: 1.0})
    assert at_edges([replace(plain, entry=own), replace(plain, entry=high)], rates) == [
        "The learning rate of fedavg, 0.09, is the highest that was tried: a higher one may be better."
    ]


def test_algorithms_race_within_equal_budgets_and_a_third_goes_on(found: tuple[Recommendation, Path]) -> None:
    """Three with 2 of 8 devices, with three rates each: nine entries, three of them to 6 s; or more at the edge."""
    with (found[1] / "race.csv").open() as file:
        rows = list(csv.DictReader(file))
    some = [row for row in rows if row["all_devices"] == "false"]
    everyone = [row for row in rows if row["all_devices"] == "true"]
    assert {row["algorithm"] for row in some} == {"fedavg", "fedasync", "fedbuff"}
    assert len(some) >= 9 and len([row for row in some if row["score_at_6"]]) >= 3
    assert {row["algorithm"] for row in everyone} >= {"salf"} and len(everyone) >= 9
    scaled = {row["algorithm"] for row in everyone} - {"salf"}
    assert len(scaled) == 2 and all(label.endswith(", all devices") for label in scaled)
    limit = sorted(float(row["score_at_2"]) for row in some)[2]
    assert min(float(row["score_at_2"]) for row in some if row["score_at_6"]) <= limit
    assert STAGES[:3] == [
        ("2 of 8 devices in training to 2 s", 3, 1 / 9),
        ("2 of 8 devices in training, other learning rates to 2 s", 6, 1 / 9),
        ("2 of 8 devices in training to 6 s", 3, 1 / 3),
    ]
    assert ANSWERS[0].startswith("So far, 2 of 8 devices in training: fed")
    assert ANSWERS[0].endswith("leads 3 algorithms at 2 s (one seed).")


def test_the_best_rate_of_a_leader_is_not_at_the_edge_unless_that_is_said(found: tuple[Recommendation, Path]) -> None:
    answer, root = found
    with (root / "race.csv").open() as file:
        rows = list(csv.DictReader(file))
    for each in [*answer.candidates, *filter(None, [answer.using_all])]:
        rates = sorted(float(row["learning_rate"]) for row in rows if row["algorithm"] == each.algorithm)
        inside = rates[0] < each.entry.rate < rates[-1]
        said = any(f"The learning rate of {each.algorithm}, {each.entry.rate:g}, is the" in s for s in answer.sentences)
        assert inside != said


def test_both_answers_are_given(found: tuple[Recommendation, Path]) -> None:
    answer, root = found
    assert answer.using_all is not None and answer.using_all.entry.all_devices
    assert answer.using_all.measures.keys() == {0, 1}  # half of the three seeds, rounded up
    assert not any(each.entry.all_devices for each in answer.candidates)
    first, second, *_ = answer.sentences
    assert first.startswith(f"With 2 of 8 devices in training: Run {answer.best.algorithm} with learning rate")
    run = f"Run {answer.using_all.algorithm} with learning rate"
    assert re.match(rf"With all 8 devices in training(, which gained nothing)?: {re.escape(run)}", second)
    assert "times the device-seconds" in second
    deployed = Experiment.load(root / "recommended-all-devices.toml")
    assert deployed.algorithm.title == answer.using_all.algorithm


def test_the_best_on_fresh_seeds_is_recommended_in_words_and_as_a_file(found: tuple[Recommendation, Path]) -> None:
    answer, root = found
    medians = [each.estimate.median for each in answer.candidates]
    assert medians == sorted(medians, reverse=True)  # of the area under the curve of accuracy, most is best
    assert answer.best.measures.keys() == {0, 1, 2}
    text = (root / "recommendation.md").read_text()
    assert text.startswith(f"# {answer.best.algorithm}\n")
    assert f"Run {answer.best.algorithm} with learning rate" in text
    assert "- Devices in training: 2 of 8 (compare.in_training); unset buffers" in text
    assert "MB up" in text and "slowest quarter of the devices" in text
    assert "If one upload in ten were lost, " in text and "If orders took twice as many epochs, " in text
    deployed = Experiment.load(root / "recommended.toml")
    assert deployed.algorithm.name == answer.best.algorithm and deployed.seed == 0
    assert (root / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "fedavg" in {each.algorithm for each in answer.candidates}


def test_a_recommendation_goes_on_from_what_is_there(found: tuple[Recommendation, Path]) -> None:
    answer, root = found

    def watch(*_: Any) -> None:
        raise AssertionError("a run was computed")

    again = recommend(FEW, NAMES, out=root, seeds=3, resume=True, watch=watch)
    assert again.sentences == answer.sentences
    with pytest.raises(InvalidInput, match="already holds a search: pass resume=True"):
        recommend(FEW, NAMES, out=root, seeds=3)
    with pytest.raises(InvalidInput, match="another experiment"):
        recommend(experiment(seed=5), NAMES, out=root, seeds=2, resume=True)


def candidate(measures: dict[int, float], **summary: float) -> Candidate:
    (own, *_), _ = entries_of(experiment(), ["fedavg"])
    results = [Result(rows=[], summary=dict(summary)) for _ in measures]
    return Candidate(entry=own, results=results, measures=measures, estimate=median_of(measures.values()))


def test_what_the_seeds_do_not_tell_apart_is_said() -> None:
    time, value = Criterion(kind="time", target=0.9), Criterion(kind="value", at=10.0)
    near, far = candidate({0: 10.0, 1: 12.0, 2: 10.0}), candidate({0: 9.0, 1: 24.0, 2: 30.0})
    assert against(near, far, time) == (
        "2.00 times as fast, paired by seed (range 0.90 to 3.00, includes 1: not on all 3 seeds)"
    )
    good, bad = candidate({0: 0.9, 1: 0.8}), candidate({0: 0.8, 1: 0.6})
    assert against(good, bad, value) == "+15.0 points, paired by seed (range +10.0 to +20.0, on all 2 seeds)"
    level = candidate({0: 0.8, 1: 0.9})
    assert against(good, level, value) == (
        "+0.0 points, paired by seed (range -10.0 to +10.0, includes 0: not on all 2 seeds)"
    )
    one, other = candidate({0: 5.0}), candidate({0: 10.0})
    assert against(one, other, time) == "2.00 times as fast with one seed, which is too few to distinguish them"
    missing = candidate({0: inf, 1: 24.0, 2: 30.0})
    assert against(near, missing, time) == "3.00 times as fast, paired by seed (range 2.00 to ∞, on all 3 seeds)"
    never = candidate({0: inf})
    assert against(never, never, time) == "neither reaches the target"


COSTS = {"busy_seconds": 9.0, "wasted_seconds": 0.0, "bytes_up": 1.0, "bytes_down": 1.0, "time": 10.0}


def test_an_answer_with_all_devices_that_is_worse_says_so() -> None:
    area = Criterion(kind="area", at=10.0)
    few, more = candidate({0: 0.5, 1: 0.6}, **COSTS), candidate({0: 0.7}, **COSTS)
    assert "With all 8 devices in training: Run" in " ".join(answer([few], area, more, FEW))
    assert "With all 8 devices in training, which gained nothing: Run" in " ".join(answer([more], area, few, FEW))


def test_if_nobody_reaches_the_target_that_is_the_answer() -> None:
    """With seeds 0 and 1 the best accuracies by 20 s are 0.5 and 0.6; what comes later does not count."""
    wanted = Criterion(kind="time", target=0.9, at=20.0)
    rows = [[{"time": 10.0, "accuracy": 0.5}, {"time": 30.0, "accuracy": 0.9}], [{"time": 20.0, "accuracy": 0.6}]]
    plain = candidate({0: inf, 1: inf})
    missed = replace(plain, results=[Result(rows=each, summary={}) for each in rows])
    assert first_sentence(missed, wanted) == (
        "No algorithm reached 90 % accuracy within 20 s with most seeds: allow more time or lower the target. Closest: "
        "fedavg with learning rate 0.03, best accuracy 55.0 % (range 50.0 %-60.0 %) over 2 seeds."
    )
    reached = candidate({0: 4.0, 1: 8.0, 2: inf})
    assert first_sentence(reached, wanted) == (
        "Run fedavg with learning rate 0.03: time to 90 % accuracy 8 s (range 4 s-not reached) over 3 seeds."
    )


def test_a_target_that_is_lost_again_is_warned_of() -> None:
    wanted, summary = Criterion(kind="time", target=0.6, at=20.0), {"time": 20.0}

    def ending(*last: float) -> Candidate:
        rows = [[{"time": 10.0, "accuracy": 0.7}, {"time": 20.0, "accuracy": value}] for value in last]
        plain = candidate(dict.fromkeys(range(len(last)), 9.0))
        return replace(plain, results=[Result(rows=each, summary=summary) for each in rows])

    (warning,) = falls_back(ending(0.3, 0.5, 0.7), wanted)
    assert warning.startswith("It does not hold the target: its final accuracy is 50.0 % (range 30.0 %-70.0 %).")
    assert "stop.target = 0.6" in warning
    assert falls_back(ending(0.3, 0.6, 0.7), wanted) == []
    assert falls_back(ending(0.3), Criterion(kind="value", at=20.0)) == []


def test_who_has_less_time_or_pays_for_traffic_may_want_another() -> None:
    """Accuracies at 0, 2, 6 and 18 s, on straight lines between: the second is ahead until 6 s, and sends less."""
    wanted, slow, soon = Criterion(kind="value", at=18.0), (0.0, 0.1, 0.3, 0.9), (0.0, 0.1, 0.5, 0.6)

    def with_rows(values: tuple[float, ...], traffic: float) -> Candidate:
        rows = [{"time": time, "accuracy": value} for time, value in zip((0.0, 2.0, 6.0, 18.0), values, strict=True)]
        summary = {"bytes_up": traffic, "bytes_down": traffic, "busy_seconds": 9.0, "wasted_seconds": 0.0}
        plain = candidate({0: values[-1]})
        return replace(plain, results=[Result(rows=rows, summary=summary)])

    assert other_wishes([with_rows(slow, 2e6), with_rows(soon, 1e6)], wanted) == [
        "With only 6 s, fedavg would be the best.",
        "The candidate with the lowest traffic is fedavg (accuracy at 18 s 60.0 % (one seed)): 1.00 MB up, "
        "1.00 MB down and 9 device-seconds, 0.0 % of them for updates that were not used.",
    ]
    assert other_wishes([with_rows(slow, 1e6), with_rows((0.0, 0.1, 0.2, 0.3), 2e6)], wanted) == [
        "With only 2 s, fedavg would still be the best."
    ]


def test_circumstances_are_tried_only_if_they_are_not_there_already() -> None:
    longer = {"orders took twice as many epochs": {"local": {"epochs": 2}}}
    assert variants(experiment()) == longer | {"one upload in ten were lost": {"failures": {"lost_upload": 0.1}}}
    assert variants(experiment(failures={"lost_upload": 0.2})) == longer


def test_costs_are_means_over_the_seeds() -> None:
    spent = candidate({0: 1.0, 1: 1.0}, bytes_up=2e6, bytes_down=3e7, busy_seconds=4000.0, wasted_seconds=100.0)
    assert cost(spent) == (
        "2.00 MB up, 30.0 MB down and 4,000 device-seconds, 2.5 % of them for updates that were not used"
    )


def test_the_slow_devices_share_counts_every_use_of_their_samples(tmp_path: Path) -> None:
    """Two of eight devices are the slowest quarter. Each holds 10 samples; these were used 1 and 2 times, the others 4:
    (10 + 20) / (30 + 6 x 40) of what was used, and 20 of 80 samples."""
    own = experiment()
    (tmp_path / "devices.csv").write_text(
        "device,samples,used\n" + "".join(f"{device},10,{used}\n" for device, used in enumerate(used_by_speed(own)))
    )
    result = Result(rows=[], summary={}, experiment=own, directory=tmp_path)
    assert slow_share(result) == (30 / 270, 20 / 80)
    assert slow_share(Result(rows=[], summary={}, experiment=own, directory=tmp_path / "none")) is None


def used_by_speed(own: Experiment) -> list[int]:
    from offbeat.running.sizing import order_seconds

    seconds = order_seconds(own)
    slowest = sorted(range(8), key=lambda device: seconds[device])[-2:]
    return [slowest.index(device) + 1 if device in slowest else 4 for device in range(8)]


def test_from_the_record_of_a_real_run_to_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is named by a path that the nodes of the next run do not have, and its devices were paced."""
    first = experiment(
        data={"name": "digits", "devices": 4},
        local={"epochs": 1},
        algorithm={"name": "fedasync", "concurrency": 4},
        deployment={"paced": True},
    )
    deploy(
        first,
        LoopbackGrid(delays=dict.fromkeys(range(100, 104), 0.1), run_config=run_config(first)).virtual(),
        tmp_path / "real",
    )
    own = first.changed({"fleet": {"name": "record", "path": "real/record.jsonl"}, "stop": {"time": 9.0}})
    monkeypatch.chdir(tmp_path)
    answer = recommend(own, ["fedavg", "fedbuff"], out=tmp_path / "out", seeds=1)
    assert {each.entry.experiment.fleet.name for each in answer.candidates} == {"record"}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ready = Experiment.load(tmp_path / "out" / "recommended.toml")
    grid = LoopbackGrid(delays=dict.fromkeys(range(100, 104), 0.3), run_config=run_config(ready)).virtual()
    deploy(ready, grid, tmp_path / "next")
    assert json.loads((tmp_path / "next" / "summary.json").read_text())["updates_used"] > 0
