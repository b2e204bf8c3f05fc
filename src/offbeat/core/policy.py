"""The two halves of an algorithm: `Policy` on the server, `DeviceRule` on the devices. Neither does IO or has a clock.

A policy is frozen settings plus a state dataclass. `react` is a generator: each action it yields takes effect in the
session before it continues, so that after `yield Commit(...)` the `View` shows the new version. A `Forecast` is what a
policy may know about its devices in advance.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from offbeat.core.combining import Combiner, Contributions, Movement
from offbeat.core.messages import Action, Event
from offbeat.core.orders import LocalWork, Order, Plain, Progress, Update
from offbeat.core.parameters import Layout, Vector
from offbeat.core.settings import Settings
from offbeat.core.sums import RunningSum
from offbeat.core.vectors import VectorStore

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Forecast:
    """Mean speeds and communication times of the devices, for policies that plan ahead.

    In a simulation they come from the fleet, in a deployment from measurements.
    """

    speeds: Floats
    """P_u: samples per second of each device in one layer of the model, forward and backward."""
    communication: Floats
    """B_u: seconds for each device to download and upload the whole model."""
    random_layers: bool = True
    """Whether the time of a layer is random (exponential in ADEL-FL's model), so that every device sometimes completes
    all layers; with fixed speeds a slow device never does."""


class InFlight(Protocol):
    """An order in flight, as a policy sees it."""

    @property
    def device(self) -> int:
        """The device that holds the order."""
        ...

    @property
    def ticket(self) -> int:
        """The number of the order, unique in the run."""
        ...

    @property
    def base(self) -> int:
        """The version that the device started from."""
        ...

    @property
    def order(self) -> Order:
        """The order as it was dispatched."""
        ...

    @property
    def notified(self) -> bool:
        """Whether the device was sent a stop notice."""
        ...


class View(Protocol):
    """The part of a session that a policy can read."""

    @property
    def version(self) -> int:
        """The number of the current version, which counts commits."""
        ...

    @property
    def parameters(self) -> Vector:
        """The parameters of the current version; read-only."""
        ...

    @property
    def layout(self) -> Layout:
        """The tensors and layers of the flat parameter vector."""
        ...

    @property
    def local(self) -> LocalWork:
        """The experiment's `[local]` table."""
        ...

    @property
    def now(self) -> float:
        """Seconds since the start of the run at which the event happened."""
        ...

    @property
    def horizon(self) -> float:
        """Seconds after which the run ends; infinite if time does not end it."""
        ...

    @property
    def forecast(self) -> Forecast | None:
        """What is known about the devices in advance; None if nothing is."""
        ...

    @property
    def devices(self) -> int:
        """Number of devices, available or not."""
        ...

    @property
    def idle(self) -> int:
        """Number of devices that can be given an order now."""
        ...

    @property
    def random(self) -> np.random.Generator:
        """The policy's random generator."""
        ...

    @property
    def combiner(self) -> Combiner | None:
        """The rule that replaces the weighted mean of updates (`core.combining`); None if the experiment has none."""
        ...

    @property
    def sums(self) -> RunningSum | None:
        """The sum of the updates since the last version, which alone a policy can read; None if it reads updates."""
        ...

    @property
    def in_flight(self) -> Mapping[int, InFlight]:
        """The orders in flight by ticket, oldest first."""
        ...

    @property
    def store(self) -> VectorStore:
        """Keeps vectors outside the memory of the process if the driver can."""
        ...

    def samples(self, device: int) -> int:
        """Number of samples on the device."""
        ...

    def is_idle(self, device: int) -> bool:
        """Whether the device is available and has no order."""
        ...

    def pick(self, count: int, excluding: Collection[int] = ()) -> list[int]:
        """Up to `count` distinct idle devices that are not excluded, as the run's `[selection]` says (uniformly)."""
        ...

    def order(self, **changes: Any) -> Order:
        """Make an order from the `[local]` table at the current version, with some fields changed."""
        ...

    def combine(self, contributions: Contributions) -> Movement:
        """The combined movement by `combiner`, which there must be."""
        ...

    def trusted_movement(self) -> Vector:
        """The movement that training on the server's trusted samples gives the current version."""
        ...

    def stream(self, role: str, *keys: int) -> np.random.Generator:
        """A random generator that depends on the seed, the role and the keys only, such as `("noise", version)`."""
        ...


class Policy(Settings):
    """The server half of an algorithm: settings as fields, a mutable `State` dataclass, `init` and `react`."""

    State: ClassVar[type[Any]]
    """The dataclass of the state. It holds plain values, arrays, lists, dicts and the structs of `core.orders`, so that
    a checkpoint can hold it."""
    Records: ClassVar[tuple[type[Any], ...]] = ()
    """Other dataclasses that the state holds."""
    notifies: ClassVar[bool] = False
    """Whether it ever yields StopSoon: stock Flower nodes then check in while they train."""
    plain_gradients: ClassVar[bool] = False
    """Whether it treats an update as -eta times a gradient: devices must then train with SGD or polyak, unclipped."""
    combines: ClassVar[bool] = False
    """Whether all its versions are made by `core.combining`, so that a `Combiner` can replace their weighted mean."""
    mixes: ClassVar[bool] = False
    """Whether it makes every version from one update by `core.combining.single_movement`, so that a `Combiner` that
    judges updates `singly` can take part."""
    plans: ClassVar[bool] = False
    """Whether it reads `view.forecast`: a deployment then measures its devices when they join."""

    @property
    def measures_gradients(self) -> bool:
        """Whether it divides movements by the learning rate: devices must then train with SGD."""
        return False

    about: ClassVar[Any] = None
    """Its source, family, search space and so on: an `offbeat.policy.About`, or None. The session never reads it."""

    def init(self, view: View) -> Any:
        """The state at the start of a run."""
        return self.State()

    def react(self, event: Event, state: Any, view: View) -> Iterable[Action]:
        """Yield the actions that answer an event; may change `state`, but not the view or the event."""
        raise TypeError(f"{type(self).__name__} does not define react")

    def check(self, devices: int) -> None:
        """Raise InvalidInput if these settings cannot work with this number of devices."""

    def metrics(self, state: Any) -> Mapping[str, float]:
        """The algorithm's own metrics."""
        return {}

    @property
    def sums_suffice(self) -> bool:
        """Whether `core.combining` can make its versions from a running sum, with the weights of `weight_in_sum`."""
        return type(self).weight_in_sum is not Policy.weight_in_sum

    def weight_in_sum(self, update: Update, view: View) -> float:
        """The weight of an update, which has just arrived, in the mean that makes the next version.

        0 if it will be discarded. The numbers of the update cannot be read here either.
        """
        raise TypeError(f"{type(self).__name__} does not define weight_in_sum")

    def weight_at(self, staleness: int) -> float | None:
        """The staleness factor or term of an update's weight, relative to that of a fresh update, for reports.

        None if the policy has none that staleness alone determines.
        """
        return None


class Train(Struct, frozen=True, gc=False):
    """Train this many slices, then ask the rule again."""

    slices: int


class Ask(Struct, frozen=True, kw_only=True, gc=False):
    """Ask the server for the newest version."""

    waits: bool = True
    """Whether to wait for the reply. A device that does not wait merges the new version between two steps when it
    arrives, and uploads only after that. A device that cannot be reached during training, or whose order has a time
    budget, always waits."""


class Upload(Struct, frozen=True, kw_only=True, gc=False):
    """Upload the current model."""


Step = Train | Ask | Upload
Memory = MutableMapping[str, Plain | Vector]
"""What a device keeps from one local run to the next. In a deployment it stays on the device."""
ReadOnlyMemory = Mapping[str, Plain | Vector]
"""A `Memory` that may not be changed."""


def copied(memory: ReadOnlyMemory) -> Memory:
    """Copy a memory, arrays included, so that a rule may change it in place."""
    return {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in memory.items()}


Probe = Callable[[Vector], tuple[float, Vector]]
"""Loss and gradient of a model on one batch of the device's data."""


class Fresh(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """The reply to `Ask`: the newest model and its version."""

    version: int
    parameters: Vector


class DeviceRule:
    """The device half of an algorithm: what a local run does between slices. This one trains all slices and uploads.

    A rule has no state. What must last from one local run of a device to the next goes into `memory`.
    """

    remembers: ClassVar[bool] = False
    """Whether `memory` is kept. The simulator then knows that the timing of a run may depend on earlier training."""

    def next(self, progress: Progress, fresh_answers: int, order: Order, memory: ReadOnlyMemory) -> Step:
        """The next step after `progress` and `fresh_answers` replies. It may depend on the arguments only.

        `memory` is as it was at the start of this local run.
        """
        remaining = order.slices - progress.slices
        return Train(remaining) if remaining else Upload()

    def merge(self, local: Vector, fresh: Fresh, base: int, order: Order, memory: Memory, probe: Probe) -> Vector:
        """Merge a newer version into the local model, and return the model to continue with."""
        return local

    def extras(self, order: Order, before: ReadOnlyMemory, memory: ReadOnlyMemory) -> Mapping[str, Plain]:
        """Values that the upload carries besides the parameters; `before` is the memory at the start of the run."""
        return {}

    def admits(self, extras: Mapping[str, Plain], order: Order) -> bool:
        """Whether an upload may carry these extras. A rule with extras should check them: in a deployment they come
        from a machine that is not trusted, and the policy relies on them."""
        return not extras or type(self).extras is not DeviceRule.extras
