"""A real Ray cluster of three raylets on this machine: the same bits as alone, whatever is lost meanwhile.

Nothing here depends on how fast the machine is: what is to be lost is first stopped (SIGSTOP), then given work, which
it cannot have done when it is lost.
"""

import gc
import logging
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil
import pytest

from offbeat.comparison import scheduler as scheduling
from offbeat.comparison.compare import compare
from offbeat.comparison.planned import PlannedRun
from offbeat.comparison.run_actors import LAST, RunActors
from offbeat.comparison.run_cache import run_cached
from offbeat.core.errors import WorkersLost
from offbeat.experiment.schema import Experiment
from offbeat.results.result import Result, read_run
from offbeat.simulation.run import run, simulation_of
from offbeat.training import executor as executors
from offbeat.training import ray_cluster
from offbeat.training.ray_cluster import ClusterStatus, watching_cluster
from offbeat.training.ray_workers import RayWorkers
from offbeat.training.training_state import TrainingJob
from offbeat.training.workers import ChunkResult

pytest.importorskip("ray", reason="Ray is not installed: pip install 'offbeat[ray]'")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray leaves files open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SYSTEM = {
    # A raylet that is gone answers no check at once; one that is only slow has 10 s for each.
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
    "memory_monitor_refresh_ms": 0,  # else a machine that is full of other things loses workers of ours
    "worker_register_timeout_seconds": 300,
}
PATIENCE = 300.0
"""Real seconds after which something will never happen."""
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
        "execution": {"executor": "sequential", "cluster_timeout": PATIENCE},
    }
    return Experiment.parse(tables).changed(changes)


@dataclass
class LocalCluster:
    """A cluster whose head has no cores for workers, and two nodes with one each."""

    cluster: Any
    nodes: list[Any] = field(default_factory=list)

    def fill(self) -> None:
        """Have two nodes."""
        while len(self.nodes) < 2:
            self.nodes.append(self.cluster.add_node(num_cpus=1))

    def remove(self, node: Any) -> None:
        """Let a machine vanish with all its processes."""
        self.nodes.remove(node)
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        workers = raylet.children(recursive=True)
        self.cluster.remove_node(node, allow_graceful=False)
        for each in workers:
            if each.is_running():
                each.kill()

    def node(self, number: str) -> Any:
        """The node of this number."""
        return next(each for each in self.nodes if each.node_id == number)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left(orphans_come_to_us: None) -> None:
    """The cluster outlives each test: `cluster` sees to it that nothing outlives the cluster."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    for name, value in ray_cluster.ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from ray.cluster_utils import Cluster

    resource_tracker.ensure_running()  # a process of Python's own, which stays
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": SYSTEM}
    logging.getLogger("ray").setLevel(logging.ERROR)
    found = LocalCluster(Cluster(initialize_head=True, head_node_args=head))
    import ray

    found.fill()
    ray.init(found.cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    yield found
    ray.shutdown()
    found.cluster.shutdown()
    deadline = time.monotonic() + 60
    while (left := _running(before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    found.nodes, found.cluster = [], None
    with warnings.catch_warnings():  # Ray leaves files open: they are closed here, and not in another test
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
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


@pytest.fixture
def there(cluster: LocalCluster) -> LocalCluster:
    """The cluster with both of its nodes."""
    cluster.fill()
    return cluster


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on one core of this process."""
    path = tmp_path_factory.mktemp("alone") / "run"
    run(small(), path)
    return path


def check_same(found: Path, expected: Path) -> None:
    for name in SAME:
        assert (found / name).read_bytes() == (expected / name).read_bytes()


@dataclass
class Victim:
    """The process of an actor, and the node that it is on."""

    pid: int
    node: str

    @classmethod
    def of(cls, actor: Any) -> "Victim":
        import ray

        ask = actor.__ray_call__.remote(lambda _: (os.getpid(), ray.get_runtime_context().get_node_id()))
        return cls(*ray.get(ask, timeout=PATIENCE))

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class StruckWorkers(RayWorkers):
    """Workers, all ready at once, of which the first is struck when it has got a chunk, from a certain one on."""

    made: "list[StruckWorkers]"
    strike: Callable[[Victim], None] | None
    chunk: int

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.made.append(self)
        self.lost = 0
        self.struck = type(self).strike is None
        if not self.struck:
            ready, _ = self._ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=PATIENCE)
            assert len(ready) == self.count
            self._first = self._actors[0]
            self._victim = Victim.of(self._first.handle)

    def give(self, chunk: int, jobs: Sequence[TrainingJob], *, ahead: bool) -> bool:
        if self.struck or chunk < self.chunk:
            return super().give(chunk, jobs, ahead=ahead)
        self._victim.stop()
        given = super().give(chunk, jobs, ahead=ahead)
        if chunk in self._first.chunks:
            self.struck = True
            strike = type(self).strike
            assert strike is not None
            strike(self._victim)
        else:
            self._victim.go_on()
        return given

    def take(self, queued: int) -> list[ChunkResult]:
        answers = super().take(queued)
        self.lost += sum(each.result is None for each in answers)
        return answers


