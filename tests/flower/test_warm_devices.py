"""Devices on warm nodes: they hear of notices in the midst of an epoch, need no legs, and keep what they remember.

The nodes are threads of this process and the clock is real, so nothing here depends on who is quicker: what is checked
holds however the messages fall, and that the record replays to the same bits.
"""

from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from loopback import run_config
from msgspec.structs import asdict
from recorded import recorded
from warm_grid import WarmGrid, deploy_warm, warm_grid

from offbeat.algorithms import device_rule
from offbeat.algorithms.fedasmu.device import MergeSettings
from offbeat.core.messages import Assignment
from offbeat.core.orders import Order
from offbeat.core.parameters import Vector
from offbeat.core.policy import Fresh
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import merge
from offbeat.flower.device.app import experiment_client_app
from offbeat.flower.device.mailbox import Mailbox, open_mailbox
from offbeat.flower.protocol.codec import pack, unpack, vector
from offbeat.flower.protocol.messages import (
    MESSAGE_TYPE,
    Begin,
    FreshRequest,
    FreshResponse,
    FromDevice,
    Greeting,
    Hello,
    Merge,
    Notice,
    NoticeReceived,
    Refusal,
    UpdateReply,
)
from offbeat.models import layout_of
from offbeat.running.assembly import ExperimentParts
from offbeat.simulation.replay import replay
from offbeat.training.local_run import LocalTraining
from offbeat.training.training_state import TrainingState

EPOCHS = 4


def experiment_of(algorithm: dict[str, Any], **changes: Any) -> Experiment:
    """Four uneven devices that take between 20 and 100 ms for an epoch, by waiting."""
    table: dict[str, Any] = {
        "seed": 3,
        "stop": {"versions": 8, "time": 120.0},
        "data": {"name": "digits", "devices": 4},
        "model": {"name": "mlp"},
        "local": {"epochs": EPOCHS, "batch_size": 64, "momentum": 0.5},
        "fleet": {"name": "ratio", "ratio": 5.0, "epoch_seconds": 0.1},
        "algorithm": algorithm,
        "evaluation": {"every_versions": 100},
        "deployment": {"paced": True, "rest_seconds": 0.1},
    }
    return Experiment.parse(merge(table, changes))


def lines(out: Path, what: str) -> list[dict[str, Any]]:
    return [line for line in recorded(out) if line["what"] == what]


NOTIFYING: dict[str, dict[str, Any]] = {
    "seafl2": {"buffer": 2, "concurrency": 4, "staleness_limit": 1},
    "port": {"buffer": 2, "concurrency": 4, "staleness_limit": 1},
    "safa": {"share": 0.5, "lag_tolerance": 1},
}
ASKING: dict[str, dict[str, Any]] = {
    "fedasmu": {"cohort": 4, "period": 0.2, "max_in_flight": 4},
    "fedssmu": {"cohort": 4},
}


def test_fresh_models_reach_a_device_in_the_midst_of_an_epoch_and_the_record_says_where(tmp_path: Path) -> None:
    """Two of the devices are on nodes that only reply: they wait."""
    algorithm = {"name": "fedasmu", "while_asking": "train", "slot": "first"} | ASKING["fedasmu"]
    setting = experiment_of(algorithm, stop={"versions": 12})
    deploy_warm(setting, warm_grid(setting, 2, stock=2), tmp_path / "run")
    heard = lines(tmp_path / "run", "heard")
    answers = {(line["ticket"], line["base"]) for line in lines(tmp_path / "run", "answer") if line["newer"]}
    assert {(line["ticket"], line["version"]) for line in heard} <= answers
    assert any(line["step"] for line in heard if line["device"] < 2), "in the midst of an epoch"
    assert all(line["step"] == 0 for line in heard if line["device"] >= 2)
    replay(tmp_path / "run")


@pytest.mark.parametrize("name", [*NOTIFYING, *ASKING])
def test_no_legs_are_needed_and_the_record_replays_to_the_same_bits(name: str, tmp_path: Path) -> None:
    setting = experiment_of({"name": name} | (NOTIFYING | ASKING)[name])
    grid = warm_grid(setting, 4)
    deploy_warm(setting, grid, tmp_path / "run")
    sent = {kind for node in grid.nodes for kind in grid.kinds(node)}
    assert "Continue" not in sent, "nobody checks in"
    if name in ASKING:
        assert "FreshResponse" in sent
    replay(tmp_path / "run")


