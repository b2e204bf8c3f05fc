"""A session that a test drives step by step: uploads with given parameters in, versions and orders out.

    >>> from offbeat.algorithms import FedBuff
    >>> session = ScriptedSession(FedBuff(buffer=2, concurrency=2), devices=3)
    >>> session.upload(3.0, 0.0).used                 # the oldest order is uploaded with these parameters
    []
    >>> session.upload(0.0, 3.0).used                 # tickets of the updates that were used
    [1, 2]
    >>> session.version, session.parameters.tolist()  # (1/2) ([3, 0] + [0, 3])
    (1, [1.5, 1.5])

The model is the vector `start`, the clock advances only when a timer fires, and nothing is trained. Each event returns
a `Reaction`; the session has everything else (`version`, `parameters`, `in_flight`, `counters`, `timers`, `state`).
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf, nan
from typing import Any

import numpy as np

from offbeat.core.combining import Combiner, Screen
from offbeat.core.coverage import coverage
from offbeat.core.messages import (
    Assignment,
    Effect,
    Event,
    FreshModel,
    FreshRequested,
    Left,
    Lost,
    Ready,
    Resolved,
    Started,
    StopNotice,
    TimerFired,
    Uploaded,
)
from offbeat.core.orders import KnownOutcome, LocalWork, Outcome, Plain, Progress, Update
from offbeat.core.parameters import Layout, Vector, frozen
from offbeat.core.participation import ParticipationLimits
from offbeat.core.policy import Forecast, Policy
from offbeat.core.selection import Selector
from offbeat.core.session import Session


class Reaction(list[Effect]):
    """The effects of one event, in order, with properties that select some of them."""

    @property
    def orders(self) -> list[Assignment]:
        """The dispatched orders."""
        return [effect for effect in self if isinstance(effect, Assignment)]

    @property
    def ordered(self) -> list[int]:
        """The devices of the dispatched orders."""
        return [order.device for order in self.orders]

    @property
    def tickets(self) -> list[int]:
        """The tickets of the dispatched orders."""
        return [order.ticket for order in self.orders]

    @property
    def notified(self) -> list[int]:
        """The devices that were notified to stop."""
        return [effect.device for effect in self if isinstance(effect, StopNotice)]

    @property
    def answers(self) -> list[FreshModel]:
        """The replies to requests for the fresh model."""
        return [effect for effect in self if isinstance(effect, FreshModel)]

    @property
    def used(self) -> list[int]:
        """The tickets of used updates."""
        return self._resolved(used=True)

    @property
    def discarded(self) -> list[int]:
        """The tickets of discarded updates."""
        return self._resolved(used=False)

    def _resolved(self, *, used: bool) -> list[int]:
        resolved = [effect for effect in self if isinstance(effect, Resolved) and effect.used == used]
        return [ticket for effect in resolved for ticket in effect.tickets]


class ScriptedSession(Session):
    """A started session on a small vector, whose devices do what the test says.

    An order is given by its `ticket` (numbered from 1) or by its `device`; the default is the oldest order in flight.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        devices: int = 4,
        samples: Sequence[int] | None = None,
        start: Sequence[float] = (0.0, 0.0),
        layout: Layout | None = None,
        present: Sequence[int] | None = None,
        speeds: Sequence[float] | None = None,
        communication: Sequence[float] | None = None,
        horizon: float = inf,
        seed: int = 0,
        steps_per_slice: int = 1,
        selector: Selector | None = None,
        limits: ParticipationLimits | None = None,
        combiner: Combiner | None = None,
        screen: Screen | None = None,
        sums_only: bool = False,
        trusted: Callable[[Vector, int], Vector] | None = None,
        **local: Any,
    ) -> None:
        """Without `samples` each of the `devices` has 10; `present` are the devices available at the start.

        `trusted(parameters, version)` is the movement that training on trusted samples gives a version.
        `speeds` and `communication` (default 0) make the forecast for policies that plan ahead; `local` are fields of
        the experiment's `[local]` table (default: epochs = 1, learning_rate = 0.01).
        """
        self.steps_per_slice = steps_per_slice
        held = np.full(devices, 10) if samples is None else np.array(samples)
        forecast = None
        if speeds is not None:
            away = np.zeros(len(speeds)) if communication is None else np.array(communication, dtype=np.float64)
            forecast = Forecast(speeds=np.array(speeds, dtype=np.float64), communication=away)
        super().__init__(
            policy,
            parameters=np.array(start, dtype=np.float32),
            layout=layout or Layout.flat(len(start)),
            samples=held,
            local=LocalWork(**({"epochs": 1, "learning_rate": 0.01} | local)),
            seed=seed,
            present=None if present is None else np.isin(np.arange(len(held)), present),
            forecast=forecast,
            horizon=horizon,
            selector=selector,
            limits=limits,
            combiner=combiner,
            screen=screen,
            sums_only=sums_only,
            trusted=trusted,
        )
        self.first = self.handle(Started())
        """The reaction to the start of the run."""

    def handle(self, event: Event, at: float | None = None) -> Reaction:
        """Handle an event, by default at the current time."""
        return Reaction(super().handle(event, self.now if at is None else at))

    # Devices --------------------------------------------------------------------------------------------------------

    def upload(
        self,
        *numbers: float,
        device: int | None = None,
        ticket: int | None = None,
        slices: int | None = None,
        steps: int | None = None,
        extras: Mapping[str, Plain] | None = None,
        loss: float = nan,
        seconds: float = 0.0,
    ) -> Reaction:
        """Upload these parameters, or the unchanged base if there are none.

        By default the device has done all slices of its order, with the session's `steps_per_slice` each. `loss` is
        the training loss of every sample, `seconds` the training time that the device reports.
        """
        update = self.update(
            *numbers,
            device=device,
            ticket=ticket,
            slices=slices,
            steps=steps,
            extras=extras,
            loss=loss,
            seconds=seconds,
        )
        return self.handle(Uploaded(device=update.device, ticket=update.ticket, update=update))

    def update(
        self,
        *numbers: float,
        device: int | None = None,
        ticket: int | None = None,
        slices: int | None = None,
        steps: int | None = None,
        extras: Mapping[str, Plain] | None = None,
        loss: float = nan,
        seconds: float = 0.0,
    ) -> Update:
        """The update that `upload` would deliver. Elements that the order does not cover keep their base values."""
        held = self.in_flight[self.ticket_of(device, ticket)]
        slices = held.order.slices if slices is None else slices
        if steps is None:
            steps = slices if held.order.unit == "step" else slices * self.steps_per_slice
        mask = coverage(held.order, slices, self.layout)
        parameters = np.array(numbers, dtype=np.float32) if numbers else held.parameters
        if mask is not None:
            parameters = np.where(mask.chosen, parameters, held.parameters)
        return Update(
            device=held.device,
            ticket=held.ticket,
            base=held.base,
            base_parameters=held.parameters,
            samples=self.samples(held.device),
            progress=Progress(slices=slices, steps=steps, seconds=seconds),
            outcome=KnownOutcome(
                Outcome(parameters=frozen(parameters), loss=loss, squared_loss=loss * loss, extras=extras or {})
            ),
            mask=mask,
        )

    def move(
        self,
        *delta: float,
        device: int | None = None,
        ticket: int | None = None,
        slices: int | None = None,
        steps: int | None = None,
        seconds: float = 0.0,
    ) -> Reaction:
        """Upload the base plus this movement."""
        ticket = self.ticket_of(device, ticket)
        numbers = self.in_flight[ticket].parameters + np.array(delta, dtype=np.float32)
        return self.upload(*numbers.tolist(), ticket=ticket, slices=slices, steps=steps, seconds=seconds)

    def lose(self, device: int | None = None, ticket: int | None = None) -> Reaction:
        """Lose an order and its device."""
        held = self.in_flight[self.ticket_of(device, ticket)]
        return self.handle(Lost(device=held.device, ticket=held.ticket))

    def ask(self, device: int | None = None, ticket: int | None = None, slices: int = 1) -> FreshModel:
        """Request the fresh model after `slices` slices, and return the reply."""
        held = self.in_flight[self.ticket_of(device, ticket)]
        request = FreshRequested(device=held.device, ticket=held.ticket, progress=Progress(slices=slices))
        return self.handle(request).answers[0]

    def leave(self, device: int) -> Reaction:
        """Make an idle device unavailable."""
        return self.handle(Left(device=device))

    def come(self, device: int) -> Reaction:
        """Make a device available again."""
        return self.handle(Ready(device=device))

    def fire(self, name: str | None = None) -> Reaction:
        """Fire this timer, by default the one that is due first."""
        name = min(self.timers, key=lambda each: self.timers[each]) if name is None else name
        return self.handle(TimerFired(name=name), self.timers[name])

    # Questions ------------------------------------------------------------------------------------------------------

    @property
    def bases(self) -> dict[int, int]:
        """The base of each device in training, oldest order first."""
        return {held.device: held.base for held in self.in_flight.values()}

    @property
    def newest(self) -> int:
        """The highest ticket in flight."""
        return max(self.in_flight)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The policy's metrics."""
        return self.policy.metrics(self.state)

    def ticket_of(self, device: int | None = None, ticket: int | None = None) -> int:
        """The ticket of a device's order, by default of the oldest order in flight."""
        tickets = [each for each, held in self.in_flight.items() if device in (None, held.device)]
        if ticket is None and not tickets:
            raise LookupError("no order is in flight" if device is None else f"device {device} holds no order")
        return tickets[0] if ticket is None else ticket
