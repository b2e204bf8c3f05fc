"""The deadline family: rounds of known length within a time budget, cut between layers.

ADEL-FL's time model (B1, B2): every device takes part in every round, takes `local_steps` steps of SGD on one batch
each, layer by layer, and must upload before the round's deadline. Every round makes a version, even if nothing changed,
so that all members of the family have the same learning rate in the same round.

| paper | here |
|---|---|
| T_max | `time_budget`, or the experiment's `stop.time` |
| T_t^d | `DeadlineState.deadlines` |
| P_u, B_u | `view.forecast` |
| E | `local_steps` |

**E > 1.** The paper does not say how a deadline cuts several local steps. Here the steps follow each other; a device
that is cut within its second step uploads its first step on all layers and the second on some.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any, Literal

import numpy as np
from msgspec.structs import replace
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace
from offbeat.algorithms.deadlines.planner import batch_sizes, layer_rates
from offbeat.algorithms.deadlines.planner.depth import Floats, Integers
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import (
    Action,
    Commit,
    Discard,
    Dispatch,
    Event,
    Finish,
    SetTimer,
    Started,
    TimerFired,
    Uploaded,
)
from offbeat.core.orders import Order, Update
from offbeat.core.parameters import Layout, Vector, by_block
from offbeat.core.policy import Forecast, Policy, View

SLACK = 1e-9
"""Share of the budget that stays unused, in total and per round, so that rounding makes no device late."""


def local_differences(policy: Any, local: object) -> list[str]:
    """What devices of the family do differently from the experiment's local training."""
    by_speed = ["batch sizes by speed"] if getattr(policy, "batch", "") == "speed" else []
    return [f"local_steps = {policy.local_steps} of one batch instead of local.epochs", *by_speed]


FAMILY = About(
    family="time budget",
    trains_all_devices=True,
    search=SearchSpace(local_steps=Range(1, 5), rounds=Range(0.3, 3.0, log=True, relative=True)),
    local_differences=local_differences,
    flower=None,
    sums_only=True,  # layer by layer
    smoke={"local": {"batch_size": 32, "learning_rate": 0.3}, "algorithm": {"rounds": 120}},
)
"""The part of `about` that all members of the family share."""


class TimeBudgeted(Policy):
    """Base of policies with a time budget."""

    time_budget: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """T_max in seconds (default: the experiment's stop.time)."""
    local_steps: Annotated[int, Field(ge=1)] = 1
    """E, steps of SGD per round, each on one batch; replaces `local.epochs`."""

    def seconds(self, view: View) -> float:
        """T_max, the duration of the whole run in seconds."""
        seconds = min(view.horizon, inf if self.time_budget is None else self.time_budget)
        if seconds == inf:
            raise InvalidInput("the algorithm needs a time budget: set algorithm.time_budget or stop.time")
        return seconds * (1.0 - SLACK)

    def order(self, view: View, **changes: Any) -> Order:
        """An order of E passes through the layers."""
        return view.order(unit="layer", slices=self.local_steps * view.layout.trained_layers, **changes)


@dataclass
class DeadlineState:
    """The plan, and the progress of the run."""

    deadlines: list[float]
    """The length of every round, in seconds."""
    number: int = 0
    """Completed rounds."""
    ordered: list[int] = field(default_factory=list)
    """Devices of the current round."""
    arrived: list[Update] = field(default_factory=list)
    orders: int = 0
    depth: int = 0
    """Uploads of all rounds, and the layers that they completed."""


class DeadlineRounds(TimeBudgeted):
    """Rounds that last exactly their deadline. A subclass defines deadlines, orders and aggregation."""

    plans = True
    State = DeadlineState

    @abstractmethod
    def aggregate(self, updates: Sequence[Update], state: Any, view: View) -> Vector:
        """The next model from the updates that arrived in time, of which there is at least one."""

    def counts(self, update: Update) -> bool:
        """Whether an update is used."""
        return update.progress.slices > 0

    @property
    def special(self) -> dict[str, Any]:
        """Fields of this algorithm's orders that differ from the family's."""
        return {}

    def widths_of(self, deadline: float, state: Any, view: View) -> Floats | None:
        """The width of each device's model in a round of this length; None if all train the whole model."""
        return None

    def react(self, event: Event, state: Any, view: View) -> Iterator[Action]:
        match event:
            case Started():
                yield from self.begin(state, view)
            case Uploaded(update=update) if update.base == view.version:
                state.arrived.append(update)
            case Uploaded(update=update):
                yield Discard(ticket=update.ticket, reason="after the deadline")
            case TimerFired():
                yield from self.end(state, view)
                if state.number == len(state.deadlines):
                    yield Finish(reason="time budget")
                else:
                    yield from self.begin(state, view)

    def begin(self, state: Any, view: View) -> Iterator[Action]:
        """Begin a round: set its timer and order every idle device that can communicate within it."""
        deadline = state.deadlines[state.number]
        yield SetTimer(name="deadline", after=deadline)
        batches, away = self.batches(deadline, state, view), self.forecast(view).communication
        widths = self.widths_of(deadline, state, view)
        state.ordered = []
        for device in range(view.devices):
            budget = deadline - float(away[device]) - SLACK * self.seconds(view)
            if budget > 0 and view.is_idle(device):
                state.ordered.append(device)
                order = self.order(view, batch_size=int(batches[device]), budget=budget, **self.special)
                if widths is not None:
                    order = replace(order, width=float(widths[device]))
                yield Dispatch(device=device, order=order)

    def end(self, state: Any, view: View) -> Iterator[Action]:
        """End a round: aggregate the updates that arrived in time and discard unusable ones."""
        used = [update for update in state.arrived if self.counts(update)]
        state.orders += len(state.arrived)
        state.depth += sum(update.progress.slices for update in state.arrived)
        for update in state.arrived:
            if not self.counts(update):
                yield Discard(ticket=update.ticket, reason="not done by the deadline")
        parameters = self.aggregate(used, state, view) if used else view.parameters
        state.arrived = []
        state.number += 1
        yield Commit(parameters=parameters, used=tuple(update.ticket for update in used))

    # What a plan needs to know --------------------------------------------------------------------------------------

    def forecast(self, view: View) -> Forecast:
        """The forecast of the devices' speeds; an error if the fleet has none."""
        if view.forecast is None:
            raise InvalidInput(
                "fleet.name: the algorithm plans with the devices' speeds, which this fleet does not provide"
            )
        return view.forecast

    def batches(self, deadline: float, state: Any, view: View) -> Integers:
        """S_u of every device in a round of this length; here `local.batch_size`, at most the device's samples."""
        held, size = samples_of(view), view.local.batch_size
        return np.minimum(held, size) if size else held

    def rates(self, deadline: float, state: Any, view: View) -> Floats:
        """The mean number of layers that each device completes in a round of this length."""
        forecast = self.forecast(view)
        return layer_rates(deadline, self.batches(deadline, state, view), forecast.speeds, forecast.communication)

    def metrics(self, state: Any) -> dict[str, float]:
        return {"rounds": float(state.number), "mean_depth": state.depth / state.orders if state.orders else 0.0}


