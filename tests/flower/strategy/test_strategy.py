"""A policy in the place of a strategy of Flower's: the numbers by hand, Flower's settings, and whatever devices do."""

import json
from collections.abc import Callable, Iterable
from math import sqrt
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from app_grid import AppGrid, adding_app
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result

from offbeat.core.errors import Disconnected, InvalidInput
from offbeat.flower import Async, DelayAdaptive, FedAsync, FedAvg, FedBuff, FedProx, Sfl
from offbeat.results.result import read_run

STEPS, SAMPLES = {0: 1.0, 1: 2.0, 2: 3.0}, {0: 10.0, 1: 20.0, 2: 30.0}
DELAYS = {0: 1.0, 1: 2.0, 2: 30.0}


def grid_of(delays: dict[int, float] | None = None, **settings: Any) -> AppGrid:
    return AppGrid(delays or DELAYS, adding_app(STEPS, SAMPLES), **settings)


def model(start: float = 0.0) -> ArrayRecord:
    return ArrayRecord({"layer.weight": Array(np.full((2, 3), start, np.float32)), "bias": Array(np.array([start]))})


def train(strategy: Async, grid: AppGrid, **settings: Any) -> Result:
    return strategy.start(grid, settings.pop("arrays", model()), **settings)  # type: ignore[arg-type]


def value(result: Result) -> float:
    """The one number of which all elements of the model are copies."""
    (number,) = {float(each) for array in result.arrays.values() for each in array.numpy().ravel()}
    return number


def faults(out: Path) -> list[str]:
    lines = [json.loads(line) for line in (out / "record.jsonl").read_text().splitlines()]
    return [f"{line['device']}: {line['why']}" for line in lines if line["what"] == "fault"]


# Numbers by hand ------------------------------------------------------------------------------------------------------


def test_fedavg_with_all_devices_is_the_mean_weighted_by_num_examples() -> None:
    grid = grid_of()
    result = train(Async(FedAvg()), grid, num_rounds=2)
    # Each version moves by (10 * 1 + 20 * 2 + 30 * 3) / 60 = 7/3, and waits 30 s for the slowest.
    assert value(result) == pytest.approx(14 / 3, rel=1e-6)
    assert result.train_metrics_clientapp[1]["train_loss"] == pytest.approx((20 * 1 + 30 * 2) / 60)
    assert grid.time == 60.0


def test_two_versions_of_fedbuff_by_hand() -> None:
    grid = grid_of()
    result = train(Async(FedBuff(buffer=2), fraction_evaluate=0.0), grid, num_rounds=2)
    # 1 s: node 0 delivers +1 and begins anew from version 0. 2 s: node 1 delivers +2: version 1 = (1 + 2) / 2.
    # 2 s: node 0 delivers another +1 from version 0, of staleness 1, and begins from version 1. 3 s: it delivers +1.
    assert value(result) == pytest.approx(1.5 + (1 / sqrt(2) + 1) / 2, rel=1e-6)
    assert grid.time == 3.0
    assert list(result.train_metrics_clientapp) == [1, 2]
    assert result.train_metrics_clientapp[1]["train_loss"] == pytest.approx((10 * 0 + 20 * 1) / 30)


def test_nodes_evaluate_versions_beside_the_training() -> None:
    result = train(Async(FedAvg(), evaluate_every=2), grid_of({0: 1.0, 1: 1.0}), num_rounds=5)
    versions = result.evaluate_metrics_clientapp
    assert list(versions) == [2, 4, 5]  # every second one, and the last
    step = (10 * 1 + 20 * 2) / 30
    assert [each["mean"] for each in versions.values()] == pytest.approx([2 * step, 4 * step, 5 * step])


