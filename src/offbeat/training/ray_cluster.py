"""The connection to a Ray cluster, without log output and telemetry, and the status of the cluster.

Ray is imported when a run first needs it.
"""

import logging
import os
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
        if self._ours:
            self._connect(execution.address)

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
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
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

    def no_worker(self) -> WorkersLost:
        """The error after `execution.cluster_timeout` seconds without a worker."""
        return WorkersLost(
            f"the Ray cluster has had no worker for {self.execution.cluster_timeout:g} s (execution.cluster_timeout): "
            "check that it has a free core or GPU share for one, and that a worker starts within that time"
        )

    def close(self) -> None:
        """Disconnect; a cluster that was started for this run ends."""
        if self._ours and self.ray.is_initialized():
            self.ray.shutdown()


def _ray() -> Any:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise InvalidInput("execution.executor = 'ray': Ray is not installed; run pip install 'offbeat[ray]'") from None
    return ray
