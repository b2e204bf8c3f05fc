"""SFL, AUDG and PSURDG: gradient descent in iterations of fixed length, with delayed gradients.

Hao, Cui, Yang, Wu, Feng, Hu: *The Impact Analysis of Delays in Asynchronous Federated Learning with Data Heterogeneity
for Edge Intelligence*, 2025 (arXiv 2503.04052), Algorithms 1 to 3. Its bounds are in
`offbeat.comparison.delayed_gradients.bounds`.

| paper | here |
|---|---|
| lambda_i | `weights` |
| eta | the experiment's `local.learning_rate` |
| I_t | the devices whose updates `arrived` between two firings of the timer `iteration` |
| tau_i(t) | `delay`: iterations between the model that a gradient was computed at and its delivery |
| w_i - w (13), which is -eta grad f_i | the update's movement from its own base |

    SFL     w <- w - eta sum_{all i}    lambda_i grad f_i(w)
    AUDG    w <- w - eta sum_{i in I_t} lambda_i grad f_i(w^{t - tau_i})             (13)
    PSURDG  w <- w - eta sum_{all i}    lambda_i (the latest delivered grad f_i)      (46)

Every device always has an order. Uploads that arrive during an iteration, its last instant included, count at its end;
devices that are idle then get the new model. SFL ends an iteration only when no device is in training: it waits whole
iterations for the slowest device that is not lost.

A gradient is the movement divided by -eta. With several local steps it is the pseudo-gradient (w_o - w) / eta, as in
the first line of (13). It is applied with the current eta: under a learning-rate schedule an old movement is scaled by
(eta now) / (eta of its order).

`weights = "renormalised"` is not (13): the lambda_i of the applied gradients are divided by their sum, so that every
step is a whole one. As published, AUDG takes about half a step if half of the devices deliver. The variant came closest
to the paper's own tables.

Where the paper is silent or contradicts itself:
- (46) with the delays of (1) would use gradients before their delivery. PSURDG uses the latest delivered one, and a
  device contributes nothing before its first delivery.
- An iteration without any gradient makes no version, so delays are counted in iterations.
- A device that returns during an iteration is ordered at its end.
- A lost device contributes nothing to SFL and AUDG (the weights of the others do not change); PSURDG keeps reusing its
  latest gradient.

In simulations PSURDG's iterations last half the median duration of an order unless `iteration_seconds` is set: it
applies every gradient once per iteration, so that short iterations are large steps along old gradients.

PSURDG keeps one gradient per device (`algorithms.model_cache`), in half the memory with `storage = "float16"` (relative
to its largest element, about 3 digits). SFL and AUDG keep nothing between iterations.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import isclose
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace, ServerMemory
from offbeat.algorithms.model_cache import CacheKind, ModelCache
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Action, Commit, Dispatch, Event, SetTimer, Started, TimerFired, Uploaded
from offbeat.core.orders import Update
from offbeat.core.parameters import Vector, by_block
from offbeat.core.policy import Policy, View
from offbeat.core.vectors import Sliceable

ITERATION = "iteration"
REPORTED_DEVICES = 1000
"""Largest fleet for which the metrics include the mean delay of each device."""

Contribution = tuple[int, float, Sliceable]
"""A device, and its movement as factor times array."""


@dataclass
class IterationState:
    """The uploads of the current iteration, and the delays so far."""

    devices: int
    samples: int
    """Total samples of all devices."""
    number: int = 0
    arrived: list[Update] = field(default_factory=list)
    ordered: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Iteration and learning rate of each device's last order."""
    deliveries: dict[int, int] = field(default_factory=dict)
    delays: dict[int, int] = field(default_factory=dict)
    """Sum of the delays of each device's deliveries."""
    longest: int = 0


@dataclass
class PsurdgState(IterationState):
    """Adds the latest movement of device i, `scales[i]` times that in the cache, and how it was ordered, `made[i]`."""

    cache: ModelCache = field(default_factory=ModelCache)
    scales: dict[int, float] = field(default_factory=dict)
    """1, except for movements in float16."""
    made: dict[int, tuple[int, float]] = field(default_factory=dict)
    applied: int = 0
    ages: int = 0
    """Applications of gradients, and the sum of the gradients' ages in iterations."""