def test_the_function_of_the_server_sees_the_first_version_every_so_many_and_the_last() -> None:
    seen: list[tuple[int, float]] = []

    def evaluate(version: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append((version, float(arrays["bias"].numpy()[0])))
        return MetricRecord({"accuracy": 0.1 * version, "time": -1.0, "per-class": [0.5, 0.6]})

    result = train(Async(FedAvg(), evaluate_every=2), grid_of({0: 1.0, 1: 1.0}), num_rounds=3, evaluate_fn=evaluate)
    assert [version for version, _ in seen] == [0, 2, 3]
    assert [number for _, number in seen] == pytest.approx([0.0, 10 / 3, 5.0])
    assert result.evaluate_metrics_serverapp[2] == {"accuracy": 0.2, "time": -1.0, "per-class": [0.5, 0.6]}


# What a client app gets -----------------------------------------------------------------------------------------------


def configs(grid: AppGrid, kind: str = "train") -> list[dict[str, Any]]:
    return [
        dict(message.content.config_records["config"]) for message in grid.sent if message.metadata.message_type == kind
    ]


def test_messages_carry_the_users_config_and_the_round() -> None:
    grid = grid_of({0: 1.0, 1: 1.0})
    config, theirs = ConfigRecord({"lr": 0.1}), ConfigRecord({"batch": 8})
    train(Async(FedAvg()), grid, num_rounds=2, train_config=config, evaluate_config=theirs)
    assert configs(grid) == [{"lr": 0.1, "server-round": number} for number in (1, 1, 2, 2)]
    assert configs(grid, "evaluate") == [{"batch": 8, "server-round": number} for number in (1, 1, 2, 2)]
    assert dict(config) == {"lr": 0.1}


def test_a_proximal_term_is_sent_as_flowers_own_fedprox_sends_it() -> None:
    grid = grid_of({0: 1.0, 1: 1.0})
    train(Async(FedProx(mu=0.5), fraction_evaluate=0.0), grid, num_rounds=1)
    assert configs(grid) == [{"proximal-mu": 0.5, "server-round": 1}] * 2


def test_records_figures_and_functions_may_have_other_names() -> None:
    app = ClientApp()

    @app.train("fit")
    def fit(message: Message, context: Context) -> Message:
        content = {"new": message.content.array_records["model"], "m": MetricRecord({"n": 3, "x": 1.0})}
        assert message.content.config_records["how"]["server-round"] == 1
        return Message(RecordDict(content), reply_to=message)  # type: ignore[arg-type]

    @app.evaluate("score")
    def score(message: Message, context: Context) -> Message:
        return Message(RecordDict({"m": MetricRecord({"n": 3, "y": 2.0})}), reply_to=message)

    names = {"arrayrecord_key": "model", "configrecord_key": "how", "weighted_by_key": "n"}
    strategy = Async(FedAvg(), train_action="fit", evaluate_action="score", **names)  # type: ignore[arg-type]
    result = train(strategy, AppGrid({0: 1.0, 1: 1.0}, app), num_rounds=1)
    assert dict(result.train_metrics_clientapp[1]) == {"x": 1.0}
    assert dict(result.evaluate_metrics_clientapp[1]) == {"y": 2.0}


def test_metrics_are_aggregated_by_the_users_functions() -> None:
    def most(contents: list[RecordDict], key: str) -> MetricRecord:
        return MetricRecord({"most": max(float(each["metrics"][key]) for each in contents)})  # type: ignore[arg-type]

    strategy = Async(FedAvg(), train_metrics_aggr_fn=most, evaluate_metrics_aggr_fn=most)
    result = train(strategy, grid_of(), num_rounds=1)
    assert dict(result.train_metrics_clientapp[1]) == dict(result.evaluate_metrics_clientapp[1]) == {"most": 30.0}


def test_devices_that_measure_different_things_do_not_end_the_run() -> None:
    def tamper(node: int, question: Message, answer: Message) -> Message:
        answer.content.metric_records["metrics"]["curve"] = [0.0] * (node + 1)
        return answer

    result = train(Async(FedAvg()), grid_of(tamper=tamper), num_rounds=1)
    assert value(result) == pytest.approx(7 / 3, rel=1e-6)
    # Lists of different lengths have no mean; they do not hide the rest.
    assert dict(result.train_metrics_clientapp[1]) == {"train_loss": pytest.approx(80 / 60)}


# How many train, and when it ends -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "settings", "expected"),
    [
        (FedAvg(), {"fraction_train": 0.5}, 3),
        (FedAvg(), {"fraction_train": 0.1}, 2),  # min_train_nodes
        (FedBuff(buffer=10), {}, 6),
        (FedBuff(concurrency=4), {}, 4),
    ],
)
def test_fraction_train_says_how_many_train_unless_the_policy_does(
    policy: FedAvg | FedBuff, settings: dict[str, Any], expected: int
) -> None:
    grid = AppGrid(dict.fromkeys(range(6), 1.0), adding_app({}))
    train(Async(policy, fraction_evaluate=0.0, seconds=0.5, **settings), grid, num_rounds=1)
    assert len(grid.sent) == len({message.metadata.dst_node_id for message in grid.sent}) == expected


