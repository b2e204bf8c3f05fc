"""What a run comes down to: one flat record made from its rows of metrics."""

from collections.abc import Sequence
from typing import Any

from offbeat.results.rows import Row


def time_to(rows: Sequence[Row], accuracy: float) -> float | None:
    """When the model was first this accurate, on a straight line between two evaluations.

    >>> time_to([{"time": 0.0, "accuracy": 0.2}, {"time": 10.0, "accuracy": 0.7}], 0.6)
    8.0
    """
    for number, row in enumerate(rows):
        if row["accuracy"] >= accuracy:
            if number == 0:
                return row["time"]
            before = rows[number - 1]
            share = (accuracy - before["accuracy"]) / (row["accuracy"] - before["accuracy"])
            return before["time"] + share * (row["time"] - before["time"])
    return None


def summarise(
    rows: Sequence[Row],
    *,
    algorithm: str,
    label: str = "",
    seed: int,
    targets: Sequence[float],
    reason: str,
    wall_seconds: float,
    in_training: float | None = None,
) -> dict[str, Any]:
    """`in_training` is the mean over time of the number of orders in flight; without it, over the rows."""
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
        "in_training": sum(row["in_flight"] for row in rows) / len(rows) if in_training is None else in_training,
        "wall_seconds": round(wall_seconds, 3),
    }
