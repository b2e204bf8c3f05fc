"""What a run comes down to: one flat record made from its rows of metrics."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from offbeat.results.metric import TargetMetric, metrics_in
from offbeat.results.rows import Row

ACCURACY = TargetMetric()


def time_to(rows: Sequence[Row], target: float, metric: TargetMetric = ACCURACY) -> float | None:
    """When the model was first this good, on a straight line between two evaluations.

    >>> time_to([{"time": 0.0, "accuracy": 0.2}, {"time": 10.0, "accuracy": 0.7}], 0.6)
    8.0
    """
    for number, row in enumerate(rows):
        value = row[metric.name]
        if metric.reached(value, target):
            before = rows[max(number - 1, 0)]
            if number == 0 or not isfinite(before[metric.name]):
                return row["time"]
            share = (target - before[metric.name]) / (value - before[metric.name])
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
    metric: TargetMetric = ACCURACY,
) -> dict[str, Any]:
    """`in_training` is the mean over time of the number of orders in flight; without it, over the rows.

    A metric other than accuracy says its name and direction.
    """
    last = rows[-1]
    measured = metrics_in(last)
    other = {} if metric == ACCURACY else {"target_metric": metric.name, "target_direction": metric.direction}
    return {
        "algorithm": algorithm,
        "label": label or algorithm,
        "seed": seed,
        "stopped_by": reason,
        "time": last["time"],
        "versions": last["version"],
        **{f"final_{name}": last[name] for name in measured},
        **other,
        **_of_the_metric([row for row in rows if metric.name in row], metric, targets),
        **{key: value for key, value in last.items() if key not in ("time", "version", "in_flight", *measured)},
        "in_training": sum(row["in_flight"] for row in rows) / len(rows) if in_training is None else in_training,
        "wall_seconds": round(wall_seconds, 3),
    }


def _of_the_metric(rows: Sequence[Row], metric: TargetMetric, targets: Sequence[float]) -> dict[str, Any]:
    """What the rows that have the metric say of it; nothing if none has."""
    if not rows:
        return {}
    return {
        f"best_{metric.name}": metric.best(row[metric.name] for row in rows),
        f"time_to_{metric.name}": {f"{target:g}": time_to(rows, target, metric) for target in targets},
    }
