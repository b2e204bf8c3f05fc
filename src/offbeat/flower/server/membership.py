"""The devices of a run: which Flower node is which device, its name, its number of samples and its speed."""

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import DeviceFault, OffbeatError
from offbeat.core.parameters import Vector
from offbeat.core.policy import Forecast
from offbeat.flower.protocol.codec import fault_boundary, one_line, unpack, vector
from offbeat.flower.protocol.messages import FromDevice, Greeting, Hello, Refusal
from offbeat.flower.server.transport import OutgoingMessage, ReceivedReply, SentMessage, Transport

POLL_SECONDS = 0.05
"""Polling interval in seconds while persistent nodes are to reply."""
STOCK_POLL_SECONDS = 0.5
"""Polling interval if only stock nodes are to reply: these poll for messages only every 3 s themselves, and each poll
costs the SuperLink milliseconds of CPU time."""
LONGEST_POLL = 1.0
"""Longest polling interval."""
POLL_SHARE = 0.02
"""The polling interval as a share of the time since the last reply."""
LOOK_SECONDS = 1.0
"""Seconds between two reads of the list of nodes."""
STRANGERS = ("No train function registered with name", "Invalid message type")
"""Flower's errors for a ClientApp that has no function for `MESSAGE_TYPE`."""
RETRY_SECONDS = 10.0
"""Seconds before a node that was not admitted is greeted again."""


