"""What a device remembers from one order to the next, committed by ticket.

What a device takes over from one training to the next beside the algorithm's own memory: the optimiser's state,
running statistics that stay on the device, and what terms of the loss remember.

The numbers of an order in flight on its device: training, merging a newer model, and what is reported in the end.

The logic of an order is `training.local_run`; here are its numbers. The simulator carries it out when a policy
reads the numbers, a real device as it goes.
"""

from typing import Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from offbeat.core.messages import Assignment
from offbeat.core.orders import Order, Outcome
from offbeat.core.parameters import Vector
from offbeat.core.policy import DeviceRule, Fresh, Memory, ReadOnlyMemory, copied
from offbeat.training.terms import remembered
from offbeat.training.training_state import TrainingJob, TrainingState

NOTHING: ReadOnlyMemory = {}


class DeviceMemory(Struct, kw_only=True, eq=False):
    """The memory that the server knows of, and the one after the last delivery, of which it may not know yet.

    A delivery may be lost on its way. So the server names with every order the last ticket that it has received, and
    the device takes up the memory of that ticket, or none if it has lost it.
    """

    ticket: int = 0
    """The ticket that `memory` is from; 0: none."""
    memory: ReadOnlyMemory = NOTHING
    latest_ticket: int = 0
    """The ticket that `latest` is from; 0: none."""
    latest: ReadOnlyMemory = NOTHING

    def recall(self, received: int) -> ReadOnlyMemory:
        """The memory to begin an order with, where the server has received this ticket last; forget any other."""
        if self.latest_ticket == received:
            self.memory, self.ticket = self.latest, self.latest_ticket
        elif self.ticket != received:
            self.memory, self.ticket = NOTHING, 0
        self.latest, self.latest_ticket = self.memory, self.ticket
        return self.memory

    def learned(self, ticket: int, memory: ReadOnlyMemory) -> None:
        """Keep what the device remembers after an order, until it is known whether the server has received it."""
        self.latest, self.latest_ticket = memory, ticket


OPTIMISER = "optimiser "
MOMENTUM = "momentum"
BUFFERS = "buffers"


def first_state(order: Order, parameters: Vector, memory: ReadOnlyMemory) -> TrainingState:
    """The state that a training begins with."""
    if not order.remembers or not memory:
        return TrainingState(parameters=parameters)
    momentum, buffers = memory.get(MOMENTUM), memory.get(BUFFERS)
    kept = {
        name.removeprefix(OPTIMISER): vector
        for name, vector in memory.items()
        if name.startswith(OPTIMISER) and isinstance(vector, np.ndarray)
    }
    keep = order.keep_optimiser_state
    return TrainingState(
        parameters=parameters,
        momentum=momentum if keep and isinstance(momentum, np.ndarray) else None,
        optimiser=kept if keep else {},
        buffers=buffers if order.buffers == "local" and isinstance(buffers, np.ndarray) else None,
    )


def remember(order: Order, received: Vector, state: TrainingState, memory: Memory) -> None:
    """Add to the memory what the device's next training will want to know of this one."""
    if order.keep_optimiser_state:
        if state.momentum is not None:
            memory[MOMENTUM] = state.momentum
        memory.update({OPTIMISER + name: vector for name, vector in state.optimiser.items()})
    if order.buffers == "local" and state.buffers is not None:
        memory[BUFFERS] = state.buffers
    memory.update(remembered(order, memory, received, state.parameters, _rates(order, max(state.steps, 1))))


def _rates(order: Order, steps: int) -> float:
    """The learning rates of so many steps, summed up."""
    if order.schedule is None:
        return order.learning_rate * steps
    return sum(order.schedule.rate(order.learning_rate, step) for step in range(steps))


class GradientSource(Protocol):
    """Whoever can say how good a model is on one batch of a device's data, and where it would become better."""

    def loss_and_gradient(
        self, parameters: Vector, device: int, ticket: int, number: int, batch_size: int | None
    ) -> tuple[float, Vector]:
        """Loss and gradient of a model on a batch, drawn for this device, ticket and number."""
        ...


class LocalTraining(Struct, kw_only=True, eq=False, gc=False):
    """The numbers of one order on one device, how far they have come and what they came from."""

    assignment: Assignment
    state: TrainingState
    performed: int = 0
    """Stretches of training and merges that are behind it. They number the batches on which a merge looks."""
    remembered: ReadOnlyMemory
    """What the device remembered when the run began."""
    memory: ReadOnlyMemory
    """What the device remembered when the run began, with what the run has added; a copy as soon as it has."""

    def job(self, first: int, last: int, extra_steps: int = 0) -> TrainingJob:
        """Slices `first` to `last - 1`, and so many steps of the next, for a trainer."""
        given = self.assignment
        return TrainingJob(
            device=given.device,
            ticket=given.ticket,
            order=given.order,
            first=first,
            last=last,
            extra_steps=extra_steps,
            state=self.state,
            anchor=given.parameters,
            memory=self.remembered if self.remembered and given.order.remembers else NOTHING,
        )

    def merge(self, rule: DeviceRule, fresh: Fresh, source: GradientSource) -> None:
        """Take in a newer model as the order's device rule says."""
        given, state, memory, number = self.assignment, self.state, copied(self.memory), self.performed

        def probe(parameters: Vector) -> tuple[float, Vector]:
            return source.loss_and_gradient(parameters, given.device, given.ticket, number, given.order.batch_size)

        merged = rule.merge(state.parameters, fresh, given.base, given.order, memory, probe)
        self.memory = memory
        self.state = replace(state, parameters=merged, start=None)
        self.performed += 1

    def report(self, rule: DeviceRule) -> Outcome:
        """What the device delivers: the parameters, the training loss, and what its rule has to say beside them."""
        given, state = self.assignment, self.state
        extras = rule.extras(given.order, self.remembered, self.memory)
        if given.order.remembers:
            memory = copied(self.memory)
            remember(given.order, given.parameters, state, memory)
            self.memory = memory
        return Outcome(parameters=state.parameters, loss=state.loss, extras=extras)
