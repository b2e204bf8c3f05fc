"""Which nodes measured the metrics of a row, and what an app without a strategy has made and used."""

from pathlib import Path
from shutil import copytree

import pytest
from one_line import APPS, with_the_one_line

from offbeat.flower.virtual.run import simulate
from offbeat.flower.virtual.settings import AppSettings
from offbeat.results.metric import TargetMetric, time_to
from offbeat.results.result import Result

UNEVEN = {"name": "ratio", "ratio": 20.0}
LOOP = """
import numpy as np
from time import sleep
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
{imports}
app = ServerApp()

@app.main()
def main(grid, context):
    model = [np.zeros((64, 10), np.float32), np.zeros(10, np.float32)]
    def send(nodes):
        record = RecordDict({{"arrays": ArrayRecord(model), "config": ConfigRecord({{"lr": 0.1}})}})
        return set(grid.push_messages([Message(record, node, "train") for node in nodes]))
    pending, used = send(grid.get_node_ids()), 0
    while used < 12:
        for reply in grid.pull_messages(pending):
            pending.discard(reply.metadata.reply_to_message_id)
            used += 1
            model = [(a + b) / 2 for a, b in zip(model, reply.content["arrays"].to_numpy_ndarrays())]
            {report}
            if used < 12:
                pending |= send([reply.metadata.src_node_id])
        sleep(0.1)
"""


def run(app: Path, *run_config: str, nodes: int = 4) -> Result:
    return simulate(app, AppSettings.parse({"nodes": nodes, "fleet": UNEVEN}), run_config=run_config)


def test_versions_of_async_and_of_fedavg_are_evaluated_by_the_same_nodes(tmp_path: Path) -> None:
    rounds = run(APPS / "quickstart-sklearn", "num-server-rounds=2")
    ours = run(with_the_one_line("quickstart-sklearn", tmp_path), "num-server-rounds=8")
    assert ours.rows[-1]["version"] == 8
    sets = {(row["evaluators"], row["evaluation_samples"], row["evaluator_set"]) for row in rounds.rows + ours.rows}
    assert len(sets) == 1 and next(iter(sets))[0] == 4


def test_the_last_version_is_evaluated_also_if_it_was_not_due(tmp_path: Path) -> None:
    line = ("= FedAvg(", "= Async(FedBuff(buffer=2), evaluate_every=2, ")
    result = run(with_the_one_line("quickstart-sklearn", tmp_path, line), "num-server-rounds=5")
    assert result.rows[-1]["version"] == 5 and result.rows[-1]["updates_used"] == 10
    times = [row["time"] for row in result.rows]
    assert times == sorted(times)


