"""The result of a run that has ended, as Flower has it, for whoever asks for the run again."""

from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Result

from offbeat.core.errors import InvalidInput
from offbeat.flower.strategy.records import as_records
from offbeat.results.checkpoint import load_checkpoint, save_checkpoint

RESULT_FILE = "result.safetensors"
METRICS = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


def save_result(directory: Path, result: Result, fingerprint: str) -> None:
    """Write the arrays in their own types, and all metrics."""
    state: dict[str, Any] = {"arrays": {name: array.numpy() for name, array in result.arrays.items()}}
    for kind in METRICS:
        state[kind] = {version: dict(record) for version, record in getattr(result, kind).items()}
    save_checkpoint(directory / RESULT_FILE, state, fingerprint)


def load_result(directory: Path, fingerprint: str) -> Result:
    """The result that `save_result` wrote."""
    if not (directory / RESULT_FILE).is_file():
        raise InvalidInput(f"the run in {directory} ended without its result: run it again with overwrite=True")
    saved = load_checkpoint(directory / RESULT_FILE, fingerprint, ())
    arrays = ArrayRecord({name: Array(array) for name, array in saved["arrays"].items()})
    return Result(arrays=arrays, **{kind: as_records(saved[kind]) for kind in METRICS})
