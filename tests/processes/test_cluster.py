"""A SuperLink and nodes on loopback: they run an app, say why one failed, and all are gone afterwards."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from offbeat.flower.launch.local_cluster import HOST, Cluster
from offbeat.flower.launch.superlink import RunFailed, SuperLink, submit

pytestmark = pytest.mark.processes

App = Callable[..., Path]
RUN_SECONDS = 180.0


def answers(app: Path, superlink: SuperLink) -> list[str]:
    """Who replied, by the log of a run."""
    lines, deadline = [], time.monotonic() + RUN_SECONDS
    for line in submit(app, superlink).follow():
        assert time.monotonic() < deadline, "the run did not end"
        lines.append(line or "")
    return sorted(line.split()[-1] for line in lines if line.startswith("answer from"))


def test_a_cluster_runs_an_app_says_why_one_failed_and_is_gone_afterwards(standin: App, tmp_path: Path) -> None:
    with Cluster(1, warm=True, logs=tmp_path / "logs") as cluster:
        cluster.add_node(1)
        assert answers(standin(nodes=2), cluster.address) == ["0", "1"]
        with pytest.raises(RunFailed, match=r"the run failed: this is why$"):
            answers(standin(reason="this is why"), cluster.address)
        node = cluster.nodes[0]
        assert node.pids("offbeat.cli") and node.pids("fork_server")
        node.kill()
        assert not node.alive and not node.pids()
        assert cluster.nodes[1].alive
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"superlink.log", "node-0.log", "node-1.log"}
    for process in (cluster.superlink, *cluster.nodes):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, process.port))