@pytest.mark.parametrize("name", ["seafl2", "fedasmu"])
def test_orders_in_steps_are_interrupted_on_warm_nodes_and_replay_to_the_same_bits(name: str, tmp_path: Path) -> None:
    table = experiment_of({"name": name} | (NOTIFYING | ASKING)[name]).table()
    del table["local"]["epochs"], table["deployment"]["paced"]
    setting = Experiment.parse(merge(table, {"local": {"steps": 30}}))
    deploy_warm(setting, warm_grid(setting, 4), tmp_path / "run")
    assert all(line["steps"] == line["slices"] for line in lines(tmp_path / "run", "Uploaded"))
    replay(tmp_path / "run")


@pytest.mark.parametrize("name", ["seafl2", "fedasmu"])
def test_warm_nodes_and_nodes_that_only_reply_take_part_in_one_run(name: str, tmp_path: Path) -> None:
    setting = experiment_of({"name": name} | (NOTIFYING | ASKING)[name], deployment={"leg_seconds": 1e-9})
    grid = warm_grid(setting, 2, stock=2)
    deploy_warm(setting, grid, tmp_path / "run")
    assert "Continue" not in grid.kinds(100) + grid.kinds(101)
    if name == "seafl2":
        assert "Continue" in grid.kinds(102) + grid.kinds(103)
        assert "Notice" not in grid.kinds(102) + grid.kinds(103)
    replay(tmp_path / "run")


@pytest.mark.parametrize("on_notice", ["finish-epoch", "last-finished"])
def test_a_device_that_is_told_to_stop_uploads_with_or_without_the_epoch_that_it_is_in(
    on_notice: str, tmp_path: Path
) -> None:
    """The slowest device takes up to a second for an epoch; SEAFL2 stops it when it falls behind."""
    setting = experiment_of(
        {"name": "seafl2", "on_notice": on_notice} | NOTIFYING["seafl2"],
        fleet={"ratio": 20.0, "epoch_seconds": 0.05},
        stop={"versions": 12},
    )
    deploy_warm(setting, warm_grid(setting, 4), tmp_path / "run")
    heard = {line["ticket"]: line for line in lines(tmp_path / "run", "heard")}
    assert heard, "nobody was told"
    uploaded = {line["ticket"]: line["slices"] for line in lines(tmp_path / "run", "Uploaded")}
    assert all(line["step"] is not None for line in heard.values()), "in the midst of an epoch"
    for ticket in heard.keys() & uploaded.keys():
        done = heard[ticket]["slices"]
        assert uploaded[ticket] == (done + 1 if on_notice == "finish-epoch" else max(1, done)) <= EPOCHS
    replay(tmp_path / "run")


# One device -----------------------------------------------------------------------------------------------------------


class Lone:
    """A warm device in this thread: the test puts messages into its mailbox and looks at its replies."""

    def __init__(self, kept: dict[str, bytes] | None = None) -> None:
        self.setting = experiment_of({"name": "fedasync"}, deployment={"paced": False})
        self.size = layout_of(ExperimentParts.of(self.setting).network).size
        self.answers: list[Any] = []
        self.fresh: FreshResponse | None = None
        """What the server says when the device asks, and what comes before that."""
        self.news: Notice | None = None
        self.kept: dict[str, bytes] = {} if kept is None else kept
        self.mailbox = Mailbox(self._answered, self.kept.__setitem__, self.kept.get)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self._app = experiment_client_app()
        self._count = 0
        self.delivered: Vector = np.zeros(0, dtype=np.float32)

    def _answered(self, reply: Message) -> None:
        body = unpack(reply.content, FromDevice)
        self.answers.append((reply.metadata.reply_to_message_id, body))
        if isinstance(body, FreshRequest) and self.news is not None:
            self.mailbox.put(self.message(self.news))
        if isinstance(body, FreshRequest) and self.fresh is not None:
            self.mailbox.put(self.message(self.fresh, model=self.fresh.newer))

    def interrupt(self, look: int, body: Any) -> Iterator[int]:
        """Have a message come just before the device looks into its mailbox for the n-th time; numbers its looks."""
        take, looks = self.mailbox.take, count(1)

        def taken(seconds: float | None = 0.0) -> Message | None:
            if next(looks) == look:
                self.mailbox.put(self.message(body, model=isinstance(body, FreshResponse) and body.newer))
            return take(seconds)

        self.mailbox.take = taken  # type: ignore[method-assign]
        return looks

    def message(self, body: Any, *, model: bool = False) -> Message:
        self._count += 1
        content = pack(body, np.zeros(self.size, dtype=np.float32) if model else None)
        message = Message(content, 100, MESSAGE_TYPE)
        message.metadata.__dict__["_message_id"] = f"message-{self._count}"
        return message

    def run(self, body: Any, *, model: bool = False) -> tuple[str, Any]:
        """Which message is replied to in the end, and how."""
        context = Context(
            run_id=1,
            node_id=100,
            node_config={"partition-id": 0},
            state=RecordDict(),
            run_config=run_config(self.setting),
            series_id=1,
        )
        open_mailbox(self.mailbox)
        try:
            reply = self._app(self.message(body, model=model), context)
        finally:
            open_mailbox(None)
        if reply.content.array_records:
            self.delivered = vector(reply.content, self.size)
        return reply.metadata.reply_to_message_id, unpack(reply.content, FromDevice)


