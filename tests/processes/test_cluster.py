"""A SuperLink and SuperNodes on loopback: they run an app, only those run it who may, and all are gone afterwards."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from offbeat.deployment.certificates import make_credentials
from offbeat.deployment.cluster import HOST, Cluster
from offbeat.deployment.launch import RunFailed, SuperLink, submit

pytestmark = pytest.mark.processes

App = Callable[..., Path]
RUN_SECONDS = 180.0


def answers(app: Path, superlink: SuperLink) -> list[str]:
    """Who answered, by the log of a run."""
    lines, deadline = [], time.monotonic() + RUN_SECONDS
    for line in submit(app, superlink).follow():
        assert time.monotonic() < deadline, "the run did not end"
        lines.append(line or "")
    return sorted(line.split()[-1] for line in lines if line.startswith("answer from"))


def test_a_cluster_runs_an_app_says_why_one_failed_and_is_gone_afterwards(standin: App, tmp_path: Path) -> None:
    with Cluster(2, logs=tmp_path / "logs") as cluster:
        assert answers(standin(nodes=2), cluster.address) == ["0", "1"]
        with pytest.raises(RunFailed, match=r"the run failed: this is why$"):
            answers(standin(reason="this is why"), cluster.address)
        node = cluster.nodes[0]
        assert node.pids("flower-supernode") and node.pids("flower-superexec")
        node.kill()
        assert not node.alive and not node.pids()
        assert cluster.nodes[1].alive
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"superlink.log", "node-0.log", "node-1.log"}
    for process in (cluster.superlink, *cluster.nodes):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, process.port))


def test_with_tls_and_keys_a_node_that_is_not_registered_gets_nothing(standin: App, tmp_path: Path) -> None:
    credentials = make_credentials(tmp_path / "certificates", 2)
    stranger = make_credentials(tmp_path / "others", 0)
    with Cluster(1, credentials=credentials, logs=tmp_path / "logs") as cluster:
        intruder = cluster.add_node(1, registered=False, wait=False)
        assert answers(standin(nodes=1), cluster.address) == ["0"]
        address = cluster.address.address
        for superlink in (
            SuperLink(address=address, insecure=True),
            SuperLink(address=address, root_certificates=stranger.authority),
        ):
            with pytest.raises(RunFailed, match="no SuperLink answers"):
                submit(tmp_path / "standin-1-False", superlink)
        intruder.wait(60)
    log = intruder.log.read_text()
    assert "Failed to activate SuperNode" in log
    assert "Receiving" not in log and "flwr-clientapp" not in log
