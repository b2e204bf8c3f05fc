"""One order on its device: `LocalRun` decides what to do next, `LocalTraining` holds the numbers.

All drivers use both. A driver calls `next`, does what it says (the simulator on its virtual clock, a device for real, a
replay as in the record) and reports back; between slices the run may have been answered, stopped or run out of time.
The simulator computes the numbers when a policy reads them, a real device as it goes.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from offbeat.core.errors import PolicyError
from offbeat.core.messages import Assignment
from offbeat.core.orders import Order, Outcome, Progress
from offbeat.core.parameters import Vector
from offbeat.core.policy import Ask, DeviceRule, Fresh, Memory, ReadOnlyMemory, Step, Train, Upload, copied
from offbeat.training.terms import remembered
from offbeat.training.training_state import TrainingJob, TrainingState

NOTHING: ReadOnlyMemory = {}
OPTIMISER = "optimiser "
MOMENTUM = "momentum"
BUFFERS = "buffers"
"""Keys of a device's memory (the first a prefix): what its next training takes over, beside the algorithm's own."""


class LocalRun(Struct, kw_only=True, eq=False, gc=False):
    """One order on one device. It can be saved between any two slices: its fields are plain data."""

    order: Order
    progress: Progress = Progress()
    goal: int = 0
    """The slice with which the present stretch ends. Only there is the rule asked again."""
    answers: int = 0
    asking: bool = False
    """Whether it trains on while its question is not answered yet."""
    stopping: bool = False
    expired: bool = False

    def next(self, rule: DeviceRule, memory: ReadOnlyMemory) -> Step:
        """What to do now. A run that was told to stop uploads as soon as it has a slice to show for itself."""
        if self.expired:
            return Upload()
        order, done = self.order, self.progress.slices
        if self.stopping:
            step: Step = Upload() if done else Train(1)
        elif done < self.goal:
            return Train(self.goal - done)
        else:
            step = rule.next(self.progress, self.answers + self.asking, order, memory)
        if type(step) is Train:  # faster than `isinstance`, and this is asked for every order
            self.goal = goal = done + step.slices
            if not done < goal <= order.slices:
                remaining = order.slices - done
                raise PolicyError(f"rule {order.rule!r} wants {step.slices} slices of {remaining} that remain")
        return step

    def trained(self, slices: int, steps: int, seconds: float) -> None:
        """Note that so many slices are done (negative: were planned and will not be done)."""
        done = self.progress
        self.progress = Progress(slices=done.slices + slices, steps=done.steps + steps, seconds=done.seconds + seconds)

    def ask(self, step: Ask) -> None:
        """The request is on its way. A slice that a budget or a notice may cut short has no merge in its midst."""
        order = self.order
        self.asking = not (step.waits or order.unit == "layer" or order.budget is not None or order.drops_unfinished)

    def answered(self) -> None:
        """The request was answered, with a newer model or without."""
        self.answers += 1
        self.asking = False

    def stop_soon(self) -> None:
        """Upload after the slice that is being worked on, or, if the order drops what is unfinished, without it."""
        self.stopping = True

    @property
    def drops_slice(self) -> bool:
        """Whether the slice that is being worked on is not to be finished, because the run was told to stop."""
        return self.stopping and self.order.drops_unfinished and self.progress.slices > 0

    def out_of_time(self) -> None:
        """The order's time budget is used up."""
        self.expired = True


def ends_of(seconds: Sequence[float], began: float) -> list[float]:
    """When each of some slices ends that take so long and are worked on one after another."""
    return list(accumulate(seconds, initial=began))[1:]


def slices_by(ends: Sequence[float], time: float) -> int:
    """How many of the slices that end at these times are done at a time."""
    return bisect_right(ends, time)


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
