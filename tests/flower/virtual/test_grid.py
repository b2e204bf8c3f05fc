"""What messages take on a virtual clock, and what a ServerApp sees of it.

With the links of these tests a megabyte takes a second and every message half a second more: a message of 1 MB arrives
after 1.5 s, two epochs of 3 s on a device of slowness 1 are 6 s, and a reply of 2 MB takes 2.5 s: 10 s in all.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.run import Run

from offbeat.flower.server.transport import has_clock
from offbeat.flower.virtual import grid
from offbeat.flower.virtual.app import FlowerApp
from offbeat.flower.virtual.clients import ClientAnswer, identify
from offbeat.flower.virtual.devices import WorkTimes
from offbeat.flower.virtual.engine import MessageEngine, RunEnded
from offbeat.flower.virtual.grid import VirtualGrid
from offbeat.flower.virtual.settings import AppSettings
from offbeat.simulation.lifecycle import Fate

SECOND = {"uplink_mbps": 8.0, "downlink_mbps": 8.0, "latency": 0.5}
"""A megabyte takes a second, and every message half a second more."""


def megabytes(number: float) -> RecordDict:
    """Content of this size: the names of record and key are two bytes of it."""
    return RecordDict({"c": ConfigRecord({"b": bytes(round(number * 1e6) - 2)})})


class ScriptedClients:
    """Replies at once with two megabytes, or as the test says."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.slept = 0.0
        self.processor = 0.0
        self._begun: dict[int, tuple[int, Message]] = {}

    def begin(self, number: int, device: int, message: Message) -> None:
        self._begun[number] = (device, message)

    def answer(self, number: int) -> ClientAnswer:
        device, message = self._begun.pop(number)
        self.asked.append((number, device))
        reply = Message(megabytes(2), reply_to=message)
        return ClientAnswer(reply=reply, processor_seconds=self.processor, slept_seconds=self.slept)

    def close(self) -> None:
        pass


class Simulated:
    """An engine, its grid and its clients."""

    def __init__(self, settings: AppSettings, **limits: float) -> None:
        app = FlowerApp(
            directory=Path("nowhere"),
            identity="example/app",
            version="1",
            server_reference="",
            client_reference="",
            run_config={},
            overrides={},
            nodes=None,
        )
        self.clients = ScriptedClients()
        self.engine = MessageEngine(WorkTimes(app, settings), self.clients, **limits)
        self.grid = VirtualGrid(self.engine, Run.create_empty(1))
        self.grid.on_receive = self._use
        self.nodes = self.engine.times.node_ids

    def _use(self, replies: list[Message]) -> None:
        for name in list(self.engine.taken):
            self.engine.resolve(name, True, self.engine.version + 1)

    def message(self, device: int = 0, kind: str = "train", ttl: float | None = None) -> Message:
        return Message(megabytes(1), self.nodes[device], kind, ttl=ttl)


Make = Callable[..., Simulated]


@pytest.fixture
def simulated(tmp_path: Path) -> Make:
    """Makes a grid over devices of these slownesses, an epoch of the fastest being three seconds, trainings two."""
    identify(1)

    def make(*slowness: float, limits: dict[str, float] | None = None, **tables: Any) -> Simulated:
        rows = "".join(f"{device},{each}\n" for device, each in enumerate(slowness))
        (tmp_path / "fleet.csv").write_text("device,slowness\n" + rows)
        fleet = {"name": "trace", "path": str(tmp_path / "fleet.csv"), "epoch_seconds": 3.0}
        work = {"epochs": 2} | tables.pop("work", {})
        given = {"nodes": len(slowness), "fleet": fleet, "network": SECOND, "work": work} | tables
        return Simulated(AppSettings.parse(given), **(limits or {}))

    return make