def rate_ratio(now: float, then: float) -> float:
    """The factor on a movement of an older order; 0 if its rate was 0, because it did not move."""
    return now / then if then > 0 else 0.0


class Audg(Policy):
    """Fixed iterations; each applies the delayed gradients that arrived in it, once (Hao et al. 2025).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(Audg(), samples=[1, 1, 2])
    >>> _ = session.move(4.0, 0.0, device=0), session.fire("iteration")  # 1/4 [4, 0]
    >>> _ = session.move(0.0, 4.0, device=2), session.fire("iteration")  # delayed by 1: + 1/2 [0, 4]
    >>> session.parameters.tolist()
    [1.0, 2.0]
    """

    State = IterationState
    plain_gradients = True

    iteration_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Length of an iteration."""
    weights: list[Annotated[float, Field(ge=0, le=1)]] | Literal["renormalised"] | None = None
    """lambda_i of each device, with sum 1 (default: its share of the data); "renormalised" (not published): its share
    of the data of the devices whose gradients are applied in the iteration."""

    about = About(
        name="audg",
        family="iterations",
        paper="Hao et al., 2025",
        provenance="published",
        trains_all_devices=True,
        search=SearchSpace(iteration_seconds=Range(0.3, 10.0, log=True, relative=True)),
        sums_only=True,
        smoke={"algorithm": {"iteration_seconds": 2.0}},
    )

    def check(self, devices: int) -> None:
        if not isinstance(self.weights, list):
            return
        if len(self.weights) != devices:
            raise InvalidInput(f"algorithm.weights has {len(self.weights)} values for {devices} devices: give one each")
        if not isclose(sum(self.weights), 1.0, abs_tol=1e-6):
            raise InvalidInput(f"algorithm.weights sum to {sum(self.weights):.6g}: they must sum to 1")

    def init(self, view: View) -> Any:
        return self.State(devices=view.devices, samples=sum(map(view.samples, range(view.devices))))

    def react(self, event: Event, state: Any, view: View) -> Iterator[Action]:
        match event:
            case Uploaded(update=update):
                state.arrived.append(update)
                self.count(update.device, state)
            case Started():
                yield from self.begin(state, view)
            case TimerFired() if self.is_over(view):
                contributions = self.contributions(state, view)
                if contributions:
                    used = tuple(update.ticket for update in state.arrived)
                    yield Commit(parameters=self.step(contributions, state, view), used=used)
                state.arrived = []
                state.number += 1
                yield from self.begin(state, view)
            case TimerFired():
                state.number += 1
                yield SetTimer(name=ITERATION, after=self.iteration_seconds)

    def begin(self, state: IterationState, view: View) -> Iterator[Action]:
        """Begin an iteration: order all idle devices from the current model."""
        yield SetTimer(name=ITERATION, after=self.iteration_seconds)
        order = view.order()
        for device in sorted(view.pick(view.idle)):
            state.ordered[device] = (state.number, order.learning_rate)
            yield Dispatch(device=device, order=order)

    def is_over(self, view: View) -> bool:
        """Whether the step is taken now; AUDG and PSURDG never wait."""
        return True

    def contributions(self, state: Any, view: View) -> list[Contribution]:
        """The gradients of I_t."""
        rate = view.order().learning_rate
        return [(u.device, rate_ratio(rate, state.ordered[u.device][1]), u.delta) for u in state.arrived]

    def step(self, contributions: list[Contribution], state: IterationState, view: View) -> Vector:
        """w + sum_i lambda_i movement_i, summed by device in float64, so that equal movements give equal bits."""
        parameters = view.parameters
        if self.weights == "renormalised":
            whole = sum(self.weight(device, state, view) for device, _, _ in contributions) or 1.0
            contributions = [(device, factor / whole, movement) for device, factor, movement in contributions]
        movements = [
            (movement, factor * self.weight(device, state, view))
            for device, factor, movement in sorted(contributions, key=lambda each: each[0])
        ]

        def add_up(block: slice) -> npt.NDArray[np.float64]:
            total = parameters[block].astype(np.float64)
            for movement, weight in movements:
                total += np.multiply(movement[block], weight, dtype=np.float64)
            return total

        return by_block(len(parameters), add_up)

    def weight(self, device: int, state: IterationState, view: View) -> float:
        """lambda_i, the weight of a device's gradient."""
        return self.weights[device] if isinstance(self.weights, list) else view.samples(device) / state.samples

    def count(self, device: int, state: IterationState) -> None:
        """Count a delivery and its delay."""
        delay = state.number - state.ordered[device][0]
        state.deliveries[device] = state.deliveries.get(device, 0) + 1
        state.delays[device] = state.delays.get(device, 0) + delay
        state.longest = max(state.longest, delay)

    def metrics(self, state: Any) -> dict[str, float]:
        """Iterations, and the mean delay at delivery, over all deliveries and per device.

        The theory has another mean delay: the age of a device's model, averaged over all iterations.
        """
        deliveries = sum(state.deliveries.values())
        mean = sum(state.delays.values()) / deliveries if deliveries else 0.0
        figures = {"iterations": state.number, "mean_delay": mean, "max_delay": state.longest}
        if state.devices > REPORTED_DEVICES:
            return figures
        return figures | {
            f"delay_{device}": state.delays[device] / state.deliveries[device] for device in sorted(state.deliveries)
        }


