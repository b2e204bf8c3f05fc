"""How long messages take: bandwidth both ways and latency, for each device."""

from array import array
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.core.settings import Settings
from offbeat.core.streams import stream
from offbeat.fleet.series import MeasuredSeries, VaryingBandwidth, bandwidths
from offbeat.fleet.workload import Floats, Workload

Bandwidths = Floats | Sequence[VaryingBandwidth]
"""The bandwidth of each device: a number, or how it changes over time."""
NOTHING_MEASURED: Mapping[str, Bandwidths] = MappingProxyType({})


class Links:
    """The link of each device to the server: a transfer takes bits / bandwidth + latency."""

    def __init__(self, uplink_mbps: Floats, downlink_mbps: Floats, latency: Floats) -> None:
        # Arrays of the standard library: a number is read from them twice as fast, and that happens for every order.
        self._uplink = array("d", (uplink_mbps * 1e6).tobytes())
        self._downlink = array("d", (downlink_mbps * 1e6).tobytes())
        self._latency = array("d", np.asarray(latency, dtype=np.float64).tobytes())

    def up_seconds(self, device: int, bytes: int, at: float = 0.0) -> float:
        """Seconds that a message takes from the device to the server if it is sent at this time."""
        return bytes * 8 / self._uplink[device] + self._latency[device]

    def down_seconds(self, device: int, bytes: int, at: float = 0.0) -> float:
        """Seconds that a message takes from the server to the device if it is sent at this time."""
        return bytes * 8 / self._downlink[device] + self._latency[device]

    def round_trips(self, bytes: int) -> Floats:
        """Seconds that a message of this size takes to each device and back."""
        bits = bytes * 8
        down, up, latency = map(np.frombuffer, (self._downlink, self._uplink, self._latency))
        return bits / down + bits / up + 2 * latency

    def latency(self, device: int) -> float:
        """Seconds that a message without content takes, either way."""
        return self._latency[device]


class VaryingLinks(Links):
    """Links whose bandwidth changes over time, one way or both ways."""

    def __init__(self, uplink: Bandwidths, downlink: Bandwidths, latency: Floats) -> None:
        super().__init__(_means(uplink), _means(downlink), latency)
        self._up = None if isinstance(uplink, np.ndarray) else uplink
        self._down = None if isinstance(downlink, np.ndarray) else downlink

    def up_seconds(self, device: int, bytes: int, at: float = 0.0) -> float:
        if self._up is None:
            return super().up_seconds(device, bytes, at)
        return self._up[device].seconds(bytes * 8, at) + self._latency[device]

    def down_seconds(self, device: int, bytes: int, at: float = 0.0) -> float:
        if self._down is None:
            return super().down_seconds(device, bytes, at)
        return self._down[device].seconds(bytes * 8, at) + self._latency[device]


def _means(bandwidths: Bandwidths) -> Floats:
    """Megabits per second of each device, over a round of its trace: what a server may know in advance."""
    if isinstance(bandwidths, np.ndarray):
        return bandwidths
    return np.array([each.mean / 1e6 for each in bandwidths])


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

    trace: MeasuredSeries | None = None
    """`[network.trace]`: a file with bandwidths over time: columns time, device, uplink_mbps, downlink_mbps."""

    def build(self, workload: Workload, measured: Mapping[str, Bandwidths] = NOTHING_MEASURED) -> Links:
        """The links; what a trace has measured for each device (by the name of the field) comes before these."""
        if self.trace is not None:
            measured = {**measured, **self._traced(self.trace, workload)}
        slowdown = np.ones(workload.devices)
        slow = round(self.slow_share * workload.devices)
        if slow:
            chosen = stream(workload.seed, "network").choice(workload.devices, slow, replace=False)
            slowdown[chosen] = self.slow_factor
        uplink = measured.get("uplink_mbps", self.uplink_mbps / slowdown)
        downlink = measured.get("downlink_mbps", self.downlink_mbps / slowdown)
        latency = measured.get("latency", np.full(workload.devices, self.latency))
        assert isinstance(latency, np.ndarray)
        if isinstance(uplink, np.ndarray) and isinstance(downlink, np.ndarray):
            return Links(uplink, downlink, latency)
        return VaryingLinks(uplink, downlink, latency)

    @staticmethod
    def _traced(trace: MeasuredSeries, workload: Workload) -> dict[str, Bandwidths]:
        found = trace.read("network.trace", ("device", "time", "uplink_mbps", "downlink_mbps"))
        ways = [way for way in ("uplink_mbps", "downlink_mbps") if way in found]
        if not ways:
            raise InvalidInput(
                f"network.trace.path: {found.path} needs a column 'uplink_mbps' or 'downlink_mbps'; say with "
                "network.trace.columns what it is called."
            )
        chosen = trace.assigned(found, list(found.devices()), workload, "network trace").tolist()
        made = {way: bandwidths(found, way, trace.repeat_seconds) for way in ways}
        return {way: [each[number] for number in chosen] for way, each in made.items()}
