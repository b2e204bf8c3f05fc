"""Nodes that come, go and claim to be what they are not, a grid that fails, and a server that is restarted among it.

What must be true of every run is checked by `faulty.outcome`.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from faulty import BAD, DELAYS, NEVER, FaultyGrid, Tampering, experiment, grid_for, outcome, run
from flwr.app import Error, Message
from loopback import deploy, run_config

from offbeat.flower.protocol.codec import pack
from offbeat.flower.protocol.messages import Greeting, Refusal


def test_a_node_that_leaves_in_training_and_comes_back(tmp_path: Path) -> None:
    setting = experiment(stop={"updates": 40})
    found = run(tmp_path, grid_for(setting, away={BAD: (4.2, 6.0)}, delays=DELAYS | {BAD: 3.0}), setting)
    assert found.summary["stopped_by"] == "updates"
    assert found.faults == ["its node is gone"] and found.summary["updates_lost"] == 1
    assert [line["device"] for line in found.of("joined")] == [3]
    assert found.devices[3]["delivered"] >= 1


def test_a_node_that_does_not_reply_and_is_gone_later(tmp_path: Path) -> None:
    """Our own deadline and Flower's notice both count as one loss; another node may then be that device."""
    setting = experiment(stop={"updates": 60})
    details: dict[str, Any] = {"joins": {104: 9.0}, "numbers": {104: 3}, "away": {BAD: (8.2, NEVER)}}
    silent = Tampering(lambda d, v: None)
    found = run(tmp_path, grid_for(setting, delays=DELAYS | {104: 0.5}, tamper=silent, **details), setting)
    assert found.faults == ["no reply within 5 s", "its node is gone"]
    assert found.summary["updates_lost"] == 1 and found.devices[3]["used"] >= 1
    assert [line["device"] for line in found.of("joined")] == [3]


class SlowGrid(FaultyGrid):
    """A look for replies takes so long that others have come by the next one: there is never a quiet moment."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.now += 0.25
        return super().pull_messages(message_ids)


def test_a_deadline_holds_while_replies_come_in_all_the_time(tmp_path: Path) -> None:
    setting = experiment(stop={"time": 20.0})
    silent, delays = Tampering(lambda d, v: None), dict.fromkeys(DELAYS, 0.01)
    found = run(tmp_path, SlowGrid(delays=delays, run_config=run_config(setting), tamper=silent), setting)
    (lost,) = found.of("Lost", device=3)
    assert lost["reason"].startswith("no reply within") and 5.0 <= lost["at"] < 7.0


def test_a_node_that_leaves_while_it_has_nothing_to_do(tmp_path: Path) -> None:
    setting = experiment(stop={"updates": 20}, algorithm={"name": "fedasync", "concurrency": 1})
    found = run(tmp_path, grid_for(setting, away=dict.fromkeys((101, 102, BAD), (4.2, NEVER))), setting)
    assert found.summary["stopped_by"] == "updates" and found.summary["devices"] == 1
    assert found.faults.count("its node is gone") == 3
    assert {line["device"] for line in found.of("Left")} | {line["device"] for line in found.of("Lost")} == {1, 2, 3}


@pytest.mark.parametrize(
    "algorithm", [{"name": "fedbuff", "concurrency": 2, "buffer": 10}, {"name": "fedavg", "cohort": 2}]
)
@pytest.mark.parametrize("leaving", [(100, 101, 102), (101, 102, BAD), (100, 102, BAD)])
def test_busy_and_idle_nodes_leave_together(
    leaving: tuple[int, ...], algorithm: dict[str, Any], tmp_path: Path
) -> None:
    """The first loss makes the policy order an idle device that has left as well, which the session does not know."""
    setting = experiment(stop={"updates": 16}, algorithm=algorithm)
    found = run(tmp_path, grid_for(setting, away=dict.fromkeys(leaving, (4.2, 9.0))), setting)
    assert found.summary["stopped_by"] == "updates" and len(found.of("joined")) == 3
    assert found.summary["devices"] == 4


def test_all_nodes_leave_for_a_while(tmp_path: Path) -> None:
    setting = experiment(stop={"updates": 20})
    found = run(tmp_path, grid_for(setting, away=dict.fromkeys(DELAYS, (4.2, 7.0))), setting)
    assert found.summary["stopped_by"] == "updates" and len(found.of("joined")) == 4


def test_a_node_that_joins_late(tmp_path: Path) -> None:
    setting = experiment(stop={"updates": 20}, deployment={"start_with": 3})
    found = run(tmp_path, grid_for(setting, joins={BAD: 4.0}), setting)
    assert found.summary["stopped_by"] == "updates" and not found.faults
    assert found.record[0]["present"] == [0, 1, 2]
    assert [line["device"] for line in found.of("joined")] == [3] and found.devices[3]["used"] >= 1


def test_a_node_that_claims_the_number_of_another_gets_it_only_when_that_has_left(tmp_path: Path) -> None:
    setting = experiment(stop={"updates": 60})
    details: dict[str, Any] = {"joins": {104: 3.0}, "numbers": {104: 3}, "away": {BAD: (8.2, NEVER)}}
    found = run(tmp_path, grid_for(setting, delays=DELAYS | {104: 0.5}, **details), setting)
    assert found.faults[0] == "node 104: it has partition-id=3, as node 103 has already"
    assert "its node is gone" in found.faults and [line["device"] for line in found.of("joined")] == [3]
    assert found.devices[3]["delivered"] == len(found.of("Uploaded", device=3))


def test_two_nodes_with_one_number_from_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setting = experiment(deployment={"start_seconds": 4.0})
    found = run(tmp_path, grid_for(setting, numbers={BAD: 2}), setting)
    said = capsys.readouterr().out
    assert "node 102: it has partition-id=2, as node 103 has already" in said  # 103 is the quicker one
    assert "beginning with 3 devices: fewer than 4 joined within 4 s" in said
    assert found.summary["stopped_by"] == "updates" and found.record[0]["present"] == [0, 1, 2]


def test_a_number_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setting = experiment(deployment={"start_with": 3})
    found = run(tmp_path, grid_for(setting, numbers={BAD: 4}), setting)
    assert "node 103: it cannot take part: partition-id=4: it must be 0 to 3" in capsys.readouterr().out
    assert found.summary["stopped_by"] == "updates" and found.devices[3]["orders"] == 0


def test_nodes_without_numbers_are_given_some(tmp_path: Path) -> None:
    """Although they cannot know how many samples they will have, which differ from device to device."""
    setting = experiment()
    found = run(tmp_path, grid_for(setting, named=False), setting)
    assert found.summary["stopped_by"] == "updates" and not found.faults
    assert all(device["delivered"] >= 1 for device in found.devices)
    assert found.record[0]["samples"] == [360, 361, 360, 361]


def test_a_greeting_that_is_garbage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    greetings = [
        (Greeting(device=3, samples=361, elements=5), "node 103: it has a model of 5 elements, not 2778"),
        (Greeting(device=3, samples=999, elements=2778), "node 103: it claims 999 samples for device 3, not 361"),
        (Refusal(reason="no data"), "node 103: it cannot take part: no data"),
    ]
    setting = experiment(stop={"updates": 25}, deployment={"start_with": 3, "answer_seconds": 20.0})
    told = iter([*greetings])

    def tamper(node: int, question: Message, answer: Message) -> Message | Error:
        greets = node == BAD and "hello" in str(question.content.config_records)
        greeting = next(told, None) if greets else None
        return answer if greeting is None else Message(pack(greeting[0]), reply_to=question)

    found = run(tmp_path, grid_for(setting, tamper=tamper, delays={100: 6.0, 101: 6.0, 102: 6.0, BAD: 0.5}), setting)
    said = capsys.readouterr().out
    assert all(why in said for _, why in greetings)
    assert [line["device"] for line in found.of("joined")] == [3] and found.devices[3]["used"] >= 1


# The grid itself -----------------------------------------------------------------------------------------------------


def test_an_order_that_cannot_be_handed_over(tmp_path: Path) -> None:
    setting = experiment()
    found = run(tmp_path, grid_for(setting, unsendable=Counter({BAD: 2})), setting)
    assert found.summary["stopped_by"] == "updates"
    assert found.faults == ["the message could not be sent"] * 2 and found.summary["updates_lost"] == 2


class Unreadable(Exception):
    """Like protobuf's DecodeError, of no kind that one would think of."""