@pytest.mark.parametrize(
    ("policy", "settings", "words"),
    [
        (FedBuff(concurrency=4), {"fraction_train": 0.5}, "fraction_train = 0.5: FedBuff has concurrency = 4, so"),
        (Sfl(), {"fraction_train": 0.5}, "fraction_train = 0.5: Sfl decides this itself"),
        (FedBuff(concurrency=9), {}, "algorithm.concurrency = 9: there are only 6 devices"),
    ],
)
def test_contradictions_are_refused_before_anything_is_sent(policy: Any, settings: dict[str, Any], words: str) -> None:
    grid = AppGrid(dict.fromkeys(range(6), 1.0), adding_app({}))
    with pytest.raises(InvalidInput, match=words):
        train(Async(policy, **settings), grid)
    assert grid.sent == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"fraction_train": 0.0}, "Async.fraction_train = 0.0"),
        ({"fraction_evaluate": 1.5}, "Async.fraction_evaluate = 1.5"),
        ({"rest_seconds": -1.0}, "Async.rest_seconds = -1.0"),
        ({"target_direction": "up"}, "Async.target_direction = 'up'"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Async(FedAvg(), **settings)


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"Async\('fedbuff'\): pass an algorithm"):
        Async("fedbuff")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"num_rounds": 0}, "num_rounds = 0"), ({"timeout": 0.0}, "timeout = 0.0")],
)
def test_a_start_out_of_range_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        train(Async(FedAvg()), grid_of(), **settings)