class EqualDeadlines(DeadlineRounds):
    """Rounds of T_max / R seconds each."""

    rounds: Annotated[int, Field(ge=1)] = 100
    """R, the number of rounds."""

    def init(self, view: View) -> Any:
        each = self.seconds(view) / self.rounds
        nearest = float(self.forecast(view).communication.min())
        if each <= nearest:
            raise InvalidInput(
                f"rounds of {each:.6g} s are too short: the fastest link needs {nearest:.6g} s to communicate; "
                "decrease algorithm.rounds or increase stop.time"
            )
        return self.State(deadlines=[each] * self.rounds)


class BatchesBySpeed(EqualDeadlines):
    """Equal rounds with one batch size for all devices (published), or batch sizes proportional to speed.

    With S_u = floor(m P_u (T - B_u) / T) (B3) every device completes Poisson(T/m) layers, whatever its speed. ADEL-FL's
    authors' code does this for all methods it compares, with m = 1 for SALF. E local steps share the time: P_u becomes
    P_u / E.
    """

    batch: Literal["fixed", "speed"] = "fixed"
    """Batch size: `local.batch_size` for all devices (published), or proportional to speed."""
    batch_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """m of `batch = "speed"`: mean seconds per layer."""

    def batches(self, deadline: float, state: Any, view: View) -> Integers:
        if self.batch == "fixed":
            return super().batches(deadline, state, view)
        return speed_batches(self.batch_scale, deadline, self.local_steps, self.forecast(view), view)


def speed_batches(scale: float, deadline: float, steps: int, forecast: Forecast, view: View) -> Integers:
    """(B3) for every device, with P_u / E, and at most the device's samples."""
    planned = batch_sizes(scale, deadline, forecast.speeds / steps, forecast.communication)
    return np.minimum(planned, samples_of(view))


def samples_of(view: View) -> Integers:
    """Samples of each device, at least 1."""
    return np.maximum([view.samples(device) for device in range(view.devices)], 1).astype(np.int64)


def mean_of_holders(updates: Sequence[Update]) -> Callable[[slice], tuple[Floats, Integers]]:
    """A function that gives, for each element of a block, the mean over the updates that cover it and their number.

    The mean is 0 where no update does.
    """
    models = [(update.parameters, None if update.mask is None else update.mask.chosen) for update in updates]

    def mean_of(block: slice) -> tuple[Floats, Integers]:
        size = block.stop - block.start
        total, holders = np.zeros(size), np.zeros(size, dtype=np.int64)
        for model, mask in models:
            if mask is None:
                total += model[block]
                holders += 1
            else:
                chosen = mask[block]
                total[chosen] += model[block][chosen]
                holders += chosen
        return total / np.maximum(holders, 1), holders

    return mean_of


def with_absent_as_old(updates: Sequence[Update], users: int, view: View) -> Vector:
    """The rule of the authors' code: 1/U [ sum over delivered w_u^l + (U - their number) w^l ], layer by layer.

    A device that did not deliver a layer counts as a copy of the old layer.
    """
    parameters, mean_of = view.parameters, mean_of_holders(updates)

    def combine(block: slice) -> Floats:
        mean, holders = mean_of(block)
        share = np.minimum(holders / users, 1.0)
        return share * mean + (1.0 - share) * parameters[block]

    return by_block(view.layout.size, combine)


def per_element(by_layer: Floats, layout: Layout) -> Floats:
    """Spread one number per layer over its elements. Buffers belong to the first layer."""
    spread = np.empty(layout.size)
    for entry in layout.entries:
        spread[entry.span] = by_layer[entry.layer if entry.layer < len(by_layer) else 0]
    return spread


def bias_corrected(updates: Sequence[Update], missed: Floats, view: View) -> Vector:
    """Eq. (5), layer by layer: (mean over the devices that delivered it - p w) / (1 - p), or w if none did."""
    parameters, mean_of, missing = view.parameters, mean_of_holders(updates), per_element(missed, view.layout)

    def correct(block: slice) -> Floats:
        (mean, holders), p, old = mean_of(block), missing[block], parameters[block]
        return np.where(holders > 0, (mean - p * old) / (1.0 - p), old)

    return by_block(view.layout.size, correct)
