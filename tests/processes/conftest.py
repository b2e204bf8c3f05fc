"""Tests with real processes, on loopback only: whatever they start must be gone when they end."""

import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import tomli_w

PROJECT: dict[str, Any] = {
    "project": {
        "name": "standin",
        "version": "1.0.0",
        "description": "A stand-in for an app",
        "license": {"file": "LICENSE"},
        "dependencies": ["flwr>=1.41.0,<2"],
    },
    "tool": {
        "flwr": {
            "app": {
                "publisher": "offbeat",
                "fab-format-version": 1,
                "flwr-version-target": "1.41.0",
                "components": {"serverapp": "standin.server:app", "clientapp": "standin.client:app"},
            }
        }
    },
}
SERVER = """
import time

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    if context.run_config["reason"]:
        raise ValueError(context.run_config["reason"])
    while len(nodes := list(grid.get_node_ids())) < context.run_config["nodes"]:
        time.sleep(0.05)
    ask = RecordDict({"ask": ConfigRecord({"n": 1})})
    left = set(grid.push_messages([Message(ask, node, "train.ask", ttl=600) for node in nodes]))
    while left:
        for reply in grid.pull_messages(left):
            left.discard(reply.metadata.reply_to_message_id)
            print("answer from", reply.content["answer"]["device"], flush=True)
        time.sleep(0.05)
"""
CLIENT = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train("ask")
def answer(message, context):
    device = ConfigRecord({"device": context.node_config["partition-id"]})
    return Message(RecordDict({"answer": device}), reply_to=message)
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real processes on a busy machine: what fails once may be the machine's fault, what fails twice is ours."""
    for item in items:
        if item.get_closest_marker("processes"):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture
def standin(tmp_path: Path) -> Callable[..., Path]:
    """Makes an app that asks all nodes who they are as soon as there are so many, or fails for a reason."""

    def make(*, nodes: int = 1, reason: str = "") -> Path:
        folder = tmp_path / f"standin-{nodes}-{bool(reason)}"
        (folder / "standin").mkdir(parents=True)
        config = {"nodes": nodes, "reason": reason}
        app = PROJECT["tool"]["flwr"]["app"] | {"config": config}
        (folder / "pyproject.toml").write_text(tomli_w.dumps(PROJECT | {"tool": {"flwr": {"app": app}}}))
        for name, text in {"LICENSE": "", "standin/server.py": SERVER, "standin/client.py": CLIENT}.items():
            (folder / name).write_text(text)
        return folder

    return make


@pytest.fixture(scope="session", autouse=True)
def orphans_come_to_us() -> None:
    """Processes whose parents have died become children of this one, so that none can hide."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


@pytest.fixture(autouse=True)
def nothing_is_left(orphans_come_to_us: None) -> Iterator[None]:
    """Fails a test that leaves a process behind, and ends that process."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    yield
    deadline = time.monotonic() + 5.0
    while (left := _running(before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    commands = []
    for process in left:
        commands.append(f"{process.pid}: {process.info['name']}")
        process.kill()
    assert not commands, f"left behind: {commands}"


def _running(before: set[int]) -> list[psutil.Process]:
    left = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                process.wait(0)
            elif process.pid not in before:
                process.info = {"name": " ".join(process.cmdline()[:4])}
                left.append(process)
        except (psutil.NoSuchProcess, psutil.TimeoutExpired):
            continue
    return left
