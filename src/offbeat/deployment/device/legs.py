"""The device's half of a deployment: an order worked on in legs, with what waits between them.

The logic is `device.local_run.LocalRun` and the numbers are the torch trainer's, both as in a simulation; the clock is
real. Nothing here knows of Flower: `apps` moves the messages and keeps the `DeviceStore` between two messages.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import inf, isfinite
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from offbeat.algorithms import device_rule
from offbeat.core.coverage import coverage, submodel
from offbeat.core.errors import DeviceFault
from offbeat.core.orders import Order
from offbeat.core.parameters import Vector, frozen
from offbeat.core.policy import Ask, Fresh, Memory, Step, Train, copied
from offbeat.deployment.protocol.messages import (
    Answer,
    Begin,
    CheckIn,
    Continue,
    Delivery,
    FromDevice,
    Greeting,
    Hello,
    Question,
)
from offbeat.device.local_run import LocalRun
from offbeat.device.trainer import TorchTrainer
from offbeat.device.training_state import TrainingJob, TrainingState

Pace = Callable[[int, int, Order], Sequence[float]]
"""Seconds that each slice of an order shall take on a device: for trying out an uneven fleet on one machine."""
Reply = tuple[FromDevice, Vector | None]


class PausedOrder(Struct, kw_only=True):
    """An order that is being worked on, at rest between two legs."""

    device: int
    ticket: int
    base: int
    seed: int
    leg: int
    leg_seconds: float | None
    run: LocalRun
    work: TrainingState
    anchor: Vector
    arrived: float
    """When the device got the order, by its own clock."""
    goal: int = 0
    """Where the stretch that it is in ends: only there the rule is asked again, as in a simulation."""
    checked: int = 0
    """Slices that it had when it last checked in: every leg has something to show for itself."""
    performed: int = 0
    """Stretches of training and merges that are behind it: they number the batches on which a merge looks."""
    memory: Memory
    """What it remembers, with what this run has added."""


class DeviceStore(Struct, kw_only=True):
    """What a device keeps between two messages: the order at work, and what it remembers of earlier ones."""

    paused: PausedOrder | None = None
    memory: Memory = {}
    settled: int = 0
    """The ticket that the memory is from."""
    latest: Memory = {}
    latest_ticket: int = 0
    """The memory after the last delivery, of which the server may not know yet."""


RECORDS: tuple[type[Struct], ...] = (DeviceStore, PausedOrder, LocalRun, TrainingState)


class DeviceProgram:
    """Answers messages about one device's data."""

    def __init__(
        self,
        trainer: TorchTrainer,
        store: DeviceStore,
        *,
        number: int | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.trainer = trainer
        self.store = store
        self.number = number
        self.pace = pace
        self._clock = clock
        self._sleep = sleep

    # Messages -----------------------------------------------------------------------------------------------------

    def greet(self, hello: Hello, model: Vector | None) -> Reply:
        device, layers = self.number or 0, self.trainer.layout.trained_layers
        samples = len(self.trainer.batches.partition.samples(device))
        greeting = Greeting(device=self.number, samples=samples, elements=self.trainer.layout.size)
        if model is None:
            return greeting, None
        started = self._clock()
        for attempt in range(2):  # the first one warms up
            begun = self._clock()
            _, gradient = self.trainer.loss_and_gradient(model, device, 0, attempt, hello.batch_size)
        step, busy = max(self._clock() - begun, 1e-9), self._clock() - started
        batch = samples if hello.batch_size is None else min(samples, hello.batch_size)
        return (
            Greeting(
                device=self.number,
                samples=samples,
                elements=self.trainer.layout.size,
                speed=batch * layers / step,
                busy=busy,
            ),
            gradient,
        )

    def begin(self, order: Begin, model: Vector) -> Reply:
        """Take up an order. One that was at work before is given up: the server knows nothing of it."""
        store = self.store
        if store.latest_ticket == order.settled:
            store.memory, store.settled = store.latest, store.latest_ticket
        elif store.settled != order.settled:
            store.memory, store.settled = {}, 0
        store.latest, store.latest_ticket = store.memory, store.settled
        self.trainer.batches.seed = order.seed
        base = self._whole(order.order, model)
        store.paused = PausedOrder(
            device=order.device,
            ticket=order.ticket,
            base=order.base,
            seed=order.seed,
            leg=1,
            leg_seconds=order.leg_seconds,
            run=LocalRun(order=order.order),
            work=TrainingState(parameters=base),
            anchor=base,
            arrived=self._clock(),
            memory=copied(store.memory),
        )
        return self._leg(store.paused)

    def go_on(self, message: Continue) -> Reply:
        paused = self._resumed_order(message)
        if message.stop:
            paused.run.stop_soon()
        return self._leg(paused)

    def answered(self, message: Answer, model: Vector | None) -> Reply:
        """Take in the newer model, if there is one, and go on."""
        paused = self._resumed_order(message)
        paused.run.answered()
        if message.stop:
            paused.run.stop_soon()
        if model is not None:
            self._merge(paused, Fresh(version=message.version, parameters=frozen(model)))
        return self._leg(paused)

    def _resumed_order(self, message: Continue | Answer) -> PausedOrder:
        paused = self.store.paused
        if paused is None or (paused.ticket, paused.leg) != (message.ticket, message.leg):
            there = "nothing" if paused is None else f"ticket {paused.ticket}, leg {paused.leg}"
            raise DeviceFault(f"out of step: asked for ticket {message.ticket}, leg {message.leg}, having {there}")
        paused.leg += 1
        self.trainer.batches.seed = paused.seed
        return paused

    def elements(self, order: Order) -> int:
        """How many elements of the model come with an order."""
        layout = self.trainer.layout
        return layout.size if order.width == 1.0 else submodel(layout, order.width).count

    def _whole(self, order: Order, model: Vector) -> Vector:
        """The model that came with an order; of a narrow one only its elements came, and only they matter."""
        if order.width == 1.0:
            return frozen(model)
        base = np.zeros(self.trainer.layout.size, dtype=np.float32)
        base[submodel(self.trainer.layout, order.width).chosen] = model
        return frozen(base)

    # A leg --------------------------------------------------------------------------------------------------------

    def _leg(self, paused: PausedOrder) -> Reply:
        """Train until there is something to tell the server."""
        started = self._clock()
        while isinstance(step := self._next(paused), Train):
            if paused.run.progress.slices > paused.checked and self._overdue(paused, started):
                paused.checked = paused.run.progress.slices
                return CheckIn(**self._progress(paused)), None
            self._train(paused)
        return self._report(paused, step)

    def _next(self, paused: PausedOrder) -> Step:
        """What the run does now: go on with the stretch that it is in, unless it has to end."""
        run, remaining = paused.run, paused.goal - paused.run.progress.slices
        if remaining > 0 and not run.stopping and not run.expired:
            return Train(remaining)
        step = run.next(device_rule(run.order.rule), self.store.memory)
        paused.goal = run.progress.slices + step.slices if isinstance(step, Train) else 0
        return step

    def _overdue(self, paused: PausedOrder, started: float) -> bool:
        """Whether to look whether a notice has come."""
        if paused.leg_seconds is None or paused.run.order.unit == "layer":
            return False
        return self._clock() - started >= paused.leg_seconds

    def _train(self, paused: PausedOrder) -> None:
        """All layers of the stretch, or one epoch of it."""
        order, first, began = paused.run.order, paused.run.progress.slices, self._clock()
        last = paused.goal if order.unit == "layer" else first + 1
        deadline = inf if order.budget is None else paused.arrived + order.budget
        job = TrainingJob(
            device=paused.device,
            ticket=paused.ticket,
            order=order,
            first=first,
            last=last,
            work=paused.work,
            anchor=paused.anchor,
        )
        if self.pace is None:
            proceed = None if order.budget is None else lambda _: self._clock() < deadline
            work, done = self.trainer.train_while(job, proceed)
        else:
            work, done = self._train_paced(job, began, deadline)
        paused.run.trained(done - first, work.steps - paused.work.steps, self._clock() - began)
        paused.work = work
        if done == paused.goal:
            paused.performed += 1
        if done < last:
            paused.run.out_of_time()

    def _train_paced(self, job: TrainingJob, began: float, deadline: float) -> tuple[TrainingState, int]:
        """Take the time that the fleet gives each slice; what it cannot do by the deadline is left undone."""
        assert self.pace is not None
        seconds = self.pace(job.device, job.ticket, job.order)[job.first : job.last]
        ends = list(accumulate(seconds, initial=began))[1:]
        done = job.first + bisect_right(ends, deadline)
        work = job.work
        if done > job.first:
            work = self.trainer.train(replace(job, last=done))
        self._sleep(max(0.0, min(ends[-1], deadline) - self._clock()))
        return work, done

    def _merge(self, paused: PausedOrder, fresh: Fresh) -> None:
        order, work = paused.run.order, paused.work

        def probe(parameters: Vector) -> tuple[float, Vector]:
            return self.trainer.loss_and_gradient(
                parameters, paused.device, paused.ticket, paused.performed, order.batch_size
            )

        merged = device_rule(order.rule).merge(work.parameters, fresh, paused.base, order, paused.memory, probe)
        paused.work = TrainingState(
            parameters=merged, momentum=work.momentum, steps=work.steps, loss_sum=work.loss_sum, seen=work.seen
        )
        paused.performed += 1

    def _report(self, paused: PausedOrder, step: Step) -> Reply:
        if isinstance(step, Ask):
            return Question(**self._progress(paused)), None
        order, layout, store = paused.run.order, self.trainer.layout, self.store
        rule, mask = device_rule(order.rule), coverage(order, paused.run.progress.slices, layout)
        delivery = Delivery(
            **self._progress(paused),
            samples=len(self.trainer.batches.partition.samples(paused.device)),
            loss=paused.work.loss if isfinite(paused.work.loss) else None,
            extras=dict(rule.extras(order, store.memory, paused.memory)),
        )
        store.paused = None
        if rule.remembers:
            store.latest, store.latest_ticket = paused.memory, paused.ticket
        parameters = paused.work.parameters
        return delivery, parameters if mask is None else parameters[mask.chosen]

    def _progress(self, paused: PausedOrder) -> dict[str, Any]:
        progress = paused.run.progress
        return {
            "ticket": paused.ticket,
            "leg": paused.leg,
            "slices": progress.slices,
            "steps": progress.steps,
            "seconds": progress.seconds,
            "remembered": self.store.settled,
        }
