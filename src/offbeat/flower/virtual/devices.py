"""Messages on simulated devices, and how long they take.

A device works on one message at a time, in the order of arrival. Times come from `offbeat.fleet`: a training message is
an order of some epochs, an evaluation a fraction of an epoch, and links take time by the size of a message.
"""

from collections import deque
from dataclasses import dataclass, field
from math import inf

import numpy as np
from flwr.app import Message, RecordDict

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order
from offbeat.core.streams import stream
from offbeat.fleet import Fleet, Workload
from offbeat.flower.virtual.app import FlowerApp
from offbeat.flower.virtual.clients import ClientAnswer
from offbeat.flower.virtual.settings import AppSettings
from offbeat.results.rows import Span
from offbeat.simulation.lifecycle import UNDISTURBED, Fate


def size_of(content: RecordDict) -> int:
    """Bytes of the records on a link: serialised arrays, eight per number, and their names."""
    total = 0
    for name, record in content.items():
        total += len(name)
        for key, value in record.items():
            total += len(key) + _weight(value)
    return total


def _weight(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list):
        return sum(_weight(each) for each in value)
    data = getattr(value, "data", None)
    return len(data) if isinstance(data, bytes) else 8


@dataclass(kw_only=True, eq=False)
class MessageInFlight:
    """A message from its sending until its reply has arrived, or until the server learns that none will."""

    number: int
    name: str
    """The id with which the app asks for the reply."""
    message: Message
    device: int
    base: int
    """Version of the model when the message was sent."""
    sent: float
    bytes_down: int
    fate: Fate = UNDISTURBED
    """What goes wrong with it, known when the device begins to work on it."""
    began: float = inf
    """When the device began to work on it."""
    ended: float = inf
    """When the device finished or vanished."""
    bytes_up: int = 0
    answer: ClientAnswer | None = None
    closed: bool = False
    """Whether the server has a reply or an error; the device may still be working."""
    forgotten: bool = False
    """Whether the app waited in vain and has dropped the message, so that it cannot ask for the reply."""

    @property
    def reply(self) -> Message:
        """The ClientApp's reply."""
        assert self.answer is not None
        return self.answer.reply

    @property
    def category(self) -> str:
        """Category of the message type: train, evaluate, query, or one from before Flower's message API."""
        return self.message.metadata.message_type.partition(".")[0]

    @property
    def trains(self) -> bool:
        """Whether it asks for training."""
        return self.category == "train"

    def span(self, landed: float, outcome: str, *, epochs: int, samples: int = 0) -> Span:
        """Summarise the message for timeline and accounts, as of the time `landed`."""
        until = min(self.ended, landed)
        began = min(self.began, until)
        return Span(
            device=self.device,
            ticket=self.number,
            base=self.base,
            sent=self.sent,
            arrived=began,
            landed=landed,
            slices=epochs if outcome == "uploaded" else 0,
            outcome=outcome,
            trained_until=until,
            ended=landed if outcome != "lost" else until,
            samples=samples,
            seconds=until - began,
            bytes_down=self.bytes_down,
            bytes_up=self.bytes_up,
        )


@dataclass(eq=False)
class Device:
    """The messages that a device works on."""

    current: MessageInFlight | None = None
    waiting: deque[MessageInFlight] = field(default_factory=deque)
    """Messages that arrived while it was busy."""
    fate: Fate = UNDISTURBED
    """When it vanishes next, or vanished last, and when it returns after that."""


class WorkTimes:
    """How long messages take on the devices of a fleet."""

    def __init__(self, app: FlowerApp, settings: AppSettings) -> None:
        workload = Workload(
            devices=settings.nodes,
            samples=np.ones(settings.nodes, dtype=np.int64),
            layers=1,
            flops_per_sample=0.0,
            seed=settings.seed,
        )
        self.fleet = Fleet.build(
            workload,
            settings.fleet.settings,
            settings.network,
            settings.availability.settings,
            settings.failures,
        )
        self.epochs = settings.epochs(app)
        self.node_ids = [int(stream(settings.seed, "flower node", k).integers(2, 2**63)) for k in range(settings.nodes)]
        self._work = settings.work
        self._slowness = None
        if self._work.seconds == "measured":
            speeds = self.fleet.speeds.layer_speeds()
            if speeds is None:
                raise InvalidInput(
                    f"work.seconds = 'measured' needs a slowness per device, and devices of the fleet "
                    f"{settings.fleet.name!r} have no slowness: use 'fleet'."
                )
            self._slowness = speeds.max() / speeds * self._work.processor

    def known(self, flight: MessageInFlight) -> float:
        """Seconds of work that are known before the ClientApp runs."""
        if self._slowness is not None or flight.category not in ("train", "evaluate"):
            return 0.0
        if flight.trains:
            order = Order(slices=self.epochs)
            return float(sum(self.fleet.speeds.slice_seconds(flight.device, flight.number, order)))
        return float(self.fleet.speeds.slice_seconds(flight.device, flight.number, Order())[0]) * self._work.evaluation

    def more(self, flight: MessageInFlight, answer: ClientAnswer) -> float:
        """Seconds of work that are known only after the ClientApp has run: its sleeps and its measured CPU time."""
        if self._slowness is None:
            return answer.slept_seconds
        return answer.slept_seconds + answer.processor_seconds * float(self._slowness[flight.device])
