"""A node: every message is replied to once, whatever becomes of the app, of the run or of the SuperLink.

The SuperLink is a stand-in, and the children are threads of this process; real ones are in `tests/processes`.
"""

import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from flwr.app.message import message as message_module
from standin_superlink import RUN, StandinConnection, app_folder, model_of, run_of, with_model

from offbeat.flower.node.child import AppProcess
from offbeat.flower.node.children import Child, ForkServer, OnEnd, OnFrame
from offbeat.flower.node.connection import SuperLinkAway, TurnedAway
from offbeat.flower.node.fork_server import Ended
from offbeat.flower.node.frames import FrameSocket, OpenApp, ToChild
from offbeat.flower.node.node import Polling, WarmNode
from offbeat.flower.node.sandbox import AppLimits
from offbeat.flower.node.storage import Installation, NodeStore


class ThreadChild(Child):
    """It cannot be killed, only said to be dead."""

    def kill(self) -> None:
        Thread(target=self.ended, args=(Ended(number=self.number, why="it was killed"),)).start()


class ThreadForkServer(ForkServer):
    """Children as threads."""

    def __init__(self, folder: Path) -> None:
        super().__init__(AppLimits(), folder)
        self.started: list[Child] = []

    def child(self, opening: OpenApp, state: bytes | None, on_frame: OnFrame, on_end: OnEnd) -> Child:
        ours, theirs = socket.socketpair()
        child = ThreadChild(len(self.started), ours, on_frame, on_end)
        self.started.append(child)
        Thread(target=self._serve, args=(theirs,), daemon=True).start()
        child.open(opening, state)
        return child

    def _serve(self, connection: socket.socket) -> None:
        frames: FrameSocket[Any] = FrameSocket(connection, ToChild)
        opening, parts = frames.read() or (None, [])
        assert isinstance(opening, OpenApp)
        try:
            AppProcess(frames, opening, parts[0] if parts else None, leave=lambda _: frames.close()).serve()
        except (OSError, ValueError):  # it was "killed"
            frames.close()


class Setup:
    """A node at work."""

    def __init__(self, tmp_path: Path, **more: Any) -> None:
        self.log: list[str] = []
        self.link = StandinConnection(app_folder(tmp_path / "app"))
        self.fork_server = ThreadForkServer(tmp_path)
        self.stop = Event()
        self.error: Exception | None = None
        self.node = WarmNode(
            self.link,
            self.fork_server,
            Installation(tmp_path / "home"),
            NodeStore(None, self.log.append),
            config={"partition-id": 3},
            polling=Polling(busy=0.005, idle=0.02),
            log=self.log.append,
            **more,
        )
        self.thread = Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.node.run(self.stop)
        except Exception as error:
            self.error = error

    def until(self, text: str) -> None:
        """Wait for a line of the log."""
        deadline = time.monotonic() + 60.0
        while not any(text in line for line in self.log):
            assert time.monotonic() < deadline, f"no {text!r} in {self.log}"
            time.sleep(0.005)


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)
    made.thread.start()
    yield made
    made.stop.set()
    made.thread.join(60.0)
    assert not made.thread.is_alive()


def test_messages_are_replied_to_by_one_child_that_keeps_its_state(setup: Setup) -> None:
    first, second = setup.link.ask("echo"), setup.link.ask("echo")
    assert (first["count"], second["count"], second["device"]) == (1, 2, 3)
    assert len(setup.fork_server.started) == 1


def test_a_model_comes_and_goes_unchanged(setup: Setup) -> None:
    model = np.arange(3_000_000, dtype=np.float32)  # more than two of Flower's pieces of 5 MB
    reply = setup.link.reply(setup.link.send_content(with_model(model)))
    np.testing.assert_array_equal(model_of(reply), model)


def test_a_message_reaches_an_app_that_is_at_work_on_another(setup: Setup) -> None:
    at_work = setup.link.send("listen")
    news = setup.link.send("echo", text="stop")
    assert setup.link.answered(news) == {"heard": True}
    assert setup.link.answered(at_work)["count"] == 1


