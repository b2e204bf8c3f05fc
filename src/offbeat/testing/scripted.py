"""A session that a test drives by hand: uploads with given parameters in, versions and orders out.

    >>> from offbeat.algorithms import FedBuff
    >>> session = ScriptedSession(FedBuff(buffer=2, concurrency=2), devices=3)
    >>> session.upload(3.0, 0.0).used                 # the oldest order comes back with these parameters
    []
    >>> session.upload(0.0, 3.0).used                 # tickets of the updates that the reaction used
    [1, 2]
    >>> session.version, session.parameters.tolist()  # (1/2) ([3, 0] + [0, 3])
    (1, [1.5, 1.5])

The model is the few numbers that `start` gives, the clock stands still but for timers, and nothing is trained. What
each event led to is a `Reaction`; everything else is asked of the session itself (`version`, `parameters`, `in_flight`,
`counters`, `timers`, `state`).
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

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
from offbeat.core.parameters import Layout, frozen
from offbeat.core.policy import Forecast, Policy
from offbeat.core.session import Session


class Reaction(list[Effect]):
    """The effects of one event, in their order, and questions about them."""

    @property
    def orders(self) -> list[Assignment]:
        """The orders that were given."""
        return [effect for effect in self if isinstance(effect, Assignment)]

    @property
    def ordered(self) -> list[int]:
        """The devices that were given an order."""
        return [order.device for order in self.orders]

    @property
    def tickets(self) -> list[int]:
        """The tickets of the orders that were given."""
        return [order.ticket for order in self.orders]

    @property
    def notified(self) -> list[int]:
        """The devices that were told to stop soon."""
        return [effect.device for effect in self if isinstance(effect, StopNotice)]

    @property
    def answers(self) -> list[FreshModel]:
        """The answers to requests for the fresh model."""
        return [effect for effect in self if isinstance(effect, FreshModel)]

    @property
    def used(self) -> list[int]:
        """The tickets of updates that went into a version."""
        return self._resolved(used=True)

    @property
    def discarded(self) -> list[int]:
        """The tickets of updates that were given up."""
        return self._resolved(used=False)

    def _resolved(self, *, used: bool) -> list[int]:
        resolved = [effect for effect in self if isinstance(effect, Resolved) and effect.used == used]
        return [ticket for effect in resolved for ticket in effect.tickets]


class ScriptedSession(Session):
    """A started session on a model of a few numbers, whose devices do what a test says.

    An order is named by its `ticket` (they count from 1) or by the `device` that holds it; without either it is the
    oldest one in flight.
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
        **work: Any,
    ) -> None:
        """Without `samples` each of the `devices` has 10; `present` are the devices that are there at the start.

        `speeds` and `communication` (0 by default) are what a policy that plans ahead may know of its devices; `work`
        are fields of the experiment's `LocalWork` (by default epochs = 1, learning_rate = 0.01).
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
            local=LocalWork(**({"epochs": 1, "learning_rate": 0.01} | work)),
            seed=seed,
            present=None if present is None else np.isin(np.arange(len(held)), present),
            forecast=forecast,
            horizon=horizon,
        )
        self.first = self.handle(Started())
        """What the start led to."""

    def handle(self, event: Event, at: float | None = None) -> Reaction:
        """Let this happen, now if no time is given."""
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
    ) -> Reaction:
        """A device delivers these parameters, or its base as it was if there are none.

        It did all slices of its order, and the session's `steps_per_slice` in each, if nothing else is said.
        """
        update = self.update(*numbers, device=device, ticket=ticket, slices=slices, steps=steps, extras=extras)
        return self.handle(Uploaded(device=update.device, ticket=update.ticket, update=update))

    def update(
        self,
        *numbers: float,
        device: int | None = None,
        ticket: int | None = None,
        slices: int | None = None,
        steps: int | None = None,
        extras: Mapping[str, Plain] | None = None,
    ) -> Update:
        """What a device would upload. Layers that it has not reached, and those beyond its width, are as they were."""
        held = self.in_flight[self.ticket_of(device, ticket)]
        slices = held.order.slices if slices is None else slices
        steps = slices * self.steps_per_slice if steps is None else steps
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
            progress=Progress(slices=slices, steps=steps),
            outcome=KnownOutcome(Outcome(parameters=frozen(parameters), extras=extras or {})),
            mask=mask,
        )

    def move(
        self,
        *delta: float,
        device: int | None = None,
        ticket: int | None = None,
        slices: int | None = None,
        steps: int | None = None,
    ) -> Reaction:
        """A device delivers its base plus this."""
        ticket = self.ticket_of(device, ticket)
        numbers = self.in_flight[ticket].parameters + np.array(delta, dtype=np.float32)
        return self.upload(*numbers.tolist(), ticket=ticket, slices=slices, steps=steps)

    def lose(self, device: int | None = None, ticket: int | None = None) -> Reaction:
        """An order is lost, and its device is away."""
        held = self.in_flight[self.ticket_of(device, ticket)]
        return self.handle(Lost(device=held.device, ticket=held.ticket))

    def ask(self, device: int | None = None, ticket: int | None = None, slices: int = 1) -> FreshModel:
        """A device asks for the fresh model after so many slices; returns the answer."""
        held = self.in_flight[self.ticket_of(device, ticket)]
        request = FreshRequested(device=held.device, ticket=held.ticket, progress=Progress(slices=slices))
        return self.handle(request).answers[0]

    def leave(self, device: int) -> Reaction:
        """An idle device goes away."""
        return self.handle(Left(device=device))

    def come(self, device: int) -> Reaction:
        """A device that was away is here again."""
        return self.handle(Ready(device=device))

    def fire(self, name: str | None = None) -> Reaction:
        """The time of this timer has come, or of the one that is due first."""
        name = min(self.timers, key=lambda each: self.timers[each]) if name is None else name
        return self.handle(TimerFired(name=name), self.timers[name])

    # Questions ------------------------------------------------------------------------------------------------------

    @property
    def bases(self) -> dict[int, int]:
        """The version that each device in training started from, by device, the oldest order first."""
        return {held.device: held.base for held in self.in_flight.values()}

    @property
    def newest(self) -> int:
        """The ticket of the youngest order in flight."""
        return max(self.in_flight)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The policy's own figures."""
        return self.policy.metrics(self.state)

    def ticket_of(self, device: int | None = None, ticket: int | None = None) -> int:
        """The ticket of the order that a device works on, or of the oldest one."""
        tickets = [each for each, held in self.in_flight.items() if device in (None, held.device)]
        if ticket is None and not tickets:
            raise LookupError("no order is in flight" if device is None else f"device {device} holds no order")
        return tickets[0] if ticket is None else ticket
