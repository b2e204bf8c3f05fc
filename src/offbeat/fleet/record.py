"""A fleet as it really was: speeds, links and availability of every device from the record of a real run.

`record.jsonl` (`core.record` has its schema) says when each order was sent, when its upload came, how many slices
the device trained meanwhile and how long that took by the device's own clock.

- Seconds of an epoch: the median over a device's uploads of its training seconds by its epochs. If it holds another
  number of samples now than it did then, the time goes with it.
- Latency: half of the median time from order to upload that was not training. Every message of a run carries the same
  model, so a record cannot tell latency from bandwidth; bandwidth has no limit here.
- Availability: a device is away from its loss or departure until it was ready again, and before it joined. After the
  end of the record it begins anew.

A device that never delivered is taken to be as slow, and as badly connected, as the worst of the others.
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
    """What a record says of one device."""

    samples: int
    present: bool
    """Whether it was there when the run began."""
    epochs: list[float] = field(default_factory=list)
    """Seconds of an epoch, from each of its uploads."""
    communication: list[float] = field(default_factory=list)
    """Seconds from an order to its upload that were not training, of each order during which it asked for nothing."""
    changes: list[tuple[float, bool]] = field(default_factory=list)
    """When it came (True) or went (False)."""


class RecordFleet(FleetSettings):
    """Devices as the record of a real run has them: their speeds, their links and when they were there."""

    name: Literal["record"] = "record"
    path: str = Field(min_length=1)
    """record.jsonl of a real run (`offbeat deploy`, `offbeat local-cluster`), or the run's directory. The experiment's
    devices are those of the record; if there are more or fewer of them, each draws one."""

    def build(self, workload: Workload) -> Speeds:
        devices, seconds = read_devices(Path(self.path))
        chosen = self._chosen(len(devices), workload)
        slowest = max(median(each.epochs) / max(1, each.samples) for each in devices if each.epochs)
        furthest = max((median(each.communication) for each in devices if each.communication), default=0.0)
        per_sample = [median(each.epochs) / max(1, each.samples) if each.epochs else slowest for each in devices]
        messages = [median(each.communication) if each.communication else furthest for each in devices]
        no_limit = np.full(workload.devices, inf)
        links: Mapping[str, Bandwidths] = {
            "uplink_mbps": no_limit,
            "downlink_mbps": no_limit,
            "latency": np.array(messages)[chosen] / 2,
        }
        speeds = FixedSpeeds(np.array(per_sample)[chosen] * workload.timed_samples, workload, links)
        speeds.measured_availability = availability_of([devices[number] for number in chosen.tolist()], seconds)
        return speeds

    @staticmethod
    def _chosen(known: int, workload: Workload) -> Integers:
        """Which device of the record each device of the experiment is."""
        if known == workload.devices:
            return np.arange(known)
        return stream(workload.seed, "record").choice(known, workload.devices, replace=workload.devices > known)


def availability_of(devices: Sequence[RecordedDevice], seconds: float) -> TracedAvailability:
    """When these devices are there, in a run of so many seconds that begins anew again and again."""
    changes, first = [], []
    for device in devices:
        states = [device.present, *(there for _, there in device.changes)]
        times = [0.0, *(at for at, _ in device.changes)]
        before = [states[-1], *states[:-1]]  # the round before ends with the last state
        changes.append([at for at, old, new in zip(times, before, states, strict=True) if old != new])
        first.append(states[-1])
    return TracedAvailability(changes, first, [seconds] * len(devices))


def read_devices(path: Path) -> tuple[list[RecordedDevice], float]:
    """What a record says of each device, and how long the run lasted."""
    file = path / "record.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise InvalidInput(f"fleet.path: there is no file {file}; give the record.jsonl of a real run")
    first, lines = read_record(file.read_text(encoding="utf-8"), f"fleet.path: {file}")
    devices = [
        RecordedDevice(samples=samples, present=number in first.present) for number, samples in enumerate(first.samples)
    ]
    orders: dict[int, float] = {}
    asked: set[int] = set()
    for line in lines:
        _read(line, devices, orders, asked, file)
    if not any(device.epochs for device in devices):
        raise InvalidInput(f"fleet.path: {file} has no upload, so that nothing is known of any device's speed")
    return devices, max(line.at for line in lines)


def _read(
    line: RecordLine, devices: Sequence[RecordedDevice], orders: dict[int, float], asked: set[int], file: Path
) -> None:
    """Add what a line says of its device."""
    match line:
        case OrderLine():
            orders[line.ticket] = line.at
        case EventLine(event=FreshRequested(ticket=ticket)):
            asked.add(ticket)
        case EventLine(event=RecordedUpload(device=number, ticket=ticket, progress=done)) if done.slices > 0:
            if done.steps < done.slices:
                raise InvalidInput(
                    f"fleet.path: {file} is of an algorithm whose devices train layer by layer, which does not tell "
                    "what an epoch takes: give the record of another one"
                )
            device = devices[number]
            device.epochs.append(done.seconds / done.slices)
            if ticket in orders and ticket not in asked:
                device.communication.append(max(0.0, line.at - orders[ticket] - done.seconds))
        case JoinedLine():
            devices[line.device].samples = line.samples
            devices[line.device].changes.append((line.at, True))
        case EventLine(event=Ready(device=number)):
            devices[number].changes.append((line.at, True))
        case EventLine(event=Left(device=number) | Lost(device=number)):
            devices[number].changes.append((line.at, False))
