"""A user's Flower project with a model and data of its own, and how to follow its run: for tests with processes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

from offbeat.flower.launch.superlink import Launched

MOST_SECONDS = 1200.0
"""Seconds after which a run hangs; on two idle cores each takes about two minutes."""
TASK = """
import numpy as np
from torch import nn


def network():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def samples(seed, count):
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, 8)).astype(np.float32)
    return x, (x[:, :4] + x[:, 4:]).argmax(axis=1)


def own_data(context):
    device = int(context.node_config["partition-id"])
    return samples(device, 100 + device)


def test_data():
    return samples(99, 200)
"""


def user_project(folder: Path, server: str, client: str) -> Path:
    """A project with these apps, which may use `mine.task`; results are in `out`, and the apps know the folder."""
    app = {
        "publisher": "somebody",
        "fab-format-version": 1,
        "flwr-version-target": "1.41.0",
        "components": {"serverapp": "mine.server_app:app", "clientapp": "mine.client_app:app"},
        "config": {"out": str(folder / "out"), "folder": str(folder)},
    }
    table: dict[str, Any] = {
        "project": {
            "name": "mine",
            "version": "1.0.0",
            "description": "A project of a user",
            "license": {"file": "LICENSE"},
            "dependencies": ["flwr>=1.41.0,<2"],
        },
        "tool": {"flwr": {"app": app}},
    }
    package = folder / "project" / "mine"
    package.mkdir(parents=True)
    for name, text in {"__init__": "", "task": TASK, "server_app": server, "client_app": client}.items():
        (package / f"{name}.py").write_text(text)
    (package.parent / "LICENSE").write_text("None.\n")
    (package.parent / "pyproject.toml").write_text(tomli_w.dumps(table))
    return package.parent


def follow(run: Launched, look: Callable[[str], bool | None] = lambda _: None) -> str:
    """The log of a run up to its end, or until `look`, which is called again and again, says that it is enough."""
    log, deadline = "", time.monotonic() + MOST_SECONDS
    for line in run.follow():
        assert time.monotonic() < deadline, "the run hangs"
        if line:
            log += f"{line}\n"
            print(line)  # pytest shows it if the test fails
        if look(log):
            break
    return log
