"""How long messages take: bandwidth both ways and latency, for each device."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from pydantic import Field

from offbeat.core.settings import Settings
from offbeat.core.streams import stream
from offbeat.fleet.workload import Floats, Workload

NOTHING_MEASURED: Mapping[str, Floats] = MappingProxyType({})


class Links:
    """The link of each device to the server: a transfer takes bits / bandwidth + latency."""

    def __init__(self, uplink_mbps: Floats, downlink_mbps: Floats, latency: Floats) -> None:
        self._uplink = uplink_mbps * 1e6
        self._downlink = downlink_mbps * 1e6
        self._latency = latency

    def up_seconds(self, device: int, bytes: int) -> float:
        """Of a message from the device to the server."""
        return bytes * 8 / self._uplink.item(device) + self._latency.item(device)

    def down_seconds(self, device: int, bytes: int) -> float:
        """Of a message from the server to the device."""
        return bytes * 8 / self._downlink.item(device) + self._latency.item(device)

    def round_trips(self, bytes: int) -> Floats:
        """Of a message of this size to each device and back."""
        return bytes * 8 / self._downlink + bytes * 8 / self._uplink + 2 * self._latency

    def latency(self, device: int) -> float:
        """Of a message that weighs nothing, either way."""
        return self._latency.item(device)


class NetworkSettings(Settings):
    """The devices' links: one kind for all, or a share of them with many times less bandwidth."""

    uplink_mbps: float = Field(10.0, gt=0)
    """Bandwidth from device to server in megabits per second (inf: no limit)."""
    downlink_mbps: float = Field(100.0, gt=0)
    """Bandwidth from server to device in megabits per second (inf: no limit)."""
    latency: float = Field(0.05, ge=0, allow_inf_nan=False)
    """Seconds that every message takes besides."""
    slow_share: float = Field(0.0, ge=0, le=1)
    """Share of the devices, drawn at random, that have slow links."""
    slow_factor: float = Field(50.0, ge=1, allow_inf_nan=False)
    """How many times less bandwidth the slow links have (FedASMU: 50 and 100)."""

    def build(self, workload: Workload, measured: Mapping[str, Floats] = NOTHING_MEASURED) -> Links:
        """The links; what a trace has measured for each device (by the name of the field) comes before these."""
        slowdown = np.ones(workload.devices)
        slow = round(self.slow_share * workload.devices)
        if slow:
            chosen = stream(workload.seed, "network").choice(workload.devices, slow, replace=False)
            slowdown[chosen] = self.slow_factor
        return Links(
            measured.get("uplink_mbps", self.uplink_mbps / slowdown),
            measured.get("downlink_mbps", self.downlink_mbps / slowdown),
            measured.get("latency", np.full(workload.devices, self.latency)),
        )