def test_an_error_of_the_app_is_an_error_of_flower(setup: Setup) -> None:
    assert setup.link.error("raise") == (2, "<class 'ZeroDivisionError'>:<'by zero'>")
    assert setup.link.ask("echo")["count"] == 2


def test_what_a_child_that_died_had_not_replied_to_is_replied_to_for_it_and_the_next_goes_on(setup: Setup) -> None:
    setup.link.ask("echo")
    lost = setup.link.send("hang")
    while lost not in setup.node._runs[RUN].unanswered:
        time.sleep(0.005)
    setup.fork_server.started[0].kill()
    error = setup.link.reply(lost).error
    assert (error.code, error.reason) == (8, "the app's process is gone: it was killed")
    assert setup.link.ask("echo")["count"] == 2, "it goes on with the state that the first one left"
    assert len(setup.fork_server.started) == 2


@pytest.mark.parametrize("what", ["nonsense", "another message", "too little", "no parts"])
def test_an_app_that_writes_to_its_node_what_is_no_reply_ends_only_itself(setup: Setup, what: str) -> None:
    assert setup.link.error("forge", text=what) == (8, "the app's process is gone: it was killed")
    assert setup.link.ask("echo")["count"] == 1


def test_an_app_that_sends_pieces_without_end_ends_only_itself(tmp_path: Path) -> None:
    setup = Setup(tmp_path, answer_bytes=1_000_000)
    setup.thread.start()
    assert setup.link.error("flood") == (8, "the app's process is gone: it was killed")
    assert "the app's process sends more than this node has memory for" in " ".join(setup.log)
    model = np.ones(100_000, dtype=np.float32)  # 0.4 MB: pieces of answers that were given count no more
    for _ in range(4):
        np.testing.assert_array_equal(model_of(setup.link.reply(setup.link.send_content(with_model(model)))), model)
    setup.stop.set()
    setup.thread.join(60.0)


def test_what_is_kept_under_a_name_outlives_child_and_run(setup: Setup) -> None:
    assert setup.link.ask("keep", text="one")["before"] == "nothing"
    assert setup.link.ask("keep", text="two", run_id=RUN + 1)["before"] == "one"


def test_an_app_that_does_not_reply_is_ended_when_its_message_is_too_old(setup: Setup) -> None:
    assert setup.link.error("hang", ttl=0.5) == (8, "the app's process is gone: it was killed")
    setup.until("no reply from the app after")
    assert setup.link.ask("echo")["count"] == 1