def test_a_run_ends_by_seconds_updates_or_a_target() -> None:
    def accuracy(version: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": 0.25 * version})

    def versions(evaluate: Callable[[int, ArrayRecord], MetricRecord] | None = None, **settings: Any) -> int:
        strategy = Async(FedAsync(prox=0.0), fraction_evaluate=0.0, **settings)
        result = train(strategy, grid_of({0: 1.0, 1: 1.0}), num_rounds=100, evaluate_fn=evaluate)
        return max(result.train_metrics_clientapp)

    assert versions(seconds=3.5) == 6
    assert versions(updates=5) == 5
    assert versions(accuracy, target=0.75) == 3
    with pytest.raises(InvalidInput, match=r"target = 0.75: pass an evaluate_fn"):
        versions(target=0.75)
    with pytest.raises(InvalidInput, match=r"target_metric = 'f1': evaluate_fn returns 'accuracy'"):
        versions(accuracy, target=0.75, target_metric="f1")


# Nodes that come and go -----------------------------------------------------------------------------------------------


def test_a_run_begins_when_enough_nodes_are_connected_and_others_may_join_later() -> None:
    grid = grid_of({0: 1.0, 1: 1.0, 2: 1.0}, joins={1: 7.0, 2: 20.0})
    train(Async(FedAvg(), devices=3, fraction_evaluate=0.0), grid, num_rounds=20)
    first = {node: next(m for m in grid.sent if m.metadata.dst_node_id == node) for node in (0, 1, 2)}
    rounds = {node: message.content["config"]["server-round"] for node, message in first.items()}
    assert rounds[0] == rounds[1] == 1
    assert (
        rounds[2] == 15
    )  # a version a second from 7 s on: round 14 begins at 20 s, as it comes, and it is in the next


def test_a_node_that_leaves_is_not_waited_for() -> None:
    grid = grid_of(leaves={2: 10.0})
    result = train(Async(FedAvg()), grid, num_rounds=1)
    assert value(result) == pytest.approx((10 * 1 + 20 * 2) / 30, rel=1e-6)
    assert grid.time == 10.0


def test_a_grid_with_its_own_clock_shows_a_node_that_leaves_at_once() -> None:
    """The list of nodes was read at 10 s, when node 0 replied; the wait ends at 10.5 s because node 1 leaves."""
    grid = grid_of({0: 10.0, 1: 30.0}, leaves={1: 10.5})
    train(Async(FedAvg(), fraction_evaluate=0.0), grid, num_rounds=1)
    assert grid.time == 10.5


def test_a_node_that_does_not_reply_is_given_up_after_the_timeout(tmp_path: Path) -> None:
    def tamper(node: int, question: Message, answer: Message) -> Message | None:
        return None if node == 2 else answer

    strategy = Async(FedAvg(), out=tmp_path / "run", fraction_evaluate=0.0)
    result = train(strategy, grid_of(tamper=tamper), num_rounds=2, timeout=50.0)
    assert value(result) == pytest.approx(2 * (10 * 1 + 20 * 2) / 30, rel=1e-6)
    assert faults(tmp_path / "run") == ["2: no reply within 50 s"]


# What devices do wrong ------------------------------------------------------------------------------------------------


def replaced(**arrays: Any) -> Callable[[Message], RecordDict | Error]:
    def change(answer: Message) -> RecordDict:
        old = {name: each.numpy() for name, each in answer.content.array_records["arrays"].items()}
        new = {name: each for name, each in (old | arrays).items() if each is not None}
        answer.content["arrays"] = ArrayRecord({name: Array(np.asarray(each)) for name, each in new.items()})
        return answer.content

    return change


def counted(value: Any) -> Callable[[Message], RecordDict | Error]:
    def change(answer: Message) -> RecordDict:
        metrics = {"train_loss": 1.0} | ({} if value is None else {"num-examples": value})
        answer.content["metrics"] = MetricRecord(metrics)
        return answer.content

    return change


def also(name: str, record: Any) -> Callable[[Message], RecordDict | Error]:
    def change(answer: Message) -> RecordDict:
        answer.content[name] = record
        return answer.content

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (replaced(bias=np.array([1.0, 2.0])), "the array 'bias' is (2,) float64, not (1,) float64"),
        (replaced(bias=np.array([1.0], np.float32)), "the array 'bias' is (1,) float32, not (1,) float64"),
        (replaced(bias=np.array([np.nan])), "the array 'bias' is not finite"),
        (replaced(bias=np.array([1e300])), "the array 'bias' is not finite"),
        (replaced(bias=None), "wrong names of arrays: 'bias' missing, none unknown"),
        (replaced(more=np.zeros(1)), "wrong names of arrays: none missing, 'more' unknown"),
        (also("other", model()), "the reply has 2 ArrayRecords instead of one"),
        (also("other", MetricRecord({"x": 1})), "the reply has 2 MetricRecords instead of one"),
        (counted(None), "the reply has no metric 'num-examples'"),
        (counted(0), "'num-examples' is 0: it must be an integer, at least 1"),
        (counted(2.5), "'num-examples' is 2.5"),
        (counted(float("nan")), "'num-examples' is nan"),
        (counted([1, 2]), "'num-examples' is [1, 2]"),
        (lambda _: Error(2, "<class 'ZeroDivisionError'>:<'division by zero'>"), "ZeroDivisionError"),
    ],
)
def test_a_bad_reply_is_the_devices_fault_by_name_and_the_run_goes_on(
    change: Callable[[Message], RecordDict | Error], words: str, tmp_path: Path
) -> None:
    def tamper(node: int, question: Message, answer: Message) -> Message | Error:
        if node != 2:
            return answer
        changed = change(answer)
        return changed if isinstance(changed, Error) else Message(changed, reply_to=question)

    out = tmp_path / "run"
    grid = grid_of({0: 1.0, 1: 1.0, 2: 1.0}, tamper=tamper)
    result = train(Async(FedAvg(), out=out, fraction_evaluate=0.0), grid, num_rounds=2)
    assert value(result) == pytest.approx(2 * (10 * 1 + 20 * 2) / 30, rel=1e-6)  # node 2 rests after its first fault
    (fault,) = faults(out)
    assert fault.startswith("2: ") and words in fault
    refused = int("Error" not in words)
    assert read_run(out).summary["updates_refused"] == refused