def begin(ticket: int = 5, *, received: int = 0, experiment: str = "an experiment", **order: Any) -> Begin:
    work = Order(**{"slices": EPOCHS, "batch_size": 64, "learning_rate": 0.1} | order)
    return Begin(device=0, ticket=ticket, order=work, base=1, seed=3, received=received, experiment=experiment)


def asking(ticket: int = 5, slot: int = 2, *, waits: bool = True, **changes: Any) -> Begin:
    """An order of FedASMU whose device asks before this epoch."""
    refresh = MergeSettings(
        slot=slot,
        fixed=True,
        draw=0.5,
        epsilon=0.1,
        q_rate=0.1,
        q_discount=0.9,
        mu=1.0,
        gamma=10.0,
        upsilon=0.1,
        gamma_rate=0.01,
        upsilon_rate=0.01,
        round=0,
        waits=waits,
    )
    return begin(ticket, rule="fedasmu", arguments=asdict(refresh), **changes)


def test_a_warm_device_says_that_it_can_be_interrupted() -> None:
    _, greeting = Lone().run(Hello(batch_size=64))
    assert isinstance(greeting, Greeting) and greeting.interruptible


def test_a_notice_between_two_steps_is_heard_at_once_and_followed_after_the_epoch() -> None:
    lone = Lone()
    lone.mailbox.put(lone.message(Notice(ticket=5)))
    answered, delivery = lone.run(begin(), model=True)
    # There before the first step: no slice and no step is done, and one epoch is trained.
    assert lone.answers == [("message-1", NoticeReceived(ticket=5, slices=0, step=0, working=True))]
    assert isinstance(delivery, UpdateReply) and delivery.slices == 1 and answered == "message-2"


def test_a_notice_in_the_second_epoch_drops_it_if_the_order_says_so() -> None:
    """Device 0 has 6 batches, and looks into its mailbox before each: the ninth time two steps of epoch 2 are done."""
    whole, lone = Lone(), Lone()
    whole.run(begin(slices=1), model=True)
    lone.interrupt(9, Notice(ticket=5))
    _, delivery = lone.run(begin(drops_unfinished=True), model=True)
    assert lone.answers == [("message-2", NoticeReceived(ticket=5, slices=1, step=2, working=True))]
    assert isinstance(delivery, UpdateReply) and (delivery.slices, delivery.steps) == (1, 6)
    assert (lone.delivered == whole.delivered).all(), "exactly what one epoch comes to"


def test_a_notice_in_the_first_epoch_does_not_drop_it() -> None:
    lone = Lone()
    lone.interrupt(3, Notice(ticket=5))
    _, delivery = lone.run(begin(drops_unfinished=True), model=True)
    assert lone.answers == [("message-2", NoticeReceived(ticket=5, slices=0, step=2, working=True))]
    assert isinstance(delivery, UpdateReply) and delivery.slices == 1


def test_a_notice_for_another_order_changes_nothing() -> None:
    lone = Lone()
    lone.mailbox.put(lone.message(Notice(ticket=4)))
    _, delivery = lone.run(begin(), model=True)
    assert lone.answers == [("message-1", NoticeReceived(ticket=4, slices=0, step=0, working=False))]
    assert isinstance(delivery, UpdateReply) and delivery.slices == EPOCHS


