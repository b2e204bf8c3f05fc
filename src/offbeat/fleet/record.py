"""A fleet from the record of a real run: speeds, links and availability of every device.

`record.jsonl` (schema: `core.record`) has the time of each order and upload, the slices that the device trained, and
their duration by the device's own clock.

- Seconds per epoch: the median over a device's uploads of training seconds / epochs, scaled with its number of samples.
- Latency: half of the median time between order and upload that was not training. All messages of a run have the same
  size, so that a record cannot separate latency from bandwidth; bandwidth is unlimited here.
- Availability: a device is unavailable before it joined, and from each loss or departure until it was ready again. The
  record repeats periodically.

A device without uploads gets the time and latency of the slowest other device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.core.messages import FreshRequested, Left, Lost, Ready
from offbeat.core.record import EventLine, JoinedLine, OrderLine, RecordedUpload, RecordLine, read_record
from offbeat.core.streams import stream
from offbeat.fleet.links import Bandwidths
from offbeat.fleet.series import TracedAvailability
from offbeat.fleet.speeds import FixedSpeeds, FleetSettings, Speeds
from offbeat.fleet.workload import Integers, Workload


@dataclass
class RecordedDevice:
    """The measurements of one device in a record."""

    samples: int
    present: bool
    """Whether it was available when the run began."""
    epochs: list[float] = field(default_factory=list)
    """Seconds per epoch, from each upload."""
    communication: list[float] = field(default_factory=list)
    """Seconds between order and upload that were not training, of each order without a request for a fresh model."""
    changes: list[tuple[float, bool]] = field(default_factory=list)
    """The times when it became available (True) or unavailable (False)."""


class RecordFleet(FleetSettings):
    """Devices from the record of a real run: speeds, links and availability."""

    name: Literal["record"] = "record"
    path: str = Field(min_length=1)
    """record.jsonl of a real run, or the run's directory. The experiment's devices are those of the record; if their
    numbers differ, each device draws one of the record's."""

    def build(self, workload: Workload) -> Speeds:
        devices, seconds = read_devices(Path(self.path))
        chosen = self._chosen(len(devices), workload)
        slowest = max(median(each.epochs) / max(1, each.samples) for each in devices if each.epochs)
        longest = max((median(each.communication) for each in devices if each.communication), default=0.0)
        per_sample = [median(each.epochs) / max(1, each.samples) if each.epochs else slowest for each in devices]
        messages = [median(each.communication) if each.communication else longest for each in devices]
        unlimited = np.full(workload.devices, inf)
        links: Mapping[str, Bandwidths] = {
            "uplink_mbps": unlimited,
            "downlink_mbps": unlimited,
            "latency": np.array(messages)[chosen] / 2,
        }
        speeds = FixedSpeeds(np.array(per_sample)[chosen] * workload.timed_samples, workload, links)
        speeds.measured_availability = availability_of([devices[number] for number in chosen.tolist()], seconds)
        return speeds

    @staticmethod
    def _chosen(known: int, workload: Workload) -> Integers:
        """The device of the record for each device of the experiment."""
        if known == workload.devices:
            return np.arange(known)
        return stream(workload.seed, "record").choice(known, workload.devices, replace=workload.devices > known)


def availability_of(devices: Sequence[RecordedDevice], seconds: float) -> TracedAvailability:
    """The availability of these devices; the run, of this length, repeats periodically."""
    changes, first = [], []
    for device in devices:
        states = [device.present, *(available for _, available in device.changes)]
        times = [0.0, *(at for at, _ in device.changes)]
        before = [states[-1], *states[:-1]]  # a period ends with the last state
        changes.append([at for at, old, new in zip(times, before, states, strict=True) if old != new])
        first.append(states[-1])
    return TracedAvailability(changes, first, [seconds] * len(devices))


def read_devices(path: Path) -> tuple[list[RecordedDevice], float]:
    """The devices of a record, and the length of the run in seconds."""
    file = path / "record.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise InvalidInput(f"fleet.path: the file {file} does not exist; give the record.jsonl of a real run")
    first, lines = read_record(file.read_text(encoding="utf-8"), f"fleet.path: {file}")
    devices = [
        RecordedDevice(samples=samples, present=number in first.present) for number, samples in enumerate(first.samples)
    ]
    orders: dict[int, OrderLine] = {}
    asked: set[int] = set()
    for line in lines:
        _read(line, devices, orders, asked, file)
    if not any(device.epochs for device in devices):
        raise InvalidInput(f"fleet.path: {file} has no uploads, so that the devices' speeds are unknown")
    return devices, max(line.at for line in lines)


def _read(
    line: RecordLine, devices: Sequence[RecordedDevice], orders: dict[int, OrderLine], asked: set[int], file: Path
) -> None:
    """Add the measurements of one line."""
    match line:
        case OrderLine():
            orders[line.ticket] = line
        case EventLine(event=FreshRequested(ticket=ticket)):
            asked.add(ticket)
        case EventLine(event=RecordedUpload(device=number, ticket=ticket, progress=done)) if done.slices > 0:
            if done.steps < done.slices:
                raise InvalidInput(
                    f"fleet.path: {file} is of an algorithm that trains layer by layer; epoch times are unknown: "
                    "give the record of another algorithm"
                )
            device = devices[number]
            order = orders.get(ticket)
            per_epoch = 1 if order is None or order.batch is None else -(-device.samples // order.batch)
            device.epochs.append(done.seconds / done.slices * per_epoch)
            if order is not None and ticket not in asked:
                device.communication.append(max(0.0, line.at - order.at - done.seconds))
        case JoinedLine():
            devices[line.device].samples = line.samples
            devices[line.device].changes.append((line.at, True))
        case EventLine(event=Ready(device=number)):
            devices[number].changes.append((line.at, True))
        case EventLine(event=Left(device=number) | Lost(device=number)):
            devices[number].changes.append((line.at, False))
