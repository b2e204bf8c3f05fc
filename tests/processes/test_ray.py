"""A real Ray cluster of three raylets on this machine: the same bits as alone, whatever is lost meanwhile."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from offbeat.comparison.compare import compare
from offbeat.core.errors import WorkersLost
from offbeat.settings.schema import Experiment
from offbeat.simulation import executors, ray_cluster
from offbeat.simulation.ray_cluster import ClusterStatus, watching_cluster
from offbeat.simulation.ray_workers import RayWorkers
from offbeat.simulation.run import run, simulation_of

pytest.importorskip("ray", reason="Ray is not installed: pip install 'offbeat[ray]'")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray leaves files open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FAST_DETECTION = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}
ON_RAY = {"execution": {"executor": "ray", "workers": 2}}
SAME = ("metrics.jsonl", "model.safetensors", "timeline.json")


def small(**changes: Any) -> Experiment:
    tables: dict[str, Any] = {
        "stop": {"versions": 4},
        "data": {"name": "digits", "devices": 8},
        "model": {"name": "mlp"},
        "local": {"epochs": 2, "batch_size": 16, "learning_rate": 0.2},
        "algorithm": {"name": "fedbuff", "buffer": 3, "concurrency": 6},
        "evaluation": {"every_versions": 1},
        "execution": {"executor": "sequential"},
    }
    return Experiment.parse(tables).changed(changes)


@dataclass
class LocalCluster:
    """A cluster whose head has no cores for workers, and two nodes with one each."""

    cluster: Any
    nodes: list[Any] = field(default_factory=list)

    def add(self) -> None:
        self.nodes.append(self.cluster.add_node(num_cpus=1))


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left(orphans_come_to_us: None) -> None:
    """The cluster outlives each test: `there` sees to it that nothing outlives the cluster."""


@pytest.fixture(scope="module")
def there() -> Iterator[LocalCluster]:
    for name, value in ray_cluster.ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from ray.cluster_utils import Cluster

    before = {process.pid for process in psutil.Process().children(recursive=True)}
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": FAST_DETECTION}
    logging.getLogger("ray").setLevel(logging.ERROR)
    found = LocalCluster(Cluster(initialize_head=True, head_node_args=head))
    import ray

    found.add()
    found.add()
    ray.init(found.cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    yield found
    ray.shutdown()
    found.cluster.shutdown()
    deadline = time.monotonic() + 10
    while (left := _running(before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def _running(before: set[int]) -> list[psutil.Process]:
    left = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                process.wait(0)
            elif process.pid not in before:
                left.append(process)
        except (psutil.NoSuchProcess, psutil.TimeoutExpired):
            continue
    return left


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on one core of this process."""
    path = tmp_path_factory.mktemp("alone") / "run"
    run(small(), path)
    return path


def check_same(found: Path, expected: Path) -> None:
    for name in SAME:
        assert (found / name).read_bytes() == (expected / name).read_bytes()


def once(when: Callable[[ClusterStatus], bool], act: Callable[[], None]) -> Callable[[ClusterStatus], None]:
    """Do this once, in the middle of a batch, as soon as the cluster is so."""
    done: list[ClusterStatus] = []

    def watch(status: ClusterStatus) -> None:
        if not done and when(status):
            done.append(status)
            act()

    return watch


@pytest.fixture
def ready_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All workers are ready before the first batch, or a slow machine ends the run first; each change is told."""

    class ReadyWorkers(RayWorkers):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self._ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=120)

    monkeypatch.setattr(executors, "RayWorkers", ReadyWorkers)
    monkeypatch.setattr(ray_cluster, "STATUS_SECONDS", 0.0)


def kill_an_actor() -> None:
    processes = psutil.Process().children(recursive=True)
    next(each for each in processes if "TrainingActor" in " ".join(each.cmdline())).kill()


def test_a_run_is_bit_equal_though_an_actor_is_killed_in_mid_batch(
    there: LocalCluster, alone: Path, tmp_path: Path, ready_at_once: None
) -> None:
    seen: list[ClusterStatus] = []
    kill = once(lambda status: status.workers == 2, kill_an_actor)

    def watch(status: ClusterStatus) -> None:
        seen.append(status)
        kill(status)

    with watching_cluster(watch):
        result = run(small(**ON_RAY), tmp_path / "run")
    check_same(tmp_path / "run", alone)
    assert {status.nodes for status in seen} == {3}
    assert max(status.workers for status in seen) == 2 and max(status.queued for status in seen) > 0
    (kind,) = result.summary["processors"]
    assert "torch" in kind


def test_a_run_is_bit_equal_though_a_node_is_removed_in_mid_batch(
    there: LocalCluster, alone: Path, tmp_path: Path, ready_at_once: None
) -> None:
    def remove() -> None:
        there.cluster.remove_node(there.nodes.pop(), allow_graceful=False)

    try:
        with watching_cluster(once(lambda status: status.workers == 2, remove)):
            run(small(**ON_RAY), tmp_path / "run")
        assert len(there.nodes) == 1
    finally:
        while len(there.nodes) < 2:
            there.add()
    check_same(tmp_path / "run", alone)


def test_versions_are_dropped_when_no_plan_refers_to_them(there: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[RayWorkers] = []

    class Recorded(RayWorkers):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(executors, "RayWorkers", Recorded)
    with simulation_of(small(**ON_RAY)) as simulation:
        for _ in simulation:
            # What the session keeps, and the version that the last plan began with.
            assert made[0].versions_held <= simulation.session.kept_versions + 1
        assert made[0].versions_held and simulation.session.version == 4


def test_no_worker_for_a_while_ends_the_run_with_a_checkpoint_and_a_sentence(
    there: LocalCluster, alone: Path, tmp_path: Path
) -> None:
    no_gpu = {"execution": {"executor": "ray", "workers": 1, "gpus_per_worker": 1.0, "cluster_timeout": 1.5}}
    with pytest.raises(WorkersLost, match=r"has had no worker for 1.5 s .* go on with --resume"):
        run(small(**no_gpu), tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint" / "latest.safetensors").is_file()
    run(small(), tmp_path / "run", resume=True)
    check_same(tmp_path / "run", alone)


def test_a_comparison_runs_side_by_side_on_the_cluster(there: LocalCluster, alone: Path, tmp_path: Path) -> None:
    seen: list[ClusterStatus] = []
    with watching_cluster(seen.append):
        found = compare(small(**ON_RAY), "fedbuff,fedavg", 1, tmp_path / "compared")
    assert not found.failures
    for each in found.entries:
        assert each.experiment is not None
        assert run(each.experiment.changed({"execution": {"executor": "sequential"}})).rows == each.rows
    assert seen and (tmp_path / "compared" / "fedbuff-seed0" / "metrics.png").is_file()