class Sfl(Audg):
    """Fixed iterations; waits whole iterations until every device has delivered (Hao et al. 2025).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(Sfl(), samples=[1, 3])
    >>> session.move(4.0, 0.0, device=0).used, session.fire("iteration").used  # it waits for device 1
    ([], [])
    >>> session.move(0.0, 4.0, device=1).used, session.fire("iteration").used
    ([], [1, 2])
    >>> session.parameters.tolist()  # 1/4 [4, 0] + 3/4 [0, 4]
    [1.0, 3.0]
    """

    about = replace(Audg.about, name="sfl")

    def is_over(self, view: View) -> bool:
        return not view.in_flight


class Psurdg(Audg):
    """Fixed iterations; each applies the latest delivered gradient of every device (Hao et al. 2025).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(Psurdg(), samples=[1, 3])
    >>> _ = session.move(4.0, 0.0, device=0), session.fire("iteration")  # 1/4 [4, 0]
    >>> _ = session.fire("iteration")  # nothing has arrived: the same gradient again
    >>> session.parameters.tolist()
    [2.0, 0.0]
    """

    State = PsurdgState
    Records = (ModelCache,)

    storage: Literal["float32", "float16"] = "float32"
    """Data type of the stored gradients, one per device."""
    cache: CacheKind = "memory"
    """Where the stored gradients are kept: in memory, in memory with 8 bits each, or on disk."""

    about = replace(
        Audg.about,
        name="psurdg",
        in_order_seconds={"iteration_seconds": 0.5},
        sums_only=False,
        server_memory=ServerMemory(per_device=1),
    )

    def check(self, devices: int) -> None:
        super().check(devices)
        if self.storage == "float16" and self.cache == "quantised":
            raise InvalidInput('algorithm.storage = "float16" and algorithm.cache = "quantised": set one of them')

    def init(self, view: View) -> PsurdgState:
        state: PsurdgState = super().init(view)
        state.cache.kind = self.cache
        return state

    def contributions(self, state: PsurdgState, view: View) -> list[Contribution]:
        """The latest gradient of every device that has delivered."""
        cache = state.cache
        for update in state.arrived:
            self.keep(update, state, view)
        state.applied += len(state.made)
        state.ages += sum(state.number - iteration for iteration, _ in state.made.values())
        now = view.order().learning_rate
        found: list[Contribution] = []
        for device, (_, then) in state.made.items():
            scale = state.scales[device] * cache.scales.get(device, 1.0)
            found.append((device, rate_ratio(now, then) * scale, cache.vectors[device]))
        return found

    def keep(self, update: Update, state: PsurdgState, view: View) -> None:
        """Store the movement; in float16 relative to its largest element, because small float16 numbers lose digits."""
        device, scale = update.device, 1.0
        movement: npt.NDArray[Any] = update.delta
        if self.storage == "float16":
            scale = float(np.abs(movement).max()) or 1.0
            movement = (movement / np.float32(scale)).astype(np.float16)
        state.cache.write(device, movement, view)
        state.scales[device] = scale
        state.made[device] = state.ordered[device]

    def metrics(self, state: PsurdgState) -> dict[str, float]:
        """The metrics of AUDG, and the mean age of applied gradients, which reuse makes larger than the mean delay."""
        return super().metrics(state) | {"mean_gradient_age": state.ages / state.applied if state.applied else 0.0}
