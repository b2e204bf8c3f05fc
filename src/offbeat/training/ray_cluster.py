"""A connection to a Ray cluster, quiet and without telemetry, and what there is to say about the cluster meanwhile.

Ray is imported here and nowhere else, when a run first asks for it.
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
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # a worker that dies is our affair: its work is done again
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # where we start Ray: 15, its default, would let any other process of the user go first
    "RAY_max_direct_call_object_size": str(
        2**20
    ),  # bytes; what a worker answers up to this goes straight to the driver
}
"""Set, unless the user has, before Ray is imported."""

STATUS_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class ClusterStatus:
    """How things stand on a cluster."""

    address: str
    nodes: int
    workers: int
    """Workers that are ready."""
    queued: int
    """Trainings, or whole runs, that no worker has yet."""

    def __str__(self) -> str:
        return f"{self.nodes} nodes, {self.workers} workers, {self.queued} in the queue"


OnCluster = Callable[[ClusterStatus], None]
_watching: ContextVar[OnCluster | None] = ContextVar("watching", default=None)


@contextmanager
def watching_cluster(watch: OnCluster) -> Iterator[None]:
    """Let `watch` be told, while this lasts, how things stand on the cluster that runs compute on."""
    token = _watching.set(watch)
    try:
        yield
    finally:
        _watching.reset(token)


class RayCluster:
    """A connection to a cluster. It is closed by whoever made it; an existing one is used, and left open."""

    def __init__(self, execution: ExecutionTable) -> None:
        self.execution = execution
        self.ray = _ray()
        self._ours = not self.ray.is_initialized()
        self._said = 0.0
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
                f"execution.address = {address!r}: no Ray cluster can be used there ({reason}): start one with "
                '`ray start --head` and give "auto", "HOST:PORT" or "ray://HOST:PORT", or "local" for this machine'
            ) from None

    def workers(self) -> int:
        """How many workers are wanted: what the settings say, or one for each core or share of a GPU there is."""
        wanted, share = self.execution.workers, self.execution.gpus_per_worker
        if isinstance(wanted, int):
            return wanted
        there = self.ray.cluster_resources()
        by_gpu = floor(there.get("GPU", 0.0) / share + 1e-9) if share else there.get("CPU", 0.0)
        return max(1, int(min(there.get("CPU", 0.0), by_gpu)))

    @property
    def resources(self) -> dict[str, float]:
        """What a worker takes up, as Ray's options have it."""
        return {"num_cpus": 1, "num_gpus": self.execution.gpus_per_worker}

    def say(self, workers: int, queued: int) -> None:
        """Tell whoever watches how things stand, now and then."""
        watch = _watching.get()
        if watch is None or monotonic() - self._said < STATUS_SECONDS:
            return
        self._said = monotonic()
        nodes = sum(bool(node["Alive"]) for node in self.ray.nodes())
        watch(ClusterStatus(address=self.execution.address, nodes=nodes, workers=workers, queued=queued))

    def no_worker(self) -> WorkersLost:
        """The error that there has been no worker for as long as the settings allow."""
        return WorkersLost(
            f"the Ray cluster has had no worker for {self.execution.cluster_timeout:g} s (execution.cluster_timeout): "
            "does it have a free core, or GPU share, for one, and does one start in that time?"
        )

    def close(self) -> None:
        """Leave the cluster; one that was started for this run alone ends."""
        if self._ours and self.ray.is_initialized():
            self.ray.shutdown()


def _ray() -> Any:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise InvalidInput(
            "execution.executor = 'ray': Ray is not installed here: pip install 'offbeat[ray]'"
        ) from None
    return ray