def test_evaluations_by_other_nodes_give_no_time_to_a_target(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = copytree(APPS / "quickstart-sklearn", tmp_path / "app")
    server = app / "quickstart_sklearn" / "server_app.py"
    server.write_text(server.read_text().replace("fraction_evaluate=1.0", "fraction_evaluate=0.5"))
    result = run(app, "num-server-rounds=4")
    assert {row["evaluators"] for row in result.rows} == {2}
    assert len({row["evaluator_set"] for row in result.rows}) > 1
    assert "evaluations were made by other nodes" in caplog.text


def test_only_rows_of_the_largest_set_count() -> None:
    rows = [
        {"time": 1.0, "accuracy": 1.0, "evaluation_samples": 3, "evaluator_set": 7},
        {"time": 2.0, "accuracy": 0.2, "evaluation_samples": 90, "evaluator_set": 8},
        {"time": 4.0, "accuracy": 0.6, "evaluation_samples": 90, "evaluator_set": 8},
    ]
    # One node with three samples finds no mistake; all nodes reach 40 % halfway between 2 s and 4 s.
    assert time_to(rows, 0.4) == pytest.approx(3.0)
    assert time_to(rows[:2], 0.1, TargetMetric()) is None


@pytest.mark.parametrize("reports", [False, True])
def test_a_loop_of_its_own_is_counted_right(tmp_path: Path, reports: bool) -> None:
    app = copytree(APPS / "quickstart-numpy", tmp_path / "app")
    imports = "from offbeat.flower import report" if reports else ""
    line = 'report({"norm": float(np.abs(model[0]).sum()), "name": "x"}, version=used)' if reports else "pass"
    (app / "quickstart_numpy" / "server_app.py").write_text(LOOP.format(imports=imports, report=line))
    result = run(app)
    # Each of the 12 updates makes a version; nodes still train when the loop ends.
    assert [row["version"] for row in result.rows] == list(range(1, 13))
    assert (result.summary["updates_used"], result.summary["updates_discarded"]) == (12, 0)
    assert result.summary["target_metric"] == ("norm" if reports else "train_loss")


HEAD = LOOP.partition("    pending, used")[0].format(imports="")
BUFFERED = """    pending, buffer, used = send(grid.get_node_ids()), [], 0
    while used < 9:
        for reply in list(grid.pull_messages(pending)) + list(grid.pull_messages([])):
            pending.discard(reply.metadata.reply_to_message_id)
            buffer.append(reply)
            if len(buffer) == 3:
                model = [a + len(buffer) for a in model]
                used, buffer = used + 3, []
            pending |= send([reply.metadata.src_node_id]) if used + len(buffer) < 9 else set()
        sleep(0.1)
"""
LATE = """    late, used = [], 0
    for _ in range(3):
        record = RecordDict({"arrays": ArrayRecord(model), "config": ConfigRecord({"lr": 0.1})})
        messages = [Message(record, node, "train") for node in grid.get_node_ids()]
        replies = list(grid.send_and_receive(messages, timeout=16.0))
        replies += [each for each in grid.pull_messages(late) if not each.has_error()]
        here = {each.metadata.reply_to_message_id for each in replies}
        late = [each.metadata.message_id for each in messages if each.metadata.message_id not in here]
        before = messages  # a message that is dropped takes the right to ask for its reply with it
        model = [a + len(replies) for a in model]
"""


@pytest.mark.parametrize(
    ("loop", "used", "discarded"),
    [
        # Three versions of three updates each. The other devices train when the loop ends.
        (BUFFERED, 9, 0),
        # Three devices reply within each round, the slowest one in the next; its last order is in flight at the end.
        (LATE, 3 * 3 + 2, 0),
    ],
)
def test_loops_that_use_updates_later_are_counted_right(tmp_path: Path, loop: str, used: int, discarded: int) -> None:
    app = copytree(APPS / "quickstart-numpy", tmp_path / "app")
    (app / "quickstart_numpy" / "server_app.py").write_text(HEAD + loop)
    result = run(app)
    assert [row["version"] for row in result.rows] == [1, 2, 3]
    assert (result.summary["updates_used"], result.summary["updates_discarded"]) == (used, discarded)
    assert result.summary["wasted_seconds"] == 0.0


def test_what_the_policy_discards_is_waste(tmp_path: Path) -> None:
    ours = "= Async(flower.FedAsync(max_staleness=0, prox=0.0, concurrency=2), "
    app = with_the_one_line("quickstart-numpy", tmp_path, ('= STRATEGIES[config["strategy"]](', ours))
    settings = AppSettings.parse({"nodes": 2, "fleet": {"name": "ratio", "ratio": 1.0}})
    result = simulate(app, settings, tmp_path / "run", run_config=["num-server-rounds=3", "fraction-evaluate=0.0"])
    # Two devices train for a second and reply at the same time: the second update is stale by 1, and discarded.
    assert [row["updates_discarded"] for row in result.rows] == [0, 0, 1, 2]
    assert [row["wasted_seconds"] for row in result.rows] == pytest.approx([0.0, 0.0, 1.0, 2.0])
    devices = [line.split(",") for line in (tmp_path / "run" / "devices.csv").read_text().splitlines()]
    assert sorted(row[devices[0].index("used")] for row in devices[1:]) == ["0", "3"]


def test_updates_of_a_round_that_gives_no_model_are_waste(tmp_path: Path) -> None:
    app = copytree(APPS / "quickstart-numpy", tmp_path / "app")
    server = app / "quickstart_numpy" / "server_app.py"
    picky = """class Picky(FedAvg):
    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, replies if server_round != 2 else [])

STRATEGIES = {"fedavg": Picky}
"""
    server.write_text(server.read_text().replace("\n\ndef global", f"\n{picky}\ndef global", 1))
    result = run(app, "num-server-rounds=3", "fraction-evaluate=0.0", nodes=2)
    assert (result.summary["updates_used"], result.summary["updates_discarded"]) == (4, 2)
    assert result.summary["wasted_seconds"] == pytest.approx(result.summary["busy_seconds"] / 3)
    assert result.summary["mean_staleness"] == 0.0
