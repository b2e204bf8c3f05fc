"""A fleet from a CSV file: the speed of each device and, optionally, its link and availability."""

from typing import Literal

import numpy as np
from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.fleet.links import Bandwidths
from offbeat.fleet.measurements import NOT_NEGATIVE, POSITIVE, POSITIVE_OR_INFINITE, Measurements
from offbeat.fleet.series import MeasuredSeries, bandwidths, traced_availability
from offbeat.fleet.speeds import CostSettings, FixedSpeeds, Speeds
from offbeat.fleet.workload import Floats, Integers, Workload

TIMES = ("epoch_seconds", "slowness", "speed")
WAYS = ("uplink_mbps", "downlink_mbps")


class TraceFleet(CostSettings, MeasuredSeries):
    """Measured devices from a CSV file: epoch times and, optionally, links and availability."""

    name: Literal["trace"] = "trace"
    path: str = Field(min_length=1)
    """CSV file (plain or .gz) with a header and a column epoch_seconds, slowness or speed (the highest has slowness 1).
    Optional columns: device (names or 0, 1 ...; without it rows are drawn at random); uplink_mbps, downlink_mbps and
    latency, which override [network]; time, if bandwidth or `available` change over time."""

    def build(self, workload: Workload) -> Speeds:
        found = self.read("fleet", ("device", "time", "latency", "available", *WAYS, *TIMES))
        kind = self._kind(found)
        column = found.numbers(kind, POSITIVE)
        devices = self._devices(found, kind, column)
        firsts = np.array([rows[0] for rows in devices.values()])
        chosen = self.assigned(found, list(devices), workload, "trace")
        speeds = FixedSpeeds(self._epochs(found, kind, column[firsts][chosen], workload), workload)
        speeds.measured_links = self._links(found, firsts, chosen)
        if "device" in found:
            names = [found.texts["device"][row] for row in firsts[chosen].tolist()]
            speeds.names = None if all(name.isdigit() for name in names) else names
        if "available" in found:
            speeds.measured_availability = traced_availability(self, found, workload, "trace")
        return speeds

    def _kind(self, found: Measurements) -> str:
        """Which of the three quantities the file has; one that `columns` names takes precedence."""
        kinds = [kind for kind in TIMES if kind in self.columns]
        kinds = kinds or [kind for kind in TIMES[:2] if kind in found] or [kind for kind in TIMES[2:] if kind in found]
        if len(kinds) != 1:
            has = ", ".join(found.header) or "none"
            raise InvalidInput(
                f"fleet.path: {found.path} must have exactly one of the columns 'epoch_seconds', 'slowness' and "
                f"'speed' (fleet.columns can name it); it has: {has}."
            )
        return kinds[0]

    def _devices(self, found: Measurements, kind: str, column: Floats) -> dict[str, list[int]]:
        """The rows of each device: several only with a column "time", and always with the same speed."""
        if "time" not in found:
            if "device" not in found or self.assign == "random":
                return {str(row): [row] for row in range(len(found.lines))}
        elif "device" not in found:
            raise InvalidInput(
                f"fleet.path: {found.path} has a column {found.names['time']!r} but none that identifies the device: "
                "name it with fleet.columns.device."
            )
        devices = found.devices()
        for rows in devices.values():
            for row in rows[1:]:
                if "time" not in found:
                    raise found.wrong(row, "device", f"another device than in line {found.lines[rows[0]]}")
                if column[row] != column[rows[0]]:
                    raise found.wrong(row, kind, f"as in line {found.lines[rows[0]]}: a device's speed does not change")
        return devices

    def _epochs(self, found: Measurements, kind: str, values: Floats, workload: Workload) -> Floats:
        """Seconds per epoch on each device."""
        if kind == "slowness":
            return self.epoch_times(workload, values)
        if kind == "speed":
            return self.epoch_times(workload, found.numbers(kind, POSITIVE).max() / values)
        if self.cost == "flops":
            raise InvalidInput(
                f"fleet.cost = 'flops' needs a column 'slowness' or 'speed', but {found.path} has 'epoch_seconds': use "
                "'seconds' or 'samples'."
            )
        return self.scaled(workload, values)

    def _links(self, found: Measurements, firsts: Integers, chosen: Integers) -> dict[str, Bandwidths]:
        links: dict[str, Bandwidths] = {}
        if "latency" in found:
            links["latency"] = found.numbers("latency", NOT_NEGATIVE)[firsts][chosen]
        for way in WAYS:
            if way in found and "time" in found:
                varying = bandwidths(found, way, self.repeat_seconds)
                links[way] = [varying[number] for number in chosen.tolist()]
            elif way in found:
                links[way] = found.numbers(way, POSITIVE_OR_INFINITE)[firsts][chosen]
        return links