Workers = Callable[..., list[StruckWorkers]]


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    """Lets the next run have such workers, and lists them."""

    def have(strike: Callable[[Victim], None] | None = None, chunk: int = 0) -> list[StruckWorkers]:
        made: list[StruckWorkers] = []
        struck = type("Struck", (StruckWorkers,), {"made": made, "strike": strike, "chunk": chunk})
        monkeypatch.setattr(executors, "RayWorkers", struck)
        return made

    monkeypatch.setattr(ray_cluster, "STATUS_SECONDS", 0.0)  # each change is told
    return have


def test_a_run_is_bit_equal_though_an_actor_is_killed_in_mid_batch(
    there: LocalCluster, alone: Path, tmp_path: Path, workers: Workers
) -> None:
    made, seen = workers(Victim.kill), list[ClusterStatus]()
    with watching_cluster(seen.append):
        result = run(small(**ON_RAY), tmp_path / "run")
    assert made[0].struck and made[0].lost
    check_same(tmp_path / "run", alone)
    assert max(status.nodes for status in seen) == 3
    assert max(status.workers for status in seen) == 2 and max(status.queued for status in seen) > 0
    (kind,) = result.summary["processors"]
    assert "torch" in kind


def test_a_run_is_bit_equal_though_a_node_is_removed_in_mid_batch(
    there: LocalCluster, alone: Path, tmp_path: Path, workers: Workers
) -> None:
    made = workers(lambda victim: there.remove(there.node(victim.node)))
    run(small(**ON_RAY), tmp_path / "run")
    assert made[0].lost and len(there.nodes) == 1
    check_same(tmp_path / "run", alone)


def test_versions_are_dropped_when_no_plan_refers_to_them(there: LocalCluster, workers: Workers) -> None:
    made = workers()
    # A version for every update, and two devices in training: at most three of the twelve versions are in use.
    many = {"stop": {"versions": 12}, "algorithm": {"name": "fedbuff", "buffer": 1, "concurrency": 2}}
    with simulation_of(small(execution={"executor": "ray", "workers": 1}, **many)) as simulation:
        for _ in simulation:
            # What the session keeps, and the version that the last plan began with.
            assert len(made[0]._versions) <= len(simulation.session.models) + 1 <= 4
        assert len(made[0]._versions) and simulation.session.version == 12


def test_a_comparison_runs_side_by_side_on_the_cluster_though_a_run_is_killed(
    there: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []

    class StruckActors(RunActors):
        def begin(self, number: int, planned: PlannedRun) -> None:
            given.append(number)
            if len(given) > 1:
                super().begin(number, planned)
                return
            victim = Victim.of(self._free[-1])
            victim.stop()
            super().begin(number, planned)
            victim.kill()

    monkeypatch.setattr(scheduling, "RunActors", StruckActors)
    seen: list[ClusterStatus] = []
    with watching_cluster(seen.append):
        found = compare(small(**ON_RAY), "fedbuff,fedavg", 1, tmp_path / "compared")
    assert not found.failures and sorted(given) == [0, 0, 1]
    for each in found.entries:
        assert each.experiment is not None
        assert run(each.experiment.changed({"execution": {"executor": "sequential"}})).rows == each.rows
    assert seen and (tmp_path / "compared" / "fedbuff-seed0" / "metrics.png").is_file()


def test_a_run_of_a_cache_goes_on_on_the_cluster(there: LocalCluster, alone: Path, tmp_path: Path) -> None:
    rows = read_run(alone).rows
    part = run_cached(small(), tmp_path, until=rows[1]["time"])
    assert part.directory is not None
    assert part.rows == rows[:2] and (part.directory / "checkpoint" / "latest.safetensors").is_file()
    with scheduling.RunScheduler(tmp_path, address=there.cluster.address) as scheduler:
        (whole,) = scheduler.run_cached([small()])  # there is no other, so that it has both workers
    assert isinstance(whole, Result) and whole.rows == rows
    kept = {"config.toml", "devices.csv", "fleet.json", "orders.bin", "wall_seconds.txt", *SAME[:2], LAST}
    assert {each.name for each in part.directory.iterdir()} == kept


def test_no_worker_left_for_a_while_ends_the_run_with_a_checkpoint_and_a_sentence(
    there: LocalCluster, alone: Path, tmp_path: Path, workers: Workers
) -> None:
    def remove_all(_: Victim) -> None:
        for node in list(there.nodes):
            there.remove(node)

    made = workers(remove_all, chunk=8)  # of the second batch: there is something to keep
    lost = {"execution": {"executor": "ray", "workers": 1, "cluster_timeout": 1.5, "checkpoint_seconds": 0.001}}
    with pytest.raises(WorkersLost, match=r"has had no worker for 1.5 s .*everything up to the last checkpoint is in"):
        run(small(**lost), tmp_path / "run")
    assert made[0].lost and len(read_run(tmp_path / "run").rows) > 1
    assert (tmp_path / "run" / "checkpoint" / "latest.safetensors").is_file()
    run(small(), tmp_path / "run", resume=True)
    check_same(tmp_path / "run", alone)