def test_an_update_beyond_the_norm_bound_is_refused(tmp_path: Path) -> None:
    strategy = Async(FedAvg(), norm_bound=6.0, out=tmp_path / "run", fraction_evaluate=0.0)
    train(strategy, grid_of(), num_rounds=1)
    assert "the update has norm 7.93725, above the bound 6" in faults(tmp_path / "run")[0]  # 3 sqrt(7)


def test_an_evaluation_that_fails_is_left_out() -> None:
    def tamper(node: int, question: Message, answer: Message) -> Message | Error:
        failed = node == 0 and question.metadata.message_type == "evaluate"
        return Error(2, "no data") if failed else answer

    result = train(Async(FedAvg()), grid_of(tamper=tamper), num_rounds=1)
    assert result.evaluate_metrics_clientapp[1]["mean"] == pytest.approx(7 / 3, rel=1e-6)


def test_if_all_devices_fail_again_and_again_the_run_ends_with_the_reason(tmp_path: Path) -> None:
    def tamper(node: int, question: Message, answer: Message) -> Error:
        return Error(2, "no data")

    strategy = Async(FedAvg(), out=tmp_path / "run")
    with pytest.raises(Disconnected, match=r"all devices keep failing; last error: .*no data"):
        train(strategy, grid_of(tamper=tamper))
    assert (tmp_path / "run" / "checkpoint").is_dir()


# Directories ----------------------------------------------------------------------------------------------------------


class BreakingGrid(AppGrid):
    """One whose SuperLink is gone after a minute."""

    def get_node_ids(self) -> Iterable[int]:
        if self.time > 60.0:
            raise httpx.ConnectError("gone")
        return super().get_node_ids()


