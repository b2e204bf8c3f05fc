"""Faults of the server's processes: whatever is killed, the run goes on where it was and the model is sound.

What must be true of every run is checked by `faulty.outcome`. Faults of nodes are in `test_warm_nodes`.
"""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty import outcome
from user_project import follow

from offbeat.experiment.schema import Experiment
from offbeat.flower.launch.bundle import write_bundle
from offbeat.flower.launch.local_cluster import Cluster
from offbeat.flower.launch.superlink import Launched, RunFailed, submit

pytestmark = pytest.mark.processes


def test_server_app_killed_and_superlink_restarted(tmp_path: Path) -> None:
    """Resumed twice, from checkpoints: what had been used stays used, and nothing is used twice.

    One node is warm and one is Flower's; both find the SuperLink again by themselves, because it is durable.
    """
    out, fleet = tmp_path / "out", tmp_path / "fleet.csv"
    fleet.write_text("device,epoch_seconds\n0,1.0\n1,6.0\n")  # each order costs Flower's node a new process
    experiment = Experiment.parse(
        {
            "stop": {"updates": 7},
            "data": {"name": "digits", "devices": 2},
            "model": {"name": "mlp"},
            "local": {"epochs": 1},
            "fleet": {"name": "trace", "path": str(fleet)},
            "algorithm": {"name": "fedasync", "concurrency": 2},
            "evaluation": {"every_versions": 1},
            "execution": {"checkpoint_seconds": 0.01},
            "deployment": {"answer_seconds": 240.0, "paced": True},
        }
    )

    def start(cluster: Cluster, *, resume: bool) -> Launched:
        bundle = tmp_path / f"bundle-{len(list(tmp_path.glob('bundle-*')))}"
        bundle.mkdir()
        write_bundle(bundle, experiment, out=str(out), resume=resume)
        return submit(bundle, cluster.address)

    def used(count: int) -> Callable[[str], bool]:
        """Whether so many updates are in the metrics, and a checkpoint has been written since."""

        def look(log: str) -> bool:
            metrics, checkpoint = out / "metrics.jsonl", out / "checkpoint" / "latest.safetensors"
            if not metrics.is_file() or not checkpoint.is_file():
                return False
            lines = metrics.read_text().splitlines()
            since = checkpoint.stat().st_mtime_ns > metrics.stat().st_mtime_ns
            return since and bool(lines) and json.loads(lines[-1])["updates_used"] >= count

        return look

    with Cluster(1, warm=True, durable=True, logs=tmp_path / "logs") as cluster:
        cluster.add_node(1, warm=False, wait=False)
        first = start(cluster, resume=False)
        follow(first, used(2))
        for pid in cluster.server_app():
            os.kill(pid, signal.SIGKILL)
        log = follow(start(cluster, resume=True), used(4))
        cluster.restart_superlink()
        log += follow(start(cluster, resume=True), lambda _: None)
        with pytest.raises(RunFailed, match="the run failed: No heartbeat"):
            follow(first, lambda _: None)

    found = outcome(out)
    assert found.summary["stopped_by"] == "updates" and found.summary["updates_used"] == 7
    assert len(found.of("resumed")) == 2
    assert {line["reason"] for line in found.of("Lost")} == {"the server was restarted"}
    versions = [line["version"] for line in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())]
    assert versions == sorted(set(versions)), "no version was evaluated twice"
    assert f"results in {out}" in log
