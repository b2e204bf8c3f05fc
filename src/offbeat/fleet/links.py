"""Links: upload and download bandwidth and latency of each device."""

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
"""The bandwidth of each device: constant, or changing over time."""
NOTHING_MEASURED: Mapping[str, Bandwidths] = MappingProxyType({})


class Links:
    """The link of each device to the server: a transfer takes bits / bandwidth + latency."""

    def __init__(self, uplink_mbps: Floats, downlink_mbps: Floats, latency: Floats) -> None:
        # Arrays of the standard library: reading a number is twice as fast, and happens for every order.
        self._uplink = array("d", (uplink_mbps * 1e6).tobytes())
        self._downlink = array("d", (downlink_mbps * 1e6).tobytes())
        self._latency = array("d", np.asarray(latency, dtype=np.float64).tobytes())

    def up_seconds(self, device: int, bytes: int, at: float = 0.0) -> float:
        """Seconds for a message from the device to the server, sent at this time."""
        return bytes * 8 / self._uplink[device] + self._latency[device]

    def down_seconds(self, device: int, bytes: int, at: float = 0.0) -> float:
        """Seconds for a message from the server to the device, sent at this time."""
        return bytes * 8 / self._downlink[device] + self._latency[device]

    def round_trips(self, bytes: int) -> Floats:
        """Seconds for a message of this size to each device and back."""
        bits = bytes * 8
        down, up, latency = map(np.frombuffer, (self._downlink, self._uplink, self._latency))
        return bits / down + bits / up + 2 * latency

    def override(self, device: int, uplink: float | None, downlink: float | None, latency: float | None) -> None:
        """Give one device a link of its own; None leaves a value as it is."""
        if uplink is not None:
            self._uplink[device] = uplink * 1e6
        if downlink is not None:
            self._downlink[device] = downlink * 1e6
        if latency is not None:
            self._latency[device] = latency

    def latency(self, device: int) -> float:
        """Seconds for an empty message, either way."""
        return self._latency[device]


class VaryingLinks(Links):
    """Links whose upload or download bandwidth changes over time."""

    def __init__(self, uplink: Bandwidths, downlink: Bandwidths, latency: Floats) -> None:
        super().__init__(_means(uplink), _means(downlink), latency)
        self._up = None if isinstance(uplink, np.ndarray) else uplink
        self._down = None if isinstance(downlink, np.ndarray) else downlink

    def override(self, device: int, uplink: float | None, downlink: float | None, latency: float | None) -> None:
        if (uplink is not None and self._up is not None) or (downlink is not None and self._down is not None):
            raise InvalidInput(f"devices: the bandwidth of device {device} is a trace over time: change it there")
        super().override(device, uplink, downlink, latency)

    def up_seconds(self, device: int, bytes: int, at: float = 0.0) -> float:
        if self._up is None:
            return super().up_seconds(device, bytes, at)
        return self._up[device].seconds(bytes * 8, at) + self._latency[device]

    def down_seconds(self, device: int, bytes: int, at: float = 0.0) -> float:
        if self._down is None:
            return super().down_seconds(device, bytes, at)
        return self._down[device].seconds(bytes * 8, at) + self._latency[device]


def _means(bandwidths: Bandwidths) -> Floats:
    """The mean bandwidth of each device over a period of its trace, in Mbit/s: what a server may know in advance."""
    if isinstance(bandwidths, np.ndarray):
        return bandwidths
    return np.array([each.mean / 1e6 for each in bandwidths])


class NetworkSettings(Settings):
    """The devices' links: the same for all, or a share of them with less bandwidth."""

    uplink_mbps: float = Field(10.0, gt=0)
    """Upload bandwidth in Mbit/s (inf: unlimited)."""
    downlink_mbps: float = Field(100.0, gt=0)
    """Download bandwidth in Mbit/s (inf: unlimited)."""
    latency: float = Field(0.05, ge=0, allow_inf_nan=False)
    """Latency of every message in seconds."""
    slow_share: float = Field(0.0, ge=0, le=1)
    """Share of the devices, drawn at random, with slow links."""
    slow_factor: float = Field(50.0, ge=1, allow_inf_nan=False)
    """Factor by which slow links have less bandwidth (FedASMU: 50 and 100)."""
    price_per_gb: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Price of a gigabyte sent or received; adds the column traffic_cost."""

    trace: MeasuredSeries | None = None
    """`[network.trace]`: a CSV file of bandwidths over time: columns time, device, uplink_mbps, downlink_mbps."""

    def build(self, workload: Workload, measured: Mapping[str, Bandwidths] = NOTHING_MEASURED) -> Links:
        """The links; measured values of each device, by field name, take precedence over the settings."""
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
                f"network.trace.path: {found.path} has no column 'uplink_mbps' or 'downlink_mbps': add one, or name it "
                "with network.trace.columns."
            )
        chosen = trace.assigned(found, list(found.devices()), workload, "network trace").tolist()
        made = {way: bandwidths(found, way, trace.repeat_seconds) for way in ways}
        return {way: [each[number] for number in chosen] for way, each in made.items()}
