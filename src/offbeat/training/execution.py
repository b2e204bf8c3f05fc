"""The `[execution]` table: who computes, where, and how often the run is saved."""

import os
import re
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from offbeat.core.errors import InvalidInput
from offbeat.core.settings import Settings


class ExecutionTable(Settings):
    """Who computes. It changes how long a run takes, never (beyond float tolerance) what comes out."""

    executor: Literal["auto", "sequential", "stacked", "processes", "ray"] = "auto"
    """sequential: clients one by one, bit-reproducible; stacked: many at once, where the model is a chain of layers;
    auto: the faster of the two for model, batch size and device; processes: auto in worker processes; ray: sequential
    on the workers of a Ray cluster."""
    workers: Annotated[int, Field(ge=1)] | Literal["auto"] | None = None
    """Worker processes of a run; 1 trains in its own (unless the executor is "processes" or "ray"). "auto": one per
    core (of the cluster, if there is one), and in a comparison the run's share of the cores beside the other runs
    (default: 1 in a run, "auto" in a comparison and on a cluster)."""
    address: Annotated[str, Field(pattern=r"^(local|auto|(ray://)?[^\s/:]+:\d+)$")] = "local"
    """The Ray cluster: local (this machine, for this run alone), auto (the one that runs here), HOST:PORT,
    ray://HOST:PORT."""
    gpus_per_worker: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """The share of a GPU that each worker of a Ray cluster trains on; 0: it trains on the processor."""
    cluster_timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 120.0
    """Real seconds without any worker on the Ray cluster after which the run ends, to be resumed."""
    device: str = "cpu"
    """Where models are trained: cpu, cuda, cuda:1, mps; auto: cuda if there is one, else cpu."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: products in half precision; parameters, sums and the optimiser stay float32."""
    checkpoint_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30.0
    """Real seconds between checkpoints."""
    save_model: bool = True
    """Leave the final parameters in the run directory."""

    @model_validator(mode="after")
    def _check(self) -> "ExecutionTable":
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", self.device):
            raise ValueError(f"execution.device = {self.device!r}: must be auto, cpu, mps, cuda or cuda:1, cuda:2 ...")
        if self.executor != "ray" and (self.address != "local" or self.gpus_per_worker):
            key = "gpus_per_worker" if self.gpus_per_worker else "address"
            raise ValueError(f'execution.{key} is for a Ray cluster: set execution.executor = "ray" too')
        if self.executor == "ray" and self.device.startswith("cuda") and not self.gpus_per_worker:
            raise ValueError(
                f"execution.device = {self.device!r}: give each worker of the cluster a GPU, or a share of one, with "
                "execution.gpus_per_worker"
            )
        return self

    def on_cluster(self, address: str) -> dict[str, dict[str, Any]]:
        """The changes that let a Ray cluster compute, with all its workers unless their number was given."""
        return {"execution": {"executor": "ray", "address": address, "workers": self.workers or "auto"}}

    @property
    def local_torch_device(self) -> str:
        """Where this process trains and evaluates: one that has workers with GPUs needs none itself."""
        return "auto" if self.gpus_per_worker else self.device

    def processes(self) -> int:
        """How many worker processes train on this machine; 0: this process does, or a cluster."""
        if self.executor == "ray":
            return 0
        cores = available_cores()
        workers = cores if self.workers == "auto" else self.workers or 1
        if workers > cores and self._on_processor():
            raise InvalidInput(
                f"execution.workers = {workers}: this machine has {cores} cores, and more workers than cores only wait "
                'for each other (use at most that many, or "auto")'
            )
        return workers if self.executor == "processes" or workers > 1 else 0

    def _on_processor(self) -> bool:
        """Whether models are trained on the processor; on a GPU several workers may wait for it."""
        from offbeat.training.torch_device import torch_device_of  # imports torch

        return self.device == "cpu" or torch_device_of(self.device) == "cpu"


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
