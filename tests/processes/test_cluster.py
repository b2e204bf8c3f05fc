"""A SuperLink and SuperNodes on loopback: they run an app, only those run it who may, and all are gone afterwards."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from offbeat.deployment.certificates import make_credentials
from offbeat.deployment.launch import RunFailed, SuperLink, submit
from offbeat.deployment.local_cluster.cluster import HOST, Cluster

pytestmark = pytest.mark.processes

App = Callable[..., Path]
EXPERIMENT = """
[stop]
versions = 2
[data]
name = "digits"
devices = 2
[model]
name = "mlp"
[algorithm]
name = "fedasync"
concurrency = 2
[deployment]
start_with = 1
"""
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
    """`offbeat deploy` on a secured SuperLink: one node is registered, the other is not and waits in vain."""
    (tmp_path / "small.toml").write_text(EXPERIMENT)
    credentials = make_credentials(tmp_path / "certificates", 2)
    stranger, app = make_credentials(tmp_path / "others", 0), standin()
    with Cluster(1, credentials=credentials, logs=tmp_path / "logs") as cluster:
        intruder, address = cluster.add_node(1, registered=False, wait=False), cluster.address.address
        deploy = [sys.executable, "-c", "from offbeat.cli import main; main()", "deploy", "small.toml", "--out", "run"]
        secured = ["--superlink", address, "--root-certificates", str(credentials.authority)]
        said = subprocess.run(
            [*deploy, *secured], cwd=tmp_path, capture_output=True, text=True, timeout=2 * RUN_SECONDS
        )
        assert said.returncode == 0, said.stdout + said.stderr
        for superlink in (
            SuperLink(address=address, insecure=True),
            SuperLink(address=address, root_certificates=stranger.authority),
        ):
            with pytest.raises(RunFailed, match="no SuperLink answers"):
                submit(app, superlink)
        intruder.wait(60)
    assert "device 0 joined (1 of 2)" in said.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["stopped_by"], summary["devices"], summary["updates_used"]) == ("versions", 1, 2)
    log = intruder.log.read_text()
    assert "Failed to activate SuperNode" in log
    assert "Receiving" not in log and "flwr-clientapp" not in log