def test_a_training_takes_the_way_the_work_and_the_way_back(simulated: Make) -> None:
    run = simulated(1, 4)
    (reply,) = run.grid.send_and_receive([run.message(0)])
    assert run.grid.now() == pytest.approx(1.5 + 6 + 2.5)
    assert reply.metadata.src_node_id == run.nodes[0]
    (reply,) = run.grid.send_and_receive([run.message(1)])
    assert run.grid.now() == pytest.approx(10 + 1.5 + 24 + 2.5)
    assert run.engine.counters.bytes_down == 2_000_000
    assert run.engine.counters.bytes_up == 4_000_000


def test_an_evaluation_takes_a_share_of_an_epoch_and_a_query_nothing(simulated: Make) -> None:
    run = simulated(1, work={"evaluation": 0.5})
    run.grid.send_and_receive([run.message(0, "evaluate")])
    assert run.grid.now() == pytest.approx(1.5 + 1.5 + 2.5)
    run.grid.send_and_receive([run.message(0, "query.hardware")])
    assert run.grid.now() == pytest.approx(5.5 + 1.5 + 2.5)


def test_measured_time_is_that_of_the_processor_times_the_slowness(simulated: Make) -> None:
    run = simulated(1, 4, work={"seconds": "measured", "processor": 10.0})
    run.clients.processor = 0.25
    run.grid.send_and_receive([run.message(1)])
    assert run.grid.now() == pytest.approx(1.5 + 0.25 * 4 * 10 + 2.5)


def test_what_a_client_sleeps_is_added(simulated: Make) -> None:
    run = simulated(1)
    run.clients.slept = 100.0
    run.grid.send_and_receive([run.message()])
    assert run.grid.now() == pytest.approx(110.0)


def test_replies_come_in_the_order_of_their_arrival(simulated: Make) -> None:
    run = simulated(5, 1, 3)
    replies = run.grid.send_and_receive([run.message(device) for device in range(3)])
    assert [run.nodes.index(reply.metadata.src_node_id) for reply in replies] == [1, 2, 0]


def test_a_time_out_is_in_virtual_seconds_and_what_comes_later_is_discarded(simulated: Make) -> None:
    run = simulated(1, 10)
    replies = list(run.grid.send_and_receive([run.message(0), run.message(1)], timeout=20.0))
    assert [reply.metadata.src_node_id for reply in replies] == [run.nodes[0]]
    assert run.grid.now() == 20.0
    # The slow device is at work until 1.5 + 60 s, and takes up the next message then.
    run.grid.send_and_receive([run.message(1)])
    assert run.grid.now() == pytest.approx(61.5 + 60 + 2.5)
    assert (run.engine.counters.used, run.engine.counters.discarded) == (2, 1)


def test_a_late_reply_can_be_asked_for_by_the_id_in_its_message_as_on_a_superlink(simulated: Make) -> None:
    run = simulated(10)
    message = run.message(0)
    assert list(run.grid.send_and_receive([message], timeout=20.0)) == []
    run.grid.sleep(80.0)  # it has arrived after 1.5 + 60 + 2.5 s
    assert run.engine.counters.discarded == 0
    (reply,) = run.grid.pull_messages([message.metadata.message_id])
    assert not reply.has_error()
    assert (run.engine.counters.used, run.engine.counters.discarded, run.engine.accounts.wasted_seconds) == (1, 0, 0.0)
    (again,) = run.grid.pull_messages([message.metadata.message_id])
    assert again.error.code == ErrorCode.MESSAGE_UNAVAILABLE
    assert run.engine.counters.used == 1


def test_an_update_that_was_fetched_and_not_used_is_waste(simulated: Make) -> None:
    run = simulated(1, 4)
    run.grid.on_receive = lambda replies: None
    slow, fast = run.grid.push_messages([run.message(1), run.message(0)])
    run.grid.sleep(40.0)
    assert len(list(run.grid.pull_messages([slow, fast]))) == 2
    assert (run.engine.counters.used, run.engine.counters.discarded) == (0, 0)
    run.engine.resolve(fast, True, 3)  # two versions were made after its base, version 0
    run.engine.resolve(slow, False, 3)
    run.engine.resolve(slow, True, 4)  # too late
    assert (run.engine.counters.used, run.engine.counters.discarded, run.engine.counters.staleness_sum) == (1, 1, 2)
    assert run.engine.accounts.wasted_seconds == pytest.approx(24.0)  # two epochs of 3 s, four times as slow


