"""One order on its device: `LocalRun` decides what to do next, `LocalTraining` holds the numbers.

All drivers use both. A driver calls `next`, does what it says (the simulator on its virtual clock, a device for real, a
replay as in the record) and reports back; between slices the run may have been answered, stopped or run out of time.
The simulator computes the numbers when a policy reads them, a real device as it goes.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import nan
from typing import Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from offbeat.core.errors import PolicyError
from offbeat.core.messages import Assignment
from offbeat.core.orders import Order, Outcome, Progress
from offbeat.core.parameters import Vector
from offbeat.core.policy import Ask, DeviceRule, Fresh, Memory, ReadOnlyMemory, Step, Train, Upload, copied
from offbeat.training.optimisers import RATES, rates_before
from offbeat.training.terms import remembered
from offbeat.training.training_state import TrainingJob, TrainingState

NOTHING: ReadOnlyMemory = {}
OPTIMISER = "optimiser "
MOMENTUM = "momentum"
BUFFERS = "buffers"
"""Keys of a device's memory (the first a prefix): what its next training takes over besides the algorithm's keys."""


class LocalRun(Struct, kw_only=True, eq=False, gc=False):
    """The logic of one order on one device. Its fields are plain data, so that it can be saved between slices."""

    order: Order
    progress: Progress = Progress()
    goal: int = 0
    """The slice up to which the rule last said to train; the rule is asked again there."""
    answers: int = 0
    asking: bool = False
    """Whether it continues to train while it waits for a fresh model."""
    stopping: bool = False
    expired: bool = False

    def next(self, rule: DeviceRule, memory: ReadOnlyMemory) -> Step:
        """The next step. A run that was told to stop uploads as soon as one slice is done."""
        if self.expired:
            return Upload()
        order, done = self.order, self.progress.slices
        if self.stopping:
            step: Step = Upload() if done else Train(1)
        elif done < self.goal:
            return Train(self.goal - done)
        else:
            step = rule.next(self.progress, self.answers + self.asking, order, memory)
        if type(step) is Train:  # faster than `isinstance`; this runs for every order
            self.goal = goal = done + step.slices
            if not done < goal <= order.slices:
                remaining = order.slices - done
                raise PolicyError(f"rule {order.rule!r} returned Train({step.slices}): {remaining} slices remain")
        return step

    def trained(self, slices: int, steps: int, seconds: float) -> None:
        """Add to the progress (negative: take back what was planned and will not be done)."""
        done = self.progress
        self.progress = Progress(slices=done.slices + slices, steps=done.steps + steps, seconds=done.seconds + seconds)

    def ask(self, step: Ask) -> None:
        """Note that a fresh model was requested; training continues unless its slice may be cut short."""
        order = self.order
        self.asking = not (step.waits or order.unit == "layer" or order.budget is not None or order.drops_unfinished)

    def answered(self) -> None:
        """Note that the request was answered, with a newer model or without."""
        self.answers += 1
        self.asking = False

    def stop_soon(self) -> None:
        """Upload after the slice in progress or, if the order drops unfinished slices, without it."""
        self.stopping = True

    @property
    def drops_slice(self) -> bool:
        """Whether to drop the slice in progress, because the run was told to stop."""
        return self.stopping and self.order.drops_unfinished and self.progress.slices > 0

    def out_of_time(self) -> None:
        """Note that the order's time budget is used up."""
        self.expired = True


def ends_of(seconds: Sequence[float], began: float) -> list[float]:
    """The end of each of consecutive slices with these durations."""
    return list(accumulate(seconds, initial=began))[1:]


def slices_by(ends: Sequence[float], time: float) -> int:
    """The number of slices that are done at a time, given their ends."""
    return bisect_right(ends, time)


class DeviceMemory(Struct, kw_only=True, eq=False):
    """A device's memory from order to order: the version that the server knows of, and the one after the last upload.

    An upload may be lost. The server therefore names with every order the last ticket that it has received, and the
    device continues with the memory of that ticket, or with none if it has lost it.
    """

    ticket: int = 0
    """The ticket of `memory`; 0: none."""
    memory: ReadOnlyMemory = NOTHING
    latest_ticket: int = 0
    """The ticket of `latest`; 0: none."""
    latest: ReadOnlyMemory = NOTHING

    def recall(self, received: int) -> ReadOnlyMemory:
        """The memory after the ticket that the server received last; forget any other."""
        if self.latest_ticket == received:
            self.memory, self.ticket = self.latest, self.latest_ticket
        elif self.ticket != received:
            self.memory, self.ticket = NOTHING, 0
        self.latest, self.latest_ticket = self.memory, self.ticket
        return self.memory

    def learned(self, ticket: int, memory: ReadOnlyMemory) -> None:
        """Store the memory after an order, until the server says whether it has received that order's update."""
        self.latest, self.latest_ticket = memory, ticket


def first_state(order: Order, parameters: Vector, memory: ReadOnlyMemory) -> TrainingState:
    """The training state at the beginning of an order."""
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
    """Add to the memory what the device's next order needs: optimiser state, buffers, memory of loss terms."""
    if order.keep_optimiser_state:
        if state.momentum is not None:
            memory[MOMENTUM] = state.momentum
        memory.update({OPTIMISER + name: vector for name, vector in state.optimiser.items() if name != RATES})
    if order.buffers == "local" and state.buffers is not None:
        memory[BUFFERS] = state.buffers
    rates = rates_before(state) or order.summed_rate(max(state.steps, 1))
    memory.update(remembered(order, memory, received, state.parameters, rates))


class GradientSource(Protocol):
    """Computes loss and gradient on a batch of a device's data."""

    def loss_and_gradient(
        self, parameters: Vector, device: int, ticket: int, number: int, batch_size: int | None
    ) -> tuple[float, Vector]:
        """Loss and gradient of a model on the batch of this device, ticket and number."""
        ...


class LocalTraining(Struct, kw_only=True, eq=False, gc=False):
    """The numbers of one order on one device: training state and memory."""

    assignment: Assignment
    state: TrainingState
    performed: int = 0
    """Steps of the rule, trainings and merges, that are done. It selects the batch that a merge evaluates on."""
    remembered: ReadOnlyMemory
    """The device's memory when the order began."""
    memory: ReadOnlyMemory
    """The device's memory with what this order has added; a copy once it has added anything."""

    def job(self, first: int, last: int, extra_steps: int = 0) -> TrainingJob:
        """The job of slices `first` to `last - 1`, and of `extra_steps` steps of the next slice."""
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
        """Merge a newer model as the device rule says."""
        given, state, memory, number = self.assignment, self.state, copied(self.memory), self.performed

        def probe(parameters: Vector) -> tuple[float, Vector]:
            return source.loss_and_gradient(parameters, given.device, given.ticket, number, given.order.batch_size)

        merged = rule.merge(state.parameters, fresh, given.base, given.order, memory, probe)
        self.memory = memory
        self.state = replace(state, parameters=merged, start=None)
        self.performed += 1

    def report(self, rule: DeviceRule) -> Outcome:
        """The outcome that the device uploads: parameters, training loss, and extras of its rule."""
        given, state = self.assignment, self.state
        extras = rule.extras(given.order, self.remembered, self.memory)
        if given.order.remembers:
            memory = copied(self.memory)
            remember(given.order, given.parameters, state, memory)
            self.memory = memory
        squared = state.squared_loss if given.order.squared_loss else nan
        return Outcome(parameters=state.parameters, loss=state.loss, squared_loss=squared, extras=extras)