class Membership:
    """The devices of a run, by number.

    A node's config has its name or its number (`partition-id`), or it gets a free number. If the data name the devices,
    a node's name must be one of theirs; else its device gets the name, and the node finds it again by that.
    """

    __slots__ = (
        "_again",
        "_answer_seconds",
        "_communication",
        "_forecast",
        "_hello",
        "_model",
        "_named_before",
        "_speeds",
        "device_of",
        "devices",
        "interruptible",
        "known",
        "name_of",
        "node_of",
        "samples",
    )

    def __init__(
        self,
        devices: int,
        *,
        model: Vector,
        batch_size: int | None,
        samples: npt.NDArray[np.int64] | None = None,
        measure: bool = False,
        forecast: Forecast | None = None,
        answer_seconds: float = 600.0,
        names: Sequence[str] | None = None,
    ) -> None:
        """`names` are those that the data give the devices."""
        self.devices = devices
        self.name_of: dict[int, str] = dict(enumerate(names or ()))
        self._named_before = bool(names)
        self.samples = np.ones(devices, dtype=np.int64) if samples is None else samples.astype(np.int64)
        """Samples of each device. Unknown numbers are estimated from the others when the run begins."""
        self.node_of: dict[int, int] = {}
        self.device_of: dict[int, int] = {}
        self.interruptible: set[int] = set()
        """Devices that receive notices while they train."""
        self.known = samples is not None
        """Whether the experiment says which samples each device holds, rather than the devices."""
        self._model = model
        self._hello = Hello(batch_size=batch_size, measure=measure and forecast is None)
        self._forecast = forecast
        self._answer_seconds = answer_seconds
        self._speeds = np.full(devices, np.nan)
        self._communication = np.full(devices, np.nan)
        self._again: dict[int, float] = {}
        """When to greet each node again that was not admitted."""

    def greetings(self, nodes: Iterable[int], busy: Callable[[int], bool], now: float) -> list[OutgoingMessage]:
        """The greetings of new nodes, except those that have a message to reply to."""
        model, deadline = self._model if self._hello.measure else None, now + self._answer_seconds
        return [
            OutgoingMessage(SentMessage(node=node, at=now, deadline=deadline), self._hello, model)
            for node in sorted(nodes)
            if node not in self.device_of and not busy(node) and self._again.get(node, 0.0) <= now
        ]

    def admit(self, arrived: ReceivedReply, now: float) -> int:
        """Admit the device that sent this greeting, and return its number; DeviceFault if it fails a check."""
        node = arrived.sent.node
        self._again[node] = now + RETRY_SECONDS
        if arrived.content is None:
            if any(sign in arrived.error for sign in STRANGERS):
                raise DeviceFault("it runs no client app of this version of offbeat: see docs/how-to/deployment.md")
            raise DeviceFault(f"it sent no greeting: {arrived.error}")
        greeting = unpack(arrived.content, FromDevice)
        if isinstance(greeting, Refusal):
            raise DeviceFault(f"it cannot take part: {greeting.reason}")
        if node in self.device_of:
            raise DeviceFault(f"it sent a second greeting: it is device {self.device_of[node]}")
        if not isinstance(greeting, Greeting):
            raise DeviceFault(f"it sent {type(greeting).__name__}, not a greeting")
        if greeting.elements != self._model.size:
            raise DeviceFault(f"it has a model of {greeting.elements} elements, not {self._model.size}")
        device = self._number_for(greeting)
        numbered = greeting.device is not None  # without a number it counts the samples of an arbitrary device
        if self.known and numbered and greeting.samples != self.samples[device]:
            raise DeviceFault(f"it claims {greeting.samples} samples for device {device}, not {self.samples[device]}")
        if self._hello.measure:
            if greeting.speed is None:
                raise DeviceFault("it did not measure its speed")
            vector(arrived.content, self._model.size)
            self._speeds[device] = greeting.speed
            self._communication[device] = max(0.0, now - arrived.sent.at - greeting.busy)
        if not self.known:
            self.samples[device] = greeting.samples
        self.node_of[device], self.device_of[node] = node, device
        if greeting.name is not None:
            self.name_of[device] = greeting.name
        if greeting.interruptible:
            self.interruptible.add(device)
        del self._again[node]
        return device

    def _number_for(self, greeting: Greeting) -> int:
        wanted, name = greeting.device, greeting.name
        if wanted is not None and wanted >= self.devices:
            raise DeviceFault(f"it has partition-id={wanted}, which must be 0 to {self.devices - 1}")
        named = next((device for device, known in self.name_of.items() if known == name), None)
        if name is not None and self._named_before and named is None:
            shown = ", ".join([*self.name_of.values()][:5]) + (" ..." if len(self.name_of) > 5 else "")
            raise DeviceFault(f"it has name={name!r}, but the devices are {shown}")
        if named is not None and wanted not in (None, named):
            raise DeviceFault(f"it has name={name!r}, which is device {named}, and partition-id={wanted}")
        if named is not None and named in self.node_of:
            raise DeviceFault(f"it has name={name!r}, as node {self.node_of[named]} has already")
        if wanted in self.node_of:
            raise DeviceFault(f"it has partition-id={wanted}, as node {self.node_of[wanted]} has already")
        number = named if named is not None else wanted
        return self._free_number() if number is None else number

    def _free_number(self) -> int:
        """The first number without a node, preferably one that no name belongs to."""
        free = [device for device in range(self.devices) if device not in self.node_of]
        if not free:
            raise DeviceFault(f"all {self.devices} devices are connected already")
        return next((device for device in free if device not in self.name_of), free[0])

    def title(self, device: int) -> str:
        """The device in a line of the log: its number, and its name if it has one."""
        return f"device {device}" + (f" ({one_line(self.name_of[device])})" if device in self.name_of else "")

    @property
    def names(self) -> list[str] | None:
        """The names of all devices, a number where there is none; None if no device has a name."""
        return [self.name_of.get(device, str(device)) for device in range(self.devices)] if self.name_of else None

    def count_from(self, origin: float) -> None:
        """Count times from this moment on."""
        self._again = {node: at - origin for node, at in self._again.items()}

    def leave(self, node: int) -> int:
        """Remove a node that has disconnected, and return the number of its device, which is free again."""
        device = self.device_of.pop(node)
        del self.node_of[device]
        self.interruptible.discard(device)
        return device

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Whether each device is connected."""
        here = np.zeros(self.devices, dtype=bool)
        here[list(self.node_of)] = True
        return here

    def estimate_absent(self) -> Forecast | None:
        """Estimate samples and speed of devices that have not joined yet; return the forecast for all."""
        absent = ~self.present
        if not self.known and absent.any():
            self.samples[absent] = max(1, round(float(self.samples[~absent].mean())))
        if not self._hello.measure:
            return self._forecast
        speeds, communication = (
            np.where(np.isnan(values), np.nanmedian(values), values) for values in (self._speeds, self._communication)
        )
        self._hello = Hello(batch_size=self._hello.batch_size)  # devices that join later are not measured
        return Forecast(speeds=speeds, communication=communication, random_layers=False)


def poll_pause(quiet: float, *, only_stock: bool = False) -> float:
    """Polling interval after `quiet` seconds without a reply."""
    return min(max(STOCK_POLL_SECONDS if only_stock else POLL_SECONDS, POLL_SHARE * quiet), LONGEST_POLL)


def wait_for_devices(
    membership: Membership,
    transport: Transport,
    *,
    wanted: int,
    seconds: float,
    log: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until `wanted` devices have joined; after `seconds` one device is enough."""
    began = looked = stirred = clock()
    fault = ""
    greet_new_nodes(membership, transport, transport.nodes(), began)
    while len(membership.node_of) < wanted:
        now = clock()
        for arrived in transport.poll():
            stirred = now
            try:
                with fault_boundary():
                    device = membership.admit(arrived, now)
                log(f"{membership.title(device)} joined ({len(membership.node_of)} of {membership.devices})")
            except DeviceFault as error:
                fault = one_line(f"node {arrived.sent.node}: {error}")
                log(fault)
        if now - began > seconds:
            if not membership.node_of:
                why = fault or "are the SuperNodes connected?"
                raise OffbeatError(f"no device joined within {seconds:g} s: {why}")
            log(f"beginning with {len(membership.node_of)} devices: fewer than {wanted} joined within {seconds:g} s")
            return
        if now - looked > LOOK_SECONDS:
            looked = now
            greet_new_nodes(membership, transport, transport.nodes(), now)
        if len(membership.node_of) < wanted:
            sleep(poll_pause(now - stirred))


def greet_new_nodes(membership: Membership, transport: Transport, online: Iterable[int], now: float) -> None:
    """Send a greeting to each new node. One that cannot be sent is sent again at the next look at the nodes."""
    for message in membership.greetings(online, transport.busy, now):
        transport.send(*message)
