"""What a run comes down to: one flat record made from its rows of metrics."""

from collections.abc import Sequence
from typing import Any

from offbeat.results.rows import Row


def time_to(rows: Sequence[Row], accuracy: float) -> float | None:
    """When the model was first seen to be this accurate."""
    return next((row["time"] for row in rows if row["accuracy"] >= accuracy), None)


def summarise(
    rows: Sequence[Row],
    *,
    algorithm: str,
    label: str = "",
    seed: int,
    targets: Sequence[float],
    reason: str,
    wall_seconds: float,
) -> dict[str, Any]:
    last = rows[-1]
    return {
        "algorithm": algorithm,
        "label": label or algorithm,
        "seed": seed,
        "stopped_by": reason,
        "time": last["time"],
        "versions": last["version"],
        "final_accuracy": last["accuracy"],
        "final_loss": last["loss"],
        "best_accuracy": max(row["accuracy"] for row in rows),
        "time_to_accuracy": {f"{target:g}": time_to(rows, target) for target in targets},
        **{
            key: value for key, value in last.items() if key not in ("time", "version", "accuracy", "loss", "in_flight")
        },
        "wall_seconds": round(wall_seconds, 3),
    }