def test_a_message_expires_with_its_time_to_live(simulated: Make) -> None:
    run = simulated(10)
    (reply,) = run.grid.send_and_receive([run.message(0, ttl=7.0)])
    assert (reply.has_error(), reply.error.code) == (True, ErrorCode.MESSAGE_UNAVAILABLE)
    assert run.grid.now() == 7.0
    assert run.engine.counters.lost == 1
    run.grid.send_and_receive([run.message(0)])
    assert run.grid.now() == pytest.approx(61.5 + 60 + 2.5)


def test_a_device_that_leaves_is_seen_to_be_gone_and_its_client_is_never_run(simulated: Make) -> None:
    away = {"availability": {"name": "on-off", "on_seconds": 1000.0, "off_seconds": 500.0}}
    run = simulated(*[1000.0] * 6, failures={"detect_seconds": 30.0}, **away)
    replies = list(run.grid.send_and_receive([run.message(device) for device in range(6)]))
    assert all(reply.error.code == ErrorCode.NODE_UNAVAILABLE for reply in replies)
    assert run.clients.asked == []
    assert run.engine.counters.lost == 6
    before = set(run.grid.get_node_ids())
    run.grid.sleep(600.0)
    assert set(run.grid.get_node_ids()) != before
    assert 0 < len(before) < 6


def test_failures_are_noticed_later_and_the_device_is_back_in_time(simulated: Make) -> None:
    run = simulated(1, failures={"vanish": 1.0, "detect_seconds": 30.0, "rejoin_seconds": 100.0})
    (reply,) = run.grid.send_and_receive([run.message()])
    assert reply.error.code == ErrorCode.NODE_UNAVAILABLE
    assert 31.5 <= run.grid.now() <= 37.5
    assert list(run.grid.get_node_ids()) == []
    vanished = run.grid.now() - 30.0
    run.grid.wait(1e6)
    assert run.grid.now() == pytest.approx(vanished + 100.0)
    assert list(run.grid.get_node_ids()) == run.nodes


