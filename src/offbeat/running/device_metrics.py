"""The metrics of the final model for each device and group of devices: by speed, label mix, and as the file names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import numpy.typing as npt

from offbeat.core.parameters import Vector
from offbeat.data.heterogeneity import label_counts
from offbeat.data.samples import Indices, LazyDevices, Samples, taken
from offbeat.fleet import Fleet
from offbeat.fleet.overrides import device_number
from offbeat.results.metric import TargetMetric
from offbeat.running.assembly import ExperimentParts

SPEED_GROUPS = ("fastest third", "middle third", "slowest third")
LABEL_GROUPS = ("most usual labels", "middle labels", "least usual labels")
"""Thirds of the devices by the distance of their label mix from that of all data."""


@dataclass(frozen=True, kw_only=True)
class DeviceMetrics:
    """The metrics of each device, and what the summary says of them."""

    columns: dict[str, list[float]]
    """By the name of the metric, a number for each device; nan if it has no samples to evaluate on."""
    summary: dict[str, Any]


def device_metrics(parts: ExperimentParts, groups: Mapping[str, list[int]], parameters: Vector) -> DeviceMetrics:
    """Evaluate the model on each device's samples: held-out ones if the data have them, else those it trains on."""
    held_out, devices = parts.dataset.test_devices, parts.partition.devices
    trainer = parts.trainer()

    def evaluated(chosen: Sequence[int]) -> dict[str, float]:
        samples = _samples(parts, chosen)
        return {} if samples is None else dict(trainer.evaluate(parameters, *samples).metrics)

    each = [evaluated([device]) for device in range(devices)]
    names = parts.experiment.task.metrics
    columns = {name: [found.get(name, nan) for found in each] for name in names}
    target = TargetMetric.of_experiment(parts.experiment)
    known = np.array([value for value in columns.get(target.name, ()) if value == value])
    spread = {} if not len(known) else {"worst": target.worst(known.tolist()), "best": target.best(known.tolist())}
    if len(known):
        spread |= {"mean": float(known.mean()), "std": float(known.std())}
    summary = {
        "per_device": {"evaluated_on": "training samples" if held_out is None else "held-out samples"}
        | {f"{target.name}_{key}": value for key, value in spread.items()},
        "per_group": {name: {"devices": len(chosen)} | evaluated(chosen) for name, chosen in groups.items()},
    }
    return DeviceMetrics(columns=columns, summary=summary)


def groups_of(parts: ExperimentParts, fleet: Fleet) -> dict[str, list[int]]:
    """The devices of each group: thirds by the time of a plain order and by label mix, and `evaluation.groups`."""
    devices, order = parts.partition.devices, parts.experiment.local.order(0)
    seconds = np.array([sum(fleet.speeds.slice_seconds(device, 0, order)) for device in range(devices)])
    groups = _thirds(SPEED_GROUPS, seconds)
    labels = parts.dataset.train_y
    if isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind == "i":
        counts = label_counts(parts.dataset, parts.partition)
        groups |= _thirds(LABEL_GROUPS, np.where(counts.sizes > 0, counts.distances, nan))
    names = fleet.names or ()
    for name, members in parts.experiment.evaluation.groups.items():
        groups[name] = [device_number(member, names, devices, f"evaluation.groups.{name}") for member in members]
    return groups


def _thirds(names: Sequence[str], values: npt.NDArray[np.float64]) -> dict[str, list[int]]:
    """The devices in thirds by a value that each has (nan: in none); empty if all values are equal."""
    known = np.flatnonzero(~np.isnan(values))
    if len(known) < len(names) or np.ptp(values[known]) == 0:
        return {}
    thirds = np.array_split(known[np.argsort(values[known], kind="stable")], len(names))
    return {name: sorted(third.tolist()) for name, third in zip(names, thirds, strict=True)}


def _samples(parts: ExperimentParts, devices: Sequence[int]) -> tuple[Samples, Samples] | None:
    """The samples of these devices; None if they have none."""
    data = parts.dataset
    if data.test_devices is None and isinstance(data.train_x, LazyDevices):
        return data.train_x.load(devices[0]) if len(devices) == 1 else None
    owned: list[Indices] = [
        parts.partition.samples(device) if data.test_devices is None else data.test_devices[device]
        for device in devices
    ]
    chosen = np.concatenate([np.zeros(0, np.int64), *owned])
    if not len(chosen):
        return None
    x, y = (data.train_x, data.train_y) if data.test_devices is None else (data.test_x, data.test_y)
    return taken(x, chosen), taken(y, chosen)