def test_a_notice_that_comes_after_the_upload_is_replied_to() -> None:
    assert Lone().run(Notice(ticket=5))[1] == NoticeReceived(ticket=5, slices=0, step=None, working=False)


def test_a_device_that_the_server_has_given_up_stops_at_once() -> None:
    lone = Lone()
    lone.mailbox.put(lone.message(Notice(ticket=5, give_up=True)))
    answered, refusal = lone.run(begin(), model=True)
    assert refusal == Refusal(reason="the server has given up ticket 5") and answered == "message-2"


def test_a_new_order_ends_the_old_one_and_is_not_lost() -> None:
    lone = Lone()
    lone.mailbox.put(lone.message(begin(ticket=6), model=True))
    _, refusal = lone.run(begin(), model=True)
    assert refusal == Refusal(reason="ticket 5 is given up: Begin arrived")
    waiting = lone.mailbox.take()
    assert waiting is not None and waiting.metadata.message_id == "message-1"


def test_a_question_is_the_reply_to_the_message_that_stands_for_the_order() -> None:
    """FedASMU's device asks once; then its upload is the reply to the message with the fresh model."""
    lone = Lone()
    lone.fresh = FreshResponse(ticket=5, leg=1, version=2, newer=True, stop=False)
    answered, delivery = lone.run(asking(), model=True)
    assert [(identity, type(body)) for identity, body in lone.answers] == [("message-1", FreshRequest)]
    assert answered == "message-2" and isinstance(delivery, UpdateReply) and delivery.leg == 2


