"""What a server may know of its devices before a run begins: how fast they are and how far away.

The two halves of an algorithm: `Policy` on the server, `DeviceRule` on the devices. Neither does IO or has a clock.

A policy is frozen settings plus a state dataclass. `react` is a generator: each action it yields takes effect in the
session before it goes on, so that after `yield Commit(...)` the view shows the new version.
"""

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from offbeat.core.messages import Action, Event
from offbeat.core.orders import LocalWork, Order, Plain, Progress
from offbeat.core.parameters import Layout, Vector
from offbeat.core.settings import Settings

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Forecast:
    """Averages, from the simulator's fleet or from measurements; policies that plan ahead plan with these."""

    speeds: Floats
    """P_u: samples per second that each device takes through one layer of the model, forward and backward."""
    communication: Floats
    """B_u: seconds that each device needs to receive the whole model and to send it back."""
    random_layers: bool = True
    """Whether the time of a layer is drawn anew each time (exponentially distributed in ADEL-FL's model), so that
    everybody comes through all layers now and then; with fixed speeds a slow device never does."""


class InFlight(Protocol):
    """An order in flight, which is one that a device is working on, as a policy sees it."""

    @property
    def device(self) -> int:
        """The device that holds the order."""
        ...

    @property
    def ticket(self) -> int:
        """The number of the order, which no other order of the run has."""
        ...

    @property
    def base(self) -> int:
        """The version that the device began from."""
        ...

    @property
    def order(self) -> Order:
        """The order as it was dispatched."""
        ...

    @property
    def notified(self) -> bool:
        """Whether the device was told to stop soon."""
        ...


class View(Protocol):
    """What a policy can see of its session."""

    @property
    def version(self) -> int:
        """The number of the current version, which is how many commits there were."""
        ...

    @property
    def parameters(self) -> Vector:
        """The parameters of the current version; read-only."""
        ...

    @property
    def layout(self) -> Layout:
        """How the flat vector of parameters is made up of tensors and layers."""
        ...

    @property
    def local(self) -> LocalWork:
        """The experiment's `[local]` table."""
        ...

    @property
    def horizon(self) -> float:
        """Seconds after which the run ends; infinite if nothing is said about that."""
        ...

    @property
    def forecast(self) -> Forecast | None:
        """What is known of the devices in advance; None if nothing is."""
        ...

    @property
    def devices(self) -> int:
        """How many devices there are, present or not."""
        ...

    @property
    def idle(self) -> int:
        """How many devices could be given an order now."""
        ...

    @property
    def random(self) -> np.random.Generator:
        """The policy's own stream of random numbers."""
        ...

    @property
    def in_flight(self) -> Mapping[int, InFlight]:
        """The orders in flight by ticket, oldest first."""
        ...

    def samples(self, device: int) -> int:
        """How many samples the device holds."""
        ...

    def is_idle(self, device: int) -> bool:
        """Whether the device is here and has no order."""
        ...

    def pick(self, count: int) -> list[int]:
        """Up to `count` distinct idle devices, drawn uniformly."""
        ...

    def order(self, **changes: Any) -> Order:
        """The experiment's local work at the current version, with these fields changed."""
        ...


class Policy(Settings):
    """The server half. A subclass has its settings as fields, a mutable `State` dataclass, `init` and `react`."""

    State: ClassVar[type[Any]]
    """The dataclass of the state. It is made of plain values, arrays, lists, dicts and the messages of `core.orders`,
    so that it can be snapshot."""
    Records: ClassVar[tuple[type[Any], ...]] = ()
    """Dataclasses of the policy's own that its state holds."""
    notifies: ClassVar[bool] = False
    """Whether it ever yields StopSoon: devices of a deployment then check in while they train."""
    plain_gradients: ClassVar[bool] = False
    """Whether it takes an update for -eta times a gradient: devices must then train with plain SGD."""
    plans: ClassVar[bool] = False
    """Whether it reads `view.forecast`: a deployment then measures its devices when they join."""

    about: ClassVar[Any] = None
    """Its source, family, search space and so on: an `offbeat.policy.About`, or None. The session never reads it."""

    def init(self, view: View) -> Any:
        """The state before anything happened."""
        return self.State()

    def react(self, event: Event, state: Any, view: View) -> Iterable[Action]:
        """What to do about an event; may change `state`, never the view or the event."""
        raise TypeError(f"{type(self).__name__} does not define react")

    def check(self, devices: int) -> None:
        """Raise InvalidInput if these settings cannot work with so many devices."""

    def metrics(self, state: Any) -> Mapping[str, float]:
        """Figures of the algorithm's own for the metrics log."""
        return {}


class Train(Struct, frozen=True, gc=False):
    """Go on with so many slices, then ask the rule again."""

    slices: int


class Ask(Struct, frozen=True, kw_only=True, gc=False):
    """Request the fresh model, and wait for it or train on until it comes."""

    waits: bool = True
    """Whether to wait. A device that does not merges the model between two steps, wherever it is by then; it uploads
    when it has the answer. One that cannot be reached while it trains, or whose order has a time budget, waits."""


class Upload(Struct, frozen=True, kw_only=True, gc=False):
    """Deliver what there is."""


Step = Train | Ask | Upload
Memory = MutableMapping[str, Plain | Vector]
"""What a device remembers from one local run to the next. Stays on the device in a deployment."""
ReadOnlyMemory = Mapping[str, Plain | Vector]
"""What a device remembers from one local run to the next, to be read only."""


def copied(memory: ReadOnlyMemory) -> Memory:
    """A memory that a rule may change, even in place."""
    return {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in memory.items()}


Probe = Callable[[Vector], tuple[float, Vector]]
"""Loss and gradient of a model on one batch of the device's data."""


class Fresh(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """The answer to a request: the newest model and its version."""

    version: int
    parameters: Vector


class DeviceRule:
    """The device half: what a local run does between slices. The plain rule trains all slices and uploads.

    It has no state of its own. What must last from one run of a device to the next goes into `memory`; a rule that
    wants it kept says so in `remembers`, and the simulator then knows that timing may depend on numbers.
    """

    remembers: ClassVar[bool] = False

    def next(self, progress: Progress, fresh_answers: int, order: Order, memory: ReadOnlyMemory) -> Step:
        """What to do after `progress`, having had `fresh_answers` answers. Must depend on nothing else.

        `memory` is what the device remembered when the run began: what this run adds shows in the next.
        """
        remaining = order.slices - progress.slices
        return Train(remaining) if remaining else Upload()

    def merge(self, local: Vector, fresh: Fresh, base: int, order: Order, memory: Memory, probe: Probe) -> Vector:
        """The model to go on with when a newer one has come."""
        return local

    def extras(self, order: Order, before: ReadOnlyMemory, memory: ReadOnlyMemory) -> Mapping[str, Plain]:
        """What the upload says beside the parameters; `before` is the memory as it was when the run began."""
        return {}

    def admits(self, extras: Mapping[str, Plain], order: Order) -> bool:
        """Whether an upload may say this. In a deployment it comes from a machine that is not trusted, and the policy
        will rely on it: a rule with extras of its own should check them."""
        return not extras or type(self).extras is not DeviceRule.extras
