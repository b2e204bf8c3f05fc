"""`offbeat local-cluster` and `deploy` as a user meets them: Ctrl-C, or the end of a job, in the middle of a run."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from offbeat.flower.launch.certificates import make_credentials
from offbeat.flower.launch.local_cluster import HOST, Cluster, free_port
from offbeat.live.watching import Watching

pytestmark = pytest.mark.processes

EXPERIMENT = """
[stop]
time = 100000.0
[data]
name = "digits"
devices = 2
[model]
name = "mlp"
[algorithm]
name = "fedavg"
cohort = 2
[evaluation]
every_versions = 1
"""
HEARD = "import signal; signal.signal(2, signal.default_int_handler); signal.signal(1, signal.SIG_DFL); "
"""Also below a shell that ignores Ctrl-C, and below `nohup`."""


def interrupted(
    folder: Path, number: signal.Signals, *arguments: str, meanwhile: Callable[[Path], None] = lambda said: None
) -> str:
    """What a command says that is stopped by a signal when it has evaluated a version; it must not have ended well.

    `meanwhile` is called before that, with the file of what it says.
    """
    (folder / "small.toml").write_text(EXPERIMENT)
    command = [sys.executable, "-c", HEARD + "from offbeat.cli import main; main()", arguments[0], "small.toml"]
    metrics, said = folder / "run" / "metrics.jsonl", folder / f"said-{number}"
    before = metrics.stat().st_size if metrics.is_file() else 0
    with said.open("wb") as errors:
        process = subprocess.Popen(
            [*command, *arguments[1:], "--out", "run"],
            cwd=folder,
            stdout=errors,
            stderr=errors,
            env=os.environ | {"COLUMNS": "400"},
        )
    try:
        deadline = time.monotonic() + 180
        while not (metrics.is_file() and metrics.stat().st_size > before):
            assert process.poll() is None and time.monotonic() < deadline, said.read_text()
            time.sleep(0.2)
        meanwhile(said)
        process.send_signal(number)
        assert process.wait(180) == 128 + number, said.read_text()
    finally:
        process.kill()  # if it has not ended by now; all that it started ends with it
        process.wait()
    assert not (folder / "run" / "summary.json").exists()
    return said.read_text()


def wait_for_checkpoint(folder: Path, since: int = 0) -> int:
    """When it was written."""
    checkpoint, deadline = folder / "run" / "checkpoint" / "latest.safetensors", time.monotonic() + 60
    while not checkpoint.is_file() or checkpoint.stat().st_mtime_ns <= since:
        assert time.monotonic() < deadline, "no checkpoint"
        time.sleep(0.1)
    return checkpoint.stat().st_mtime_ns


def test_a_local_cluster_that_is_interrupted_ends_and_leaves_a_checkpoint(tmp_path: Path) -> None:
    """The second time from where the first one stopped. The third signal, SIGHUP, stops the deployed run below."""
    written, resume = 0, list[str]()
    for number in (signal.SIGINT, signal.SIGTERM):
        said = interrupted(tmp_path, number, "local-cluster", "--nodes", "2", "--logs", "logs", *resume)
        assert said.splitlines()[-1].startswith("To continue: offbeat local-cluster")
        written, resume = wait_for_checkpoint(tmp_path, written), ["--resume"]


OTHER_PYTHON = os.environ.get("OFFBEAT_UPGRADED_PYTHON", sys.executable)
"""The Python of nodes after their upgrade, which may have another version of Flower (see docs/how-to/flower.md)."""


def test_a_deployed_run_is_watched_upgraded_and_stopped_and_leaves_a_checkpoint_whatever_the_signal(
    tmp_path: Path,
) -> None:
    """Two named nodes with keys. During the first run one of them is ended and started again, with the same key."""
    port, run = free_port(), tmp_path / "run"

    def rolling_upgrade(said: Path) -> None:
        before = said.read_text().count("(south) joined")
        cluster.nodes[1].ask_to_end()
        cluster.nodes[1].wait(60)
        cluster.nodes[1].start(python=OTHER_PYTHON)
        until(lambda: said.read_text().count("(south) joined") > before, said)
        version = versions(run)[-1]
        until(lambda: versions(run)[-1] > version + 1, said)  # with the new node
        with urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as page:
            gauges = dict(line.split() for line in page.read().decode().splitlines() if not line.startswith("#"))
        assert float(gauges["offbeat_version"]) > version and float(gauges["offbeat_in_flight"]) >= 0
        assert float(gauges["offbeat_updates_used"]) > 0 and float(gauges["offbeat_faults_node_gone"]) >= 1
        until(lambda: "orders in flight" in shown(), said)
        assert shown()["state"].startswith("running")

    def shown() -> dict[str, str]:
        """What the live view says of the run."""
        return dict(Watching(tmp_path).view(run)["facts"])

    written, resume = 0, list[str]()
    credentials = make_credentials(tmp_path / "certificates", 2)
    with Cluster(0, warm=True, credentials=credentials, logs=tmp_path / "logs") as cluster:
        for name in ("north", "south"):
            cluster.add_node(options=["--name", name], wait=False)
        link = ("--superlink", cluster.address.address, "--root-certificates", str(credentials.authority))
        for number, meanwhile in ((signal.SIGTERM, rolling_upgrade), (signal.SIGHUP, lambda said: None)):
            said = interrupted(
                tmp_path, number, "deploy", *link, "--metrics-port", str(port), *resume, meanwhile=meanwhile
            )
            assert "was stopped" in said
            assert said.splitlines()[-1].startswith("To continue: offbeat deploy small.toml --superlink")
            written, resume = wait_for_checkpoint(tmp_path, written), ["--resume"]
    assert versions(run) == sorted(set(versions(run))) and set(versions(run)) == set(range(versions(run)[-1] + 1))
    names = [row.rpartition(",")[2] for row in (run / "devices.csv").read_text().splitlines()]
    assert sorted(names) == ["name", "north", "south"]


def versions(run: Path) -> list[int]:
    """The versions of the rows of metrics."""
    return [
        json.loads(line)["version"]
        for line in (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        if "\n" in line
    ]


def until(happened: Callable[[], bool], said: Path) -> None:
    """Wait for something, for at most three minutes."""
    deadline = time.monotonic() + 180
    while not happened():
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.1)