def test_an_app_that_does_not_reply_is_ended_after_the_time_that_the_node_gives_it(tmp_path: Path) -> None:
    setup = Setup(tmp_path, answer_seconds=0.5)
    setup.thread.start()
    assert setup.link.error("hang") == (8, "the app's process is gone: it was killed")
    setup.stop.set()
    setup.thread.join(60.0)


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
def test_a_node_whose_clock_is_wrong_takes_part(setup: Setup, monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    """An hour, with messages that live for ten minutes. The stand-in refuses replies as a SuperLink does."""
    monkeypatch.setattr(message_module, "now", lambda: datetime.now(UTC) + timedelta(seconds=ahead))
    monkeypatch.setattr(time, "time", lambda clock=time.time: clock() + ahead)
    assert setup.link.ask("echo")["count"] == 1
    assert setup.link.error("raise")[0] == 2, "the app's own error"
    assert setup.link.error("hang", ttl=0.5) == (8, "the app's process is gone: it was killed"), "the node's error"
    assert setup.link.ask("echo")["count"] == 3


def test_an_app_that_is_not_the_run_s_is_not_run(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup.link, "run", lambda run_id: run_of(b"another app", run_id))
    code, reason = setup.link.error("echo")
    assert code == 7 and reason.startswith("the app has hash ")
    assert not setup.fork_server.started


def test_a_superlink_that_is_away_for_a_while_costs_nothing(setup: Setup) -> None:
    setup.link.ask("echo")
    at_work = setup.link.send("listen")
    while at_work not in setup.node._runs[RUN].unanswered:
        time.sleep(0.005)
    setup.link.away = SuperLinkAway("the SuperLink does not answer")
    setup.until("does not answer; trying again")
    news = setup.link.send("echo")
    setup.link.away = None
    assert setup.link.reply(news) and setup.link.reply(at_work)
    assert setup.link.opened == 1


def test_a_node_that_the_superlink_has_forgotten_registers_anew(setup: Setup) -> None:
    setup.link.ask("echo")
    setup.link.forgotten = True
    while setup.link.opened < 2:
        time.sleep(0.005)
    assert setup.link.ask("echo")["count"] == 1, "as another node, it begins anew"
    assert [line for line in setup.log if "connected" in line] == [
        "connected to 127.0.0.1:1 as node 41",
        "connected to 127.0.0.1:1 as node 42",
    ]


def test_replies_for_a_superlink_that_has_forgotten_the_node_are_not_handed_in(setup: Setup) -> None:
    """It would refuse them for ever, and with them all that comes after."""
    setup.link.ask("echo")
    at_work = setup.link.send("listen")
    while at_work not in setup.node._runs[RUN].unanswered:
        time.sleep(0.005)
    setup.link.away = SuperLinkAway("the SuperLink does not answer")
    setup.until("does not answer; trying again")
    setup.node._answer_error(setup.node._runs[RUN].unanswered[at_work], 8, "too late")
    setup.link.forgotten, setup.link.away = True, None
    setup.until("as node 42")
    assert setup.link.ask("echo")["count"] == 1
    assert at_work not in setup.link._replies


def test_a_reply_that_the_superlink_will_not_take_is_given_up_and_the_next_ones_are_taken(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat.flower.node.node.ATTEMPTS", 2)
    push, refused = setup.link.push, setup.link.send("echo")

    def take(reply: bytes, *rest: Any) -> None:
        if refused.encode() in reply:
            raise SuperLinkAway("HTTP 500")
        push(reply, *rest)

    monkeypatch.setattr(setup.link, "push", take)
    assert setup.link.ask("echo")["count"] == 2
    setup.until("reply dropped after 2 attempts: HTTP 500")


def test_a_node_that_is_turned_away_says_so_and_ends(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.link.away = TurnedAway("Failed to activate SuperNode.")
    setup.thread.start()
    setup.thread.join(60.0)
    assert str(setup.error) == "Failed to activate SuperNode."


def test_a_run_that_is_over_is_forgotten_with_its_child(setup: Setup) -> None:
    setup.link.ask("echo")
    setup.link.running = False
    setup.link.send("echo")
    while RUN in setup.node._runs:
        time.sleep(0.005)
    setup.link.running = True
    assert setup.link.ask("echo")["count"] == 1
    assert len(setup.fork_server.started) == 2


def test_only_so_many_runs_are_kept_warm(setup: Setup) -> None:
    for run_id in range(6):
        setup.link.ask("echo", run_id=run_id)
    assert sorted(setup.node._runs) == [2, 3, 4, 5]


def test_a_node_asks_often_while_something_goes_on_and_ever_less_often_when_nothing_does() -> None:
    polling = Polling(busy=0.05, idle=3.0)
    quiet = (0.0, 2.5, 10.0, 100.0, 1000.0)
    # 2 % of the time that has passed, at least 0.05 s: 0.02 * 10 = 0.2, 0.02 * 100 = 2; at work at most 0.5 s
    assert [polling.pause(seconds, at_work=False) for seconds in quiet] == [0.05, 0.05, 0.2, 2.0, 3.0]
    assert [polling.pause(seconds, at_work=True) for seconds in quiet] == [0.05, 0.05, 0.2, 0.5, 0.5]
    assert Polling(busy=0.5, idle=0.1).pause(1000.0, at_work=False) == 0.5
    assert Polling(busy=0.05, work=0.05).pause(1000.0, at_work=True) == 0.05
