"""The `[execution]` table: executor, workers, torch device, precision, checkpoints."""

import os
import re
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from offbeat.core.errors import InvalidInput
from offbeat.core.settings import Settings


class ExecutionTable(Settings):
    """How a run is computed. It changes the duration, and never the results beyond float tolerance."""

    executor: Literal["auto", "sequential", "stacked", "processes", "ray"] = "auto"
    """sequential: clients one by one, bit-reproducible; stacked: many clients at once, if the model is a chain of
    layers; auto: the faster of the two for model, batch size and torch device; processes: auto, in worker processes;
    ray: sequential, on the workers of a Ray cluster."""
    workers: Annotated[int, Field(ge=1)] | Literal["auto"] | None = None
    """Worker processes of a run; 1 trains in the run's own process (unless the executor is "processes" or "ray").
    "auto": one per core of the machine or cluster, in a comparison divided among the parallel runs (default: 1 in a
    run, "auto" in a comparison and on a cluster)."""
    address: Annotated[str, Field(pattern=r"^(local|auto|(ray://)?[^\s/:]+:\d+)$")] = "local"
    """The Ray cluster: local (started on this machine for this run), auto (the one that runs here), HOST:PORT or
    ray://HOST:PORT."""
    gpus_per_worker: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Share of a GPU for each worker of a Ray cluster; 0: workers train on the processor."""
    cluster_timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 120.0
    """Wall-clock seconds without a worker on the Ray cluster after which the run stops; it can be resumed."""
    device: str = "cpu"
    """Torch device that trains models: cpu, cuda, cuda:1, mps; auto: cuda if available, else cpu."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: matrix products in half precision; parameters, sums and optimiser state stay float32."""
    checkpoint_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30.0
    """Interval between checkpoints (wall-clock seconds)."""
    save_model: bool = True
    """Write the final parameters to the run directory."""

    @model_validator(mode="after")
    def _check(self) -> "ExecutionTable":
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", self.device):
            raise ValueError(f"execution.device = {self.device!r}: must be auto, cpu, mps, cuda or cuda:1, cuda:2 ...")
        if self.executor != "ray" and (self.address != "local" or self.gpus_per_worker):
            key = "gpus_per_worker" if self.gpus_per_worker else "address"
            raise ValueError(f'execution.{key} is for a Ray cluster: also set execution.executor = "ray"')
        if self.executor == "ray" and self.device.startswith("cuda") and not self.gpus_per_worker:
            raise ValueError(
                f"execution.device = {self.device!r}: give each worker of the cluster a GPU, or a share of one, with "
                "execution.gpus_per_worker"
            )
        return self

    def on_cluster(self, address: str) -> dict[str, dict[str, Any]]:
        """Changes to the settings that compute on a Ray cluster, with all its workers unless their number is set."""
        return {"execution": {"executor": "ray", "address": address, "workers": self.workers or "auto"}}

    @property
    def local_torch_device(self) -> str:
        """Torch device of this process: automatic if its workers have the GPUs."""
        return "auto" if self.gpus_per_worker else self.device

    def processes(self) -> int:
        """Number of worker processes on this machine; 0: this process or a cluster trains."""
        if self.executor == "ray":
            return 0
        cores = available_cores()
        workers = cores if self.workers == "auto" else self.workers or 1
        if workers > cores and self._on_processor():
            raise InvalidInput(
                f"execution.workers = {workers} exceeds the {cores} cores of this machine: use at most {cores}, or "
                '"auto"'
            )
        return workers if self.executor == "processes" or workers > 1 else 0

    def _on_processor(self) -> bool:
        """Whether models are trained on the processor; several workers may share a GPU."""
        from offbeat.training.torch_device import torch_device_of  # imports torch

        return self.device == "cpu" or torch_device_of(self.device) == "cpu"


def available_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
