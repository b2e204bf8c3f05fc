"""What a run comes down to: one flat record made from its rows of metrics."""

from collections.abc import Sequence
from typing import Any

from offbeat.results.metric import TargetMetric, metrics_in
from offbeat.results.rows import Row

ACCURACY = TargetMetric()


def time_to(rows: Sequence[Row], target: float, metric: TargetMetric = ACCURACY) -> float | None:
    """When the model was first seen to be this good."""
    return next((row["time"] for row in rows if metric.reached(row[metric.name], target)), None)


def summarise(
    rows: Sequence[Row],
    *,
    algorithm: str,
    label: str = "",
    seed: int,
    targets: Sequence[float],
    reason: str,
    wall_seconds: float,
    metric: TargetMetric = ACCURACY,
) -> dict[str, Any]:
    """The record; a metric other than accuracy says its name and direction."""
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
        f"best_{metric.name}": metric.best(row[metric.name] for row in rows),
        f"time_to_{metric.name}": {f"{target:g}": time_to(rows, target, metric) for target in targets},
        **{key: value for key, value in last.items() if key not in ("time", "version", "in_flight", *measured)},
        "wall_seconds": round(wall_seconds, 3),
    }
