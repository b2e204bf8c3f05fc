"""Who is who: which Flower node is which device, how many samples it holds and how fast it is."""

import time
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import DeviceFault, OffbeatError
from offbeat.core.parameters import Vector
from offbeat.core.policy import Forecast
from offbeat.flower.protocol.codec import one_line, unpack, vector
from offbeat.flower.protocol.messages import FromDevice, Greeting, Hello, Refusal
from offbeat.flower.server.transport import OutgoingMessage, ReceivedReply, SentMessage, Transport

POLL_SECONDS = 0.05
"""How often answers are looked for while they come from warm nodes."""
STOCK_POLL_SECONDS = 0.5
"""How often they are looked for if only stock nodes have something to answer. A look takes the SuperLink some
milliseconds of a core, and a stock node that has answered looks for its next message only 3 s later."""
LONGEST_POLL = 1.0
"""How often they are looked for at least."""
POLL_SHARE = 0.02
"""The pause before answers are looked for again, as a share of the time in which none has come."""
LOOK_SECONDS = 1.0
"""How often the list of nodes is asked for."""
STRANGERS = ("No train function registered with name", "Invalid message type")
"""What Flower answers for a ClientApp that knows nothing of our messages."""
RETRY_SECONDS = 10.0
"""A node that was not admitted is greeted again after so long."""


class Membership:
    """The devices of a run, by number. A node says which one it is (`partition-id`), or is given a free number."""

    __slots__ = (
        "_again",
        "_answer_seconds",
        "_communication",
        "_forecast",
        "_hello",
        "_model",
        "_speeds",
        "device_of",
        "devices",
        "interruptible",
        "known",
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
    ) -> None:
        self.devices = devices
        self.samples = np.ones(devices, dtype=np.int64) if samples is None else samples.astype(np.int64)
        """The samples of each device; what is not known yet is guessed from the others when the run begins."""
        self.node_of: dict[int, int] = {}
        self.device_of: dict[int, int] = {}
        self.interruptible: set[int] = set()
        """Devices that hear of notices while they train."""
        self.known = samples is not None
        """Whether an experiment says which samples each device holds; else they are the devices' own."""
        self._model = model
        self._hello = Hello(batch_size=batch_size, measure=measure and forecast is None)
        self._forecast = forecast
        self._answer_seconds = answer_seconds
        self._speeds = np.full(devices, np.nan)
        self._communication = np.full(devices, np.nan)
        self._again: dict[int, float] = {}
        """Nodes that were not admitted, and when to try again."""

    def greetings(self, nodes: Iterable[int], busy: Callable[[int], bool], now: float) -> list[OutgoingMessage]:
        """The greetings of new nodes, except those that have a message to reply to."""
        model, deadline = self._model if self._hello.measure else None, now + self._answer_seconds
        return [
            OutgoingMessage(SentMessage(node=node, at=now, deadline=deadline), self._hello, model)
            for node in sorted(nodes)
            if node not in self.device_of and not busy(node) and self._again.get(node, 0.0) <= now
        ]

    def admit(self, arrived: ReceivedReply, now: float) -> int:
        """The number of the device whose greeting this is; DeviceFault if there is no place for it."""
        node = arrived.sent.node
        self._again[node] = now + RETRY_SECONDS
        if arrived.content is None:
            if any(sign in arrived.error for sign in STRANGERS):
                raise DeviceFault(f"node {node} runs an app without offbeat's client: see docs/deployment.md")
            raise DeviceFault(f"node {node} did not greet: {arrived.error}")
        greeting = unpack(arrived.content, FromDevice)
        if isinstance(greeting, Refusal):
            raise DeviceFault(f"node {node} cannot take part: {greeting.reason}")
        if node in self.device_of:
            raise DeviceFault(f"node {node} greets twice: it is device {self.device_of[node]}")
        if not isinstance(greeting, Greeting):
            raise DeviceFault(f"node {node} did not greet but said {type(greeting).__name__}")
        if greeting.elements != self._model.size:
            raise DeviceFault(f"node {node} has a model of {greeting.elements} elements, not {self._model.size}")
        device = self._number_for(node, greeting.device)
        numbered = greeting.device is not None  # one that is not counts the samples of some device or other
        if self.known and numbered and greeting.samples != self.samples[device]:
            raise DeviceFault(
                f"node {node} claims {greeting.samples} samples for device {device}, not {self.samples[device]}"
            )
        if self._hello.measure:
            if greeting.speed is None:
                raise DeviceFault(f"node {node} did not measure how fast it is")
            vector(arrived.content, self._model.size)
            self._speeds[device] = greeting.speed
            self._communication[device] = max(0.0, now - arrived.sent.at - greeting.busy)
        if not self.known:
            self.samples[device] = greeting.samples
        self.node_of[device], self.device_of[node] = node, device
        if greeting.interruptible:
            self.interruptible.add(device)
        del self._again[node]
        return device

    def _number_for(self, node: int, wanted: int | None) -> int:
        if wanted is None:
            free = next((device for device in range(self.devices) if device not in self.node_of), None)
            if free is None:
                raise DeviceFault(f"node {node}: all {self.devices} devices are there already")
            return free
        if wanted >= self.devices:
            raise DeviceFault(f"node {node} says partition-id={wanted}: there are {self.devices} devices, from 0")
        if wanted in self.node_of:
            raise DeviceFault(f"node {node} says that it is device {wanted}, which is node {self.node_of[wanted]}")
        return wanted

    def count_from(self, origin: float) -> None:
        """Count times from this moment on."""
        self._again = {node: at - origin for node, at in self._again.items()}

    def leave(self, node: int) -> int:
        """A node is gone; the number of its device is free again."""
        device = self.device_of.pop(node)
        del self.node_of[device]
        self.interruptible.discard(device)
        return device

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Which devices are here."""
        here = np.zeros(self.devices, dtype=bool)
        here[list(self.node_of)] = True
        return here

    def estimate_absent(self) -> Forecast | None:
        """Fill in what is not known of devices that have not joined yet; what is known of all of them."""
        absent = ~self.present
        if not self.known and absent.any():
            self.samples[absent] = max(1, round(float(self.samples[~absent].mean())))
        if not self._hello.measure:
            return self._forecast
        speeds, communication = (
            np.where(np.isnan(values), np.nanmedian(values), values) for values in (self._speeds, self._communication)
        )
        self._hello = Hello(batch_size=self._hello.batch_size)  # who joins from now on is not planned with
        return Forecast(speeds=speeds, communication=communication, random_layers=False)


def poll_pause(quiet: float, *, only_stock: bool = False) -> float:
    """Seconds to wait before looking for answers again, if nothing has happened for so long."""
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
    """Wait until so many devices have joined, or for so long if at least one has."""
    began = looked = stirred = clock()
    fault = ""
    greet_new_nodes(membership, transport, transport.nodes(), began)
    while len(membership.node_of) < wanted:
        now = clock()
        for arrived in transport.poll():
            stirred = now
            try:
                device = membership.admit(arrived, now)
                log(f"device {device} joined ({len(membership.node_of)} of {membership.devices})")
            except DeviceFault as error:
                fault = one_line(str(error))
                log(fault)
        if now - began > seconds:
            if not membership.node_of:
                why = fault or "are the SuperNodes connected?"
                raise OffbeatError(f"no device joined within {seconds:g} s: {why}")
            log(f"beginning with {len(membership.node_of)} devices: {wanted} did not join within {seconds:g} s")
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