@pytest.mark.parametrize("steps", [0, 2, 5, 6, 17])
def test_a_fresh_model_that_a_device_does_not_wait_for_is_merged_between_two_steps(steps: int) -> None:
    """Device 0 has 6 batches and asks after the first epoch, so its 7th look is before step 0 of the second."""
    order, lone = asking(waits=False), Lone()
    lone.interrupt(7 + steps, FreshResponse(ticket=5, leg=1, version=2, newer=True, stop=False))
    answered, delivery = lone.run(order, model=True)
    assert [type(body) for _, body in lone.answers] == [FreshRequest]
    assert answered == "message-2" and isinstance(delivery, UpdateReply)
    assert (delivery.slices, delivery.steps, delivery.leg) == (EPOCHS, 6 * EPOCHS, 2)
    assert delivery.merges == [Merge(version=2, slices=1 + steps // 6, step=steps % 6)]

    trainer = ExperimentParts.of(lone.setting).trainer()
    base = np.zeros(lone.size, dtype=np.float32)
    given = Assignment(device=0, ticket=5, order=order.order, base=1, parameters=base)
    whole = LocalTraining(assignment=given, state=TrainingState(parameters=base), remembered={}, memory={})
    slices, step = divmod(6 + steps, 6)
    whole.state = trainer.train(whole.job(0, slices, step))
    whole.performed = 2 if steps else 1
    whole.merge(device_rule("fedasmu"), Fresh(version=2, parameters=base), trainer)
    whole.state = trainer.train(whole.job(slices, EPOCHS))
    assert (lone.delivered == whole.state.parameters).all()
    assert delivery.extras["reward"] == whole.memory["reward"]


def test_a_device_that_does_not_wait_for_its_reply_waits_at_the_end() -> None:
    lone = Lone()
    lone.interrupt(6 * EPOCHS + 1, FreshResponse(ticket=5, leg=1, version=2, newer=True, stop=False))
    _, delivery = lone.run(asking(waits=False), model=True)
    assert delivery.merges == [Merge(version=2, slices=EPOCHS, step=0)]


def test_a_device_that_trains_on_and_hears_that_nothing_is_newer_trains_as_if_it_had_not_asked() -> None:
    lone, plain = Lone(), Lone()
    looks = lone.interrupt(9, FreshResponse(ticket=5, leg=1, version=1, newer=False, stop=False))
    _, delivery = lone.run(asking(waits=False), model=True)
    plain.run(begin(), model=True)
    assert delivery.merges == [] and delivery.leg == 2
    assert next(looks) == 6 * EPOCHS + 2, "once more where a message was, and no epoch was cut in two"
    assert (lone.delivered == plain.delivered).all()


def test_a_notice_to_a_device_that_trains_on_makes_it_stop_after_its_epoch_and_wait_for_its_reply() -> None:
    """It is told in its second epoch, which it ends, and then looks for the reply."""
    lone = Lone()
    lone.interrupt(9, Notice(ticket=5))
    taken, looks = lone.mailbox.take, count(1)

    def take(seconds: float | None = 0.0) -> Message | None:
        if seconds:
            assert next(looks) == 1
            lone.mailbox.put(lone.message(FreshResponse(ticket=5, leg=1, version=2, newer=True, stop=True), model=True))
        return taken(seconds)

    lone.mailbox.take = take  # type: ignore[method-assign]
    _, delivery = lone.run(asking(waits=False), model=True)
    assert lone.answers[1:] == [("message-2", NoticeReceived(ticket=5, slices=1, step=2, working=True))]
    assert delivery.slices == 2 and delivery.merges == [Merge(version=2, slices=2, step=0)]


def test_a_notice_while_a_device_waits_for_the_reply_to_its_question() -> None:
    lone = Lone()
    lone.fresh = FreshResponse(ticket=5, leg=1, version=2, newer=False, stop=False)
    lone.news = Notice(ticket=5)
    _, delivery = lone.run(asking(slot=3), model=True)  # it asks before the third epoch, after two
    assert lone.answers[1:] == [("message-2", NoticeReceived(ticket=5, slices=2, step=None, working=True))]
    assert isinstance(delivery, UpdateReply) and delivery.slices == 2


def test_what_a_device_remembers_outlives_its_process_and_the_run() -> None:
    first = Lone()
    first.fresh = FreshResponse(ticket=5, leg=1, version=2, newer=True, stop=False)
    assert first.run(asking(), model=True)[1].remembered == 0
    assert list(first.kept) == ["an experiment/0"]
    later = Lone(kept=first.kept)
    later.fresh = FreshResponse(ticket=9, leg=1, version=4, newer=True, stop=False)
    assert later.run(asking(ticket=9, received=5), model=True)[1].remembered == 5


def test_what_a_device_remembers_is_void_if_the_server_knows_nothing_of_it() -> None:
    first = Lone()
    first.fresh = FreshResponse(ticket=5, leg=1, version=2, newer=True, stop=False)
    first.run(asking(), model=True)
    for changes in ({"received": 0}, {"received": 4}, {"received": 5, "experiment": "another"}):
        later = Lone(kept=dict(first.kept))
        later.fresh = FreshResponse(ticket=9, leg=1, version=4, newer=True, stop=False)
        assert later.run(asking(ticket=9, **changes), model=True)[1].remembered == 0


def test_what_was_kept_and_cannot_be_read_is_forgotten() -> None:
    lone = Lone(kept={"an experiment/0": b"nonsense"})
    lone.fresh = FreshResponse(ticket=5, leg=1, version=2, newer=True, stop=False)
    assert lone.run(asking(received=3), model=True)[1].remembered == 0


def test_memory_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    """The resumed run is a new one of Flower's, with new processes; only what the nodes have kept goes on."""
    algorithm = {"name": "fedasmu"} | ASKING["fedasmu"]
    setting = experiment_of(algorithm, stop={"versions": 60}, execution={"checkpoint_seconds": 1e-9})
    first = Interrupted(4, run_config(setting))
    with pytest.raises(KeyboardInterrupt):
        deploy_warm(setting, first, tmp_path / "run")
    second = warm_grid(setting, 4)
    for node, kept in first.kept.items():
        second.kept[node].update(kept)
    deploy_warm(setting, second, tmp_path / "run", resume=True)
    (resumed,) = lines(tmp_path / "run", "resumed")
    first_orders: dict[int, int] = {}
    for line in lines(tmp_path / "run", "Uploaded"):
        if line["at"] > resumed["at"]:
            first_orders.setdefault(line["device"], line["remembered"])
    assert any(first_orders.values()), "what was learned before the restart is remembered after it"
    replay(tmp_path / "run")


class Interrupted(WarmGrid):
    """Ends the server when every device has learned something."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = super().pull_messages(message_ids)
        if all(self.kept.values()) and sum(kind == "Begin" for node in self.kept for kind in self.kinds(node)) > 12:
            raise KeyboardInterrupt
        return found