def test_the_server_learns_of_each_failure_only_when_it_is_noticed(
    simulated: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = simulated(1, failures={"detect_seconds": 30.0})
    # It leaves at 4 s with the first message and returns at once; at 14 s it fails for good with the second.
    fates = {1: Fate(vanishes=4.0, returns=4.0), 2: Fate(vanishes=14.0)}
    monkeypatch.setattr(run.engine._lifecycle, "fate", lambda device, ticket, *_: fates[ticket])
    run.grid.push_messages([run.message()])
    run.grid.sleep(10.0)
    run.grid.push_messages([run.message()])
    run.grid.sleep(25.0)
    assert list(run.grid.get_node_ids()) == run.nodes, "at 35 s the server knows only of the first"
    run.grid.sleep(10.0)
    assert list(run.grid.get_node_ids()) == []


def test_a_lost_upload_is_an_error_though_the_client_has_worked(simulated: Make) -> None:
    run = simulated(1, failures={"lost_upload": 1.0, "detect_seconds": 5.0})
    (reply,) = run.grid.send_and_receive([run.message()])
    assert reply.error.code == ErrorCode.REPLY_MESSAGE_UNAVAILABLE
    assert run.grid.now() == pytest.approx(15.0)
    assert run.clients.asked == [(1, 0)]


def test_waiting_ends_when_a_reply_has_landed(simulated: Make) -> None:
    run = simulated(1)
    assert has_clock(run.grid)
    names = run.grid.push_messages([run.message()])
    run.grid.wait(4.0)
    assert (run.grid.now(), list(run.grid.pull_messages(names))) == (4.0, [])
    run.grid.wait(1e9)
    assert run.grid.now() == pytest.approx(10.0)
    assert len(list(run.grid.pull_messages(names))) == 1
    (again,) = run.grid.pull_messages(names)
    assert again.error.code == ErrorCode.MESSAGE_UNAVAILABLE


def test_polling_without_waiting_lets_time_pass(simulated: Make) -> None:
    run = simulated(1)
    (name,) = run.grid.push_messages([run.message()])
    polls = 0
    while not list(run.grid.pull_messages([name])):
        polls += 1
    assert polls == pytest.approx(100, abs=2)
    assert 10.0 <= run.grid.now() <= 10.2


def test_threads_that_wait_each_for_a_reply_wait_at_the_same_time(
    simulated: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "THREAD_SECONDS", 0.5)
    run = simulated(1, 2, 3)
    ended: dict[int, float] = {}
    together = threading.Barrier(3)

    def ask(device: int) -> None:
        together.wait()
        run.grid.send_and_receive([run.message(device)])
        ended[device] = run.grid.now()

    threads = [threading.Thread(target=ask, args=(device,)) for device in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run.grid.now() == pytest.approx(1.5 + 18 + 2.5)
    assert ended[0] <= ended[2] == run.grid.now()


def test_a_thread_that_sends_nothing_is_waited_for_once(simulated: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(grid, "REAL_SLEEP", waits.append)
    run = simulated(1)
    over = threading.Event()
    logger = threading.Thread(target=over.wait)
    logger.start()
    for _ in range(3):
        run.grid.send_and_receive([run.message()])
    over.set()
    logger.join()
    assert len(waits) == 1  # and not at each of the dozen things that have happened
    assert run.grid.now() == 30.0


def test_limits_end_a_run_that_does_not_end(simulated: Make) -> None:
    run = simulated(1, limits={"stop_time": 25.0})
    with pytest.raises(RunEnded, match="time"):
        while True:
            run.grid.send_and_receive([run.message()])
    assert run.grid.now() == 25.0
    run = simulated(1, limits={"most_messages": 3})
    with pytest.raises(RunEnded, match="messages"):
        while True:
            run.grid.send_and_receive([run.message()])
    assert run.engine.counters.used == 3


def test_an_app_that_waits_for_what_never_comes_is_ended(simulated: Make) -> None:
    run = simulated(1)
    with pytest.raises(RunEnded, match="nothing left to happen"):
        run.grid.wait(float("inf"))
    with pytest.raises(RunEnded, match="nothing left to happen"):
        while len(list(run.grid.get_node_ids())) < 2:
            run.grid.sleep(1.0)


def test_messages_to_unknown_nodes_are_skipped(simulated: Make) -> None:
    run = simulated(1)
    assert list(run.grid.push_messages([Message(RecordDict(), 7, "train")])) == []
    with pytest.raises(ValueError, match="Invalid message"):
        run.grid.push_messages([run.message(ttl=-1.0)])


def test_accounts_and_staleness_follow_the_versions(simulated: Make) -> None:
    run = simulated(1, 4)
    slow, fast = run.grid.push_messages([run.message(1), run.message(0)])
    run.grid.sleep(20.0)
    list(run.grid.pull_messages([fast]))
    run.engine.version += 3
    run.grid.sleep(20.0)
    list(run.grid.pull_messages([slow]))
    accounts = run.engine.accounts
    spans = accounts.take_spans()
    assert [span.device for span in spans] == [0, 1]
    assert [span.seconds for span in spans] == pytest.approx([6.0, 24.0])
    assert (run.engine.counters.staleness_sum, run.engine.counters.staleness_max) == (3, 3)
    assert accounts.busy_seconds == pytest.approx(30.0)
    # One training until 10 s, the other until 28 s, in a run of 40 s.
    assert run.engine.in_flight_seconds == pytest.approx(10.0 + 28.0)
