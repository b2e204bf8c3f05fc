"""What the connection to a Ray cluster says when Ray ends the process, and when others use the whole cluster."""

import logging
import subprocess
import sys
from typing import Any

import pytest

from offbeat.training.execution import ExecutionTable
from offbeat.training.ray_cluster import RayCluster

SCRIPT = """
import os, sys
from offbeat.training.ray_cluster import dismiss, guard_against_exit

guard = guard_against_exit("auto")
if sys.argv[1] == "closed":
    dismiss(guard)
if sys.argv[1] != "killed":
    sys.exit()
os._exit(1)
"""


@pytest.mark.parametrize(("end", "speaks"), [("killed", True), ("closed", False), ("exit", False)])
def test_a_process_that_ray_ends_says_what_to_do(end: str, speaks: bool) -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT, end], capture_output=True, text=True, check=False)
    assert ("raylet on this machine died. Finished runs and checkpoints are kept" in ended.stderr) is speaks
    assert ended.stderr.count("\n") == speaks


class Ray:
    """The part of Ray that says how much of a cluster is free."""

    free: float = 0.0

    def is_initialized(self) -> bool:
        return True

    def available_resources(self) -> dict[str, float]:
        return {"CPU": self.free}

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 4.0}


def test_a_cluster_that_others_use_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ray: Any = Ray()
    monkeypatch.setattr("offbeat.training.ray_cluster._ray", lambda: ray)
    cluster = RayCluster(ExecutionTable(executor="ray", address="auto"))
    with caplog.at_level(logging.WARNING, "offbeat"):
        assert cluster.is_busy()
    assert "is busy: waiting for a free core" in caplog.text
    ray.free = 2.0  # the others have finished: a worker that still does not start is a fault
    assert not cluster.is_busy()
    ray.free = 0.0  # our own workers use it now
    assert not cluster.is_busy()
    ray.free = 4.0
    assert not RayCluster(ExecutionTable(executor="ray", address="auto")).is_busy()
