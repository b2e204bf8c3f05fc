"""The `[execution]` table: who computes, where, and how often the run is saved."""

import os
from typing import Annotated, Literal

from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.core.settings import Settings


class ExecutionTable(Settings):
    """Who computes. It changes how long a run takes, never (beyond float tolerance) what comes out."""

    executor: Literal["auto", "sequential", "stacked", "processes"] = "auto"
    """sequential: clients one by one, bit-reproducible; stacked: many at once, where the model is a chain of layers;
    auto: the faster of the two for model, batch size and device; processes: auto in worker processes."""
    workers: Annotated[int, Field(ge=1)] | Literal["auto"] | None = None
    """Worker processes of a run; 1 trains in its own (unless the executor is "processes"). "auto": one per core, and in
    a comparison the run's share of the cores beside the other runs (default: 1 in a run, "auto" in a comparison)."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")] = "cpu"
    """Where models are trained: cpu, cuda, cuda:1, mps; auto: cuda if there is one, else cpu."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: products in half precision; parameters, sums and the optimiser stay float32."""
    checkpoint_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30.0
    """Real seconds between checkpoints."""
    save_model: bool = True
    """Leave the final parameters in the run directory."""

    def processes(self) -> int:
        """How many worker processes train; 0: this process does."""
        cores = available_cores()
        workers = cores if self.workers == "auto" else self.workers or 1
        if workers > cores and self.device == "cpu":
            raise InvalidInput(
                f"execution.workers = {workers}: this machine has {cores} cores, and more workers than cores only wait "
                'for each other (use at most that many, or "auto")'
            )
        return workers if self.executor == "processes" or workers > 1 else 0


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