@pytest.mark.parametrize("error", [Unreadable("Error parsing message"), KeyError("x"), RecursionError("too deep")])
def test_a_reply_that_cannot_be_taken_apart(error: Exception, tmp_path: Path) -> None:
    """Flower gives a reply only once, and what is asked for with a broken one is lost: so each is asked for alone."""
    setting = experiment(stop={"updates": 20})
    found = run(tmp_path, grid_for(setting, broken={BAD: error}), setting)
    assert found.summary["stopped_by"] == "updates"
    assert found.devices[3]["used"] == 0 and found.devices[3]["lost"] >= 1
    assert all(device["used"] >= 3 for device in found.devices[:3])
    assert all(device["lost"] == 0 for device in found.devices[:3]), "no honest answer is lost with it"
    assert found.faults and all("cannot be decoded" in why for why in found.faults)


def test_the_server_is_restarted_among_faults(tmp_path: Path) -> None:
    """What was in flight is lost and in the accounts; nothing from before is taken from anybody."""
    setting = experiment(stop={"updates": 20}, execution={"checkpoint_seconds": 1e-9})
    grid = grid_for(setting, tamper=Tampering(lambda d, v: pack(d, v[:-1]), times=2))
    answer = grid.pull_messages

    def dies(message_ids: Any) -> Any:
        if grid.now > 4.0:
            raise KeyboardInterrupt
        return answer(message_ids)

    grid.pull_messages = dies  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        deploy(setting, grid, tmp_path / "run")
    grid.pull_messages = answer  # type: ignore[method-assign]
    deploy(setting, grid, tmp_path / "run", resume=True)
    found = outcome(tmp_path / "run")
    assert found.summary["stopped_by"] == "updates" and found.summary["updates_used"] == 20
    assert found.of("resumed") and found.summary["updates_refused"] >= 1
    assert sum(device["lost"] for device in found.devices) == found.summary["updates_lost"]
