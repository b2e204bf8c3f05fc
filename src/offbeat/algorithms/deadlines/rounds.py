"""What the deadline family has in common: rounds of a known length in a time budget, cut into layers.

Under one time model (ADEL-FL's B1 and B2): every device takes part in every round, takes `local_steps` steps of SGD on
a batch of its own, layer by layer, and must have delivered when the round's time is up. The server counts rounds in
versions: a round always makes one, even if it changed nothing, so that all members of the family have the same
learning rate in the same round.

| paper | here |
|---|---|
| T_max | `time_budget`, or the experiment's `stop.time` |
| T_t^d | `Rounds.deadlines` |
| P_u, B_u | `view.forecast` |
| E | `local_steps` |

**E > 1.** The paper does not say how a deadline cuts several local steps. Here the steps follow each other, each layer
by layer; a device that is cut within its second step delivers its first step on all layers and the second on some.
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
"""Share of the budget that is left unused, and of a round for its devices, so that rounding makes nobody late."""


def local_differences(policy: Any, local: object) -> list[str]:
    """What devices of the family do differently from the experiment's local training."""
    by_speed = ["batch sizes by speed"] if getattr(policy, "batch", "") == "speed" else []
    return [f"local_steps = {policy.local_steps} of one batch in place of local.epochs", *by_speed]


FAMILY = About(
    family="time budget",
    trains_everybody=True,
    search=SearchSpace(local_steps=Range(1, 5), rounds=Range(0.3, 3.0, log=True, relative=True)),
    local_differences=local_differences,
    flower=None,
    smoke={"local": {"batch_size": 32, "learning_rate": 0.3}, "algorithm": {"rounds": 120}},
)
"""What the members of the family have in common."""


class TimeBudgeted(Policy):
    """Policies that have so much time and no more."""

    time_budget: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """T_max in seconds (default: the experiment's stop.time)."""
    local_steps: Annotated[int, Field(ge=1)] = 1
    """E, steps of SGD that a device takes in a round, each on one batch; `local.epochs` means nothing here."""

    def seconds(self, view: View) -> float:
        """T_max, the seconds that the whole run may take."""
        seconds = min(view.horizon, inf if self.time_budget is None else self.time_budget)
        if seconds == inf:
            raise InvalidInput("the algorithm must know how much time it has: give algorithm.time_budget or stop.time.")
        return seconds * (1.0 - SLACK)

    def order(self, view: View, **changes: Any) -> Order:
        """E passes through the layers."""
        return view.order(unit="layer", slices=self.local_steps * view.layout.trained_layers, **changes)


@dataclass
class DeadlineState:
    """How far the run has come in its plan."""

    deadlines: list[float]
    """The length of each round, all of them from the start."""
    number: int = 0
    """Rounds that have ended."""
    ordered: list[int] = field(default_factory=list)
    """Devices of the running round."""
    arrived: list[Update] = field(default_factory=list)
    orders: int = 0
    depth: int = 0
    """Orders that came back, and the layers that they came through, of all rounds."""


class DeadlineRounds(TimeBudgeted):
    """Rounds that last exactly their deadline. A subclass says how long, what to order, and how to aggregate."""

    plans = True
    State = DeadlineState

    @abstractmethod
    def aggregate(self, updates: Sequence[Update], state: Any, view: View) -> Vector:
        """The next model from what was delivered in time; `updates` is never empty."""

    def counts(self, update: Update) -> bool:
        """Whether a delivery is of any use."""
        return update.progress.slices > 0

    @property
    def special(self) -> dict[str, Any]:
        """What is special about this algorithm's orders."""
        return {}

    def widths_of(self, deadline: float, state: Any, view: View) -> Floats | None:
        """The width of each device's model in a round of this length; None: all train the whole model."""
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
        """End a round: aggregate what was delivered in time and give up the rest."""
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
        """What is known of the devices in advance; refused if the fleet tells nothing."""
        if view.forecast is None:
            raise InvalidInput(
                "fleet.name: this one does not tell how fast its devices are, which the algorithm must know."
            )
        return view.forecast

    def batches(self, deadline: float, state: Any, view: View) -> Integers:
        """S_u of every device in a round of this length: here the experiment's, or all that the device holds."""
        held, size = samples_of(view), view.local.batch_size
        return np.minimum(held, size) if size else held

    def rates(self, deadline: float, state: Any, view: View) -> Floats:
        """How many layers every device does on average in a round of this length."""
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
                f"rounds of {each:.6g} s are too short: the best connected device needs {nearest:.6g} s to communicate "
                "(fewer algorithm.rounds, or a longer stop.time)."
            )
        return self.State(deadlines=[each] * self.rounds)


