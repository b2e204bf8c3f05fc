"""The connection to a Ray cluster, without log output and telemetry, and the status of the cluster.

Ray is imported when a run first needs it.
"""

import atexit
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import floor
from time import monotonic
from typing import Any

from offbeat.core.errors import InvalidInput, WorkersLost
from offbeat.training.execution import ExecutionTable, available_cores

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # we handle dead workers ourselves: their jobs are repeated
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # the default, 15, lets every other process of the user go first
    "RAY_max_direct_call_object_size": str(2**20),  # bytes; results up to this size go straight to the driver
}
"""Set before Ray is imported, unless the user has set them."""

STATUS_SECONDS = 1.0
log = logging.getLogger("offbeat")


@dataclass(frozen=True, kw_only=True)
class ClusterStatus:
    """The status of a cluster."""

    address: str
    nodes: int
    workers: int
    """Workers that are ready."""
    queued: int
    """Jobs, or whole runs, that no worker has yet."""

    def __str__(self) -> str:
        return f"{self.nodes} nodes, {self.workers} workers, {self.queued} in the queue"


OnCluster = Callable[[ClusterStatus], None]
_watching: ContextVar[OnCluster | None] = ContextVar("watching", default=None)


@contextmanager
def watching_cluster(watch: OnCluster) -> Iterator[None]:
    """Report the status of the cluster to `watch` while the context lasts."""
    token = _watching.set(watch)
    try:
        yield
    finally:
        _watching.reset(token)


class RayCluster:
    """A connection to a cluster. An existing connection of the process is used, and left open."""

    def __init__(self, execution: ExecutionTable) -> None:
        self.execution = execution
        self.ray = _ray()
        self._ours = not self.ray.is_initialized()
        self._reported = 0.0
        self._guard: subprocess.Popen[bytes] | None = None
        if self._ours:
            self._connect(execution.address)
            self._guard = guard_against_exit(execution.address)
        self._was_busy = not self._has_room()

    def _connect(self, address: str) -> None:
        settings: dict[str, Any] = {"num_cpus": available_cores(), "include_dashboard": False}
        try:
            self.ray.init(
                address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                **(settings if address == "local" else {}),
            )
        except Exception as error:  # Ray raises a bare Exception if a node does not start in time
            reason = " ".join(str(error).split()).rstrip(".")
            raise InvalidInput(
                f"execution.address = {address!r}: cannot connect to a Ray cluster ({reason}): start one with "
                '`ray start --head` and give "auto", "HOST:PORT" or "ray://HOST:PORT", or "local" for this machine'
            ) from None

    def workers(self) -> int:
        """Number of workers: from the settings, or one for each core or GPU share of the cluster."""
        wanted, share = self.execution.workers, self.execution.gpus_per_worker
        if isinstance(wanted, int):
            return wanted
        available = self.ray.cluster_resources()
        by_gpu = floor(available.get("GPU", 0.0) / share + 1e-9) if share else available.get("CPU", 0.0)
        return max(1, int(min(available.get("CPU", 0.0), by_gpu)))

    @property
    def resources(self) -> dict[str, float]:
        """The resources of a worker, as options of Ray."""
        return {"num_cpus": 1, "num_gpus": self.execution.gpus_per_worker}

    def report(self, workers: int, queued: int) -> None:
        """Report the status to the watcher, at most once every `STATUS_SECONDS`."""
        watch = _watching.get()
        if watch is None or monotonic() - self._reported < STATUS_SECONDS:
            return
        self._reported = monotonic()
        nodes = sum(bool(node["Alive"]) for node in self.ray.nodes())
        watch(ClusterStatus(address=self.execution.address, nodes=nodes, workers=workers, queued=queued))

    def _has_room(self) -> bool:
        """Whether the cluster has resources for a worker that no one uses."""
        free = self.ray.available_resources()
        return bool(free.get("CPU", 0.0) >= 1 and free.get("GPU", 0.0) >= self.execution.gpus_per_worker)

    def is_busy(self) -> bool:
        """Whether other programs have used the whole cluster since we connected, so that waiting helps."""
        self._was_busy = self._was_busy and not self._has_room()
        fits = self.ray.cluster_resources()
        big_enough = fits.get("CPU", 0.0) >= 1 and fits.get("GPU", 0.0) >= self.execution.gpus_per_worker
        if self._was_busy and big_enough:
            log.warning(
                "offbeat: note: the Ray cluster at %s is busy: waiting for a free core or GPU share",
                self.execution.address,
            )
        return bool(self._was_busy and big_enough)

    def no_worker(self) -> WorkersLost:
        """The error after `execution.cluster_timeout` seconds without a worker."""
        return WorkersLost(
            f"the Ray cluster has had no worker for {self.execution.cluster_timeout:g} s (execution.cluster_timeout): "
            "check that it has a free core or GPU share for one, and that a worker starts within that time"
        )

    def close(self) -> None:
        """Disconnect; a cluster that was started for this run ends."""
        if self._guard is not None:
            dismiss(self._guard)
            self._guard = None
        if self._ours and self.ray.is_initialized():
            self.ray.shutdown()


GUARD = """
import signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if not sys.stdin.buffer.read():
    sys.stderr.write(sys.argv[1])
"""


def guard_against_exit(address: str) -> "subprocess.Popen[bytes]":
    """Start a small process that says what to do if Ray ends this process, as it does when the node's raylet dies.

    Ray then exits from C++ and no Python code of this process runs any more.
    """
    message = (
        f"offbeat: this process was ended while connected to the Ray cluster at {address!r}, most likely because the "
        "raylet on this machine died. Finished runs and checkpoints are kept: restart the cluster and resume.\n"
    )
    guard = subprocess.Popen([sys.executable, "-I", "-S", "-c", GUARD, message], stdin=subprocess.PIPE)
    atexit.register(dismiss, guard)
    return guard


def dismiss(guard: "subprocess.Popen[bytes]") -> None:
    """End the process of `guard_against_exit` silently."""
    atexit.unregister(dismiss)
    if guard.poll() is None:
        guard.communicate(b"closed")


def _ray() -> Any:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise InvalidInput("execution.executor = 'ray': Ray is not installed; run pip install 'offbeat[ray]'") from None
    return ray