def test_a_run_goes_on_from_its_checkpoint_and_knows_all_that_came_before(tmp_path: Path) -> None:
    def evaluate(version: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": 0.1 * version})

    def run(grid: AppGrid, **settings: Any) -> Result:
        strategy = Async(FedAvg(), fraction_evaluate=0.0, out=tmp_path / "run", **settings)
        return train(strategy, grid, num_rounds=5, evaluate_fn=evaluate)

    with pytest.raises(Disconnected, match="resume it"):
        run(BreakingGrid(DELAYS, adding_app(STEPS, SAMPLES)))  # with version 2, after 60 s
    parts = run(grid_of(), resume=True)
    # What was in training is lost: the third round begins with those that are ready first, nodes 0 and 1.
    assert value(parts) == pytest.approx(4 * 7 / 3 + (10 * 1 + 20 * 2) / 30, rel=1e-6)
    assert [each["train_loss"] for each in parts.train_metrics_clientapp.values()] == pytest.approx(
        [4 / 3, 4 / 3, 2 / 3, 4 / 3, 4 / 3]
    )
    assert list(parts.evaluate_metrics_serverapp) == [0, 1, 2, 3, 4, 5]
    again = run(BreakingGrid(DELAYS, adding_app(STEPS, SAMPLES)), resume=True)  # it has ended, and nothing is run
    assert value(again) == value(parts)
    assert again.arrays["bias"].dtype == "float64"
    assert again.evaluate_metrics_serverapp == parts.evaluate_metrics_serverapp


def test_a_directory_that_holds_another_run_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(Async(FedAvg(), out=out, fraction_evaluate=0.0), grid_of(), num_rounds=1)
    for settings, words in [
        ({}, "already holds a run: pass resume=True to continue it or pass overwrite=True to replace it"),
        (
            {"resume": True, "seed": 7},
            r"another experiment \(different: .*seed, 0 there and 7 here.*\): choose another directory",
        ),
    ]:
        with pytest.raises(InvalidInput, match=words):
            train(Async(FedAvg(), out=out, fraction_evaluate=0.0, **settings), grid_of(), num_rounds=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="another experiment"):  # with another model
        other = ArrayRecord({"bias": Array(np.zeros(9))})
        train(Async(FedAvg(), out=out, fraction_evaluate=0.0, resume=True), grid_of(), num_rounds=1, arrays=other)


def test_nothing_is_written_without_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train(Async(FedAvg()), grid_of(), num_rounds=1)
    assert list(tmp_path.iterdir()) == []


# Other clocks, other strategies ---------------------------------------------------------------------------------------


class WallClockGrid(AppGrid):
    """One without a clock of its own, whose nodes reply at once."""

    now = None  # type: ignore[assignment]
    wait = None  # type: ignore[assignment]


def test_without_a_clock_of_its_own_a_grid_is_polled_by_the_wall_clock() -> None:
    grid = WallClockGrid({0: 0.0, 1: 0.0}, adding_app(STEPS, SAMPLES))
    assert value(train(Async(FedAvg()), grid, num_rounds=2)) == pytest.approx(10 / 3, rel=1e-6)


def test_rounds_of_others_are_refused() -> None:
    for method in ("configure_train", "configure_evaluate", "aggregate_train", "aggregate_evaluate"):
        with pytest.raises(InvalidInput, match="has no rounds"):
            getattr(Async(FedAvg()), method)(*(None,) * (4 if "configure" in method else 2))


def test_rounds_in_a_subclass_are_refused_since_nobody_would_call_them() -> None:
    class Decaying(Async):
        def configure_train(self, server_round, arrays, config, grid):  # type: ignore[no-untyped-def]
            config["lr"] *= 0.5
            return super().configure_train(server_round, arrays, config, grid)

    with pytest.raises(InvalidInput, match="Decaying overrides configure_train, which Async never calls"):
        train(Decaying(FedBuff(buffer=2)), grid_of())


@pytest.mark.filterwarnings("ignore")  # of TensorBoard's own packages
def test_a_strategy_shows_its_metrics_in_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    strategy = Async(FedBuff(buffer=2), tracking={"tensorboard": str(tmp_path)})
    train(strategy, grid_of(), num_rounds=3, evaluate_fn=lambda version, _: MetricRecord({"accuracy": 0.25 * version}))
    events = EventAccumulator(str(tmp_path / "fedbuff-seed0"))
    events.Reload()
    assert [each.value for each in events.Scalars("accuracy")] == [0.0, 0.25, 0.5, 0.75]
    with pytest.raises(InvalidInput, match="which has none"):
        Async(FedBuff(), tracking={"tensorboard": True})


# Defences -------------------------------------------------------------------------------------------------------------


def test_a_robust_rule_combines_what_nodes_upload() -> None:
    result = train(Async(FedAvg(), trust={"combine": "median"}), grid_of(), num_rounds=1)
    assert value(result) == 2.0  # the median of 1, 2 and 3; their weighted mean is 7/3


def test_claimed_samples_of_nodes_are_capped() -> None:
    result = train(Async(FedAvg(), trust={"most_samples": 10}), grid_of(), num_rounds=1)
    assert value(result) == 2.0  # 10 samples each: (1 + 2 + 3) / 3


def test_the_server_may_keep_only_the_sum_of_what_nodes_upload() -> None:
    plain, summed = (train(Async(FedAvg(), trust=each), grid_of(), num_rounds=1) for each in ({}, {"sums_only": True}))
    assert value(summed) == pytest.approx(value(plain)) == pytest.approx(7 / 3)


@pytest.mark.parametrize(
    ("policy", "trust", "words"),
    [
        (FedBuff(variant="plato"), {"sums_only": True}, "'FedBuff' needs individual updates with these settings"),
        (FedAvg(), {"combine": "medain"}, "unknown value of trust.combine 'medain'"),
        (DelayAdaptive(), {"combine": "median"}, "'DelayAdaptive' does not make its versions from a weighted mean"),
        (FedAvg(), {"combine": "aflguard"}, "'aflguard': pass trusted_fn, a function that trains a version"),
        (FedAvg(), {"combine": "zeno++", "trusted_samples": 50}, "the samples are those that trusted_fn trains on"),
        (
            FedAsync(prox=0.0),
            {"combine": "krum"},
            "'FedAsync' uses one update at a time, and the rule compares several",
        ),
    ],
)
def test_defences_that_cannot_work_are_refused(policy: Any, trust: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Async(policy, trust=trust)


def moving_by(step: float, seen: list[tuple[int, float]]) -> Callable[[int, ArrayRecord], ArrayRecord]:
    """A `trusted_fn` that adds a number to every element, and notes what it is given."""

    def trained(version: int, arrays: ArrayRecord) -> ArrayRecord:
        seen.append((version, float(arrays["bias"].numpy()[0])))
        return ArrayRecord(
            {name: Array(array.numpy() + array.numpy().dtype.type(step)) for name, array in arrays.items()}
        )

    return trained


def test_updates_of_nodes_are_compared_with_what_the_server_trains_itself() -> None:
    seen: list[tuple[int, float]] = []
    strategy = Async(FedAvg(), trust={"combine": "aflguard", "tolerance": 1.5}, trusted_fn=moving_by(1.0, seen))
    result = train(strategy, grid_of(), num_rounds=2)
    # The server moves by 1. Node 2 moves by 3, which is 2 from there and more than 1.5: it counts as no movement.
    assert value(result) == pytest.approx(2 * (10 * 1 + 20 * 2) / 60, rel=1e-6)
    assert seen == [(0, 0.0), (1, pytest.approx(5 / 6, rel=1e-6))]


def test_an_update_that_is_mixed_in_at_once_is_compared_with_the_servers_too(tmp_path: Path) -> None:
    grid, seen = AppGrid({0: 1.0, 1: 5.0}, adding_app({0: 5.0, 1: -4.0})), list[tuple[int, float]]()
    strategy = Async(
        FedAsync(prox=0.0, alpha=0.5, staleness="constant"),
        fraction_evaluate=0.0,
        trust={"combine": "zeno++"},
        trusted_fn=moving_by(1.0, seen),
        out=tmp_path / "run",
    )
    # Node 0's movements have the norm of the server's, 1, times 1/2; node 1's at 5 s points away.
    assert value(train(strategy, grid, num_rounds=6)) == pytest.approx(2.5, rel=1e-6)
    assert [version for version, _ in seen] == [0, 1, 2, 3, 4, 5]
    run = read_run(tmp_path / "run")
    assert run.rows[-1]["rejected_updates"] == 1.0
    assert "trusted_samples" not in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "trusted_fn returned a NoneType: it must return an ArrayRecord"),
        (
            ArrayRecord({"bias": Array(np.zeros(1))}),
            "trusted_fn, version 0: wrong names of arrays: 'layer.weight' missing",
        ),
        (model(np.nan), "trusted_fn, version 0: the array 'layer.weight' is not finite"),
    ],
)
def test_a_trusted_function_that_returns_no_model_ends_the_run_in_one_sentence(returned: Any, words: str) -> None:
    strategy = Async(FedAvg(), trust={"combine": "zeno++"}, trusted_fn=lambda version, arrays: returned)
    with pytest.raises(InvalidInput, match=words):
        train(strategy, grid_of())


def test_a_trusted_function_that_no_rule_would_call_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"trust\.combine = 'median' does not use it, only 'aflguard' and 'zeno"):
        Async(FedAvg(), trust={"combine": "median"}, trusted_fn=moving_by(1.0, []))