class BatchesBySpeed(EqualDeadlines):
    """Equal rounds whose batches are as published, one size for all, or in proportion to a device's speed.

    With S_u = floor(m P_u (T - B_u) / T) (B3) every device comes through Poisson(T/m) layers, the fast ones no more
    than the slow ones. So it is in the authors' code of ADEL-FL for all its rivals, with m = 1 for SALF. As in ADEL-FL,
    E local steps share the time: P_u becomes P_u / E.
    """

    batch: Literal["fixed", "speed"] = "fixed"
    """The experiment's `local.batch_size` for all (published), or as many samples as a device's speed allows."""
    batch_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """m of `batch = "speed"`: seconds that a layer takes a device on average."""

    def batches(self, deadline: float, state: Any, view: View) -> Integers:
        if self.batch == "fixed":
            return super().batches(deadline, state, view)
        return speed_batches(self.batch_scale, deadline, self.local_steps, self.forecast(view), view)


def speed_batches(scale: float, deadline: float, steps: int, forecast: Forecast, view: View) -> Integers:
    """(B3) for every device, with P_u / E; who holds fewer samples takes all that it has."""
    planned = batch_sizes(scale, deadline, forecast.speeds / steps, forecast.communication)
    return np.minimum(planned, samples_of(view))


def samples_of(view: View) -> Integers:
    """Samples that each device holds, and at least 1."""
    return np.maximum([view.samples(device) for device in range(view.devices)], 1).astype(np.int64)


def mean_of_holders(updates: Sequence[Update]) -> Callable[[slice], tuple[Floats, Integers]]:
    """For every element of a block the mean over the updates that carry it, and their number.

    Where nobody does, the mean is 0.
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
    """1/U [ sum over those that delivered it of w_u^l + (U - their number) w^l ], layer by layer: the rule of the
    authors' code, where whoever did not deliver a layer counts as a copy of the old one."""
    parameters, mean_of = view.parameters, mean_of_holders(updates)

    def combine(block: slice) -> Floats:
        mean, holders = mean_of(block)
        share = np.minimum(holders / users, 1.0)
        return share * mean + (1.0 - share) * parameters[block]

    return by_block(view.layout.size, combine)


def per_element(by_layer: Floats, layout: Layout) -> Floats:
    """One number for each layer as one for each element. What is never trained comes with the first layer."""
    spread = np.empty(layout.size)
    for entry in layout.entries:
        spread[entry.span] = by_layer[entry.layer if entry.layer < len(by_layer) else 0]
    return spread


def bias_corrected(updates: Sequence[Update], missed: Floats, view: View) -> Vector:
    """Eq. (5), layer by layer: (mean over those that delivered it - p w) / (1 - p), or w if nobody did."""
    parameters, mean_of, missing = view.parameters, mean_of_holders(updates), per_element(missed, view.layout)

    def correct(block: slice) -> Floats:
        (mean, holders), p, old = mean_of(block), missing[block], parameters[block]
        return np.where(holders > 0, (mean - p * old) / (1.0 - p), old)

    return by_block(view.layout.size, correct)
